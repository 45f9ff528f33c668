/* Listens for a wake word: bands of each 20 ms of samples, a network that remembers, and what counts as the word. */
#include <string.h>

#include "application.h"
#include "decisions.h"
#include "sound.h"

enum { WINDOW = 512, HOP = 320, BANDS = 40, MEAN = 6, REST = 50 };

extern const float threshold; /* app.py writes it, chosen on a recording of its own */

static int16_t samples[WINDOW]; /* the last ones */
static float bands[BANDS];

static void say(int32_t frame) {
    const int32_t hundredths = frame * 2;
    semihosting_text("heard at ");
    semihosting_number((uint64_t)(hundredths / 100));
    semihosting_text(hundredths % 100 < 10 ? ".0" : ".");
    semihosting_number((uint64_t)(hundredths % 100));
    semihosting_text(" s\n");
}

bool application(void) {
    const int32_t net = method_find("listener");
    const int32_t from = semihosting_open("samples.bin", SEMIHOSTING_READ);
    const int32_t scores = semihosting_open("scores.out", SEMIHOSTING_WRITE);
    const int32_t words = semihosting_open("words.out", SEMIHOSTING_WRITE);
    Wake wake = wake_new(threshold, MEAN, REST);
    uint32_t bytes;
    sound_prepare((SoundShape){.window = WINDOW, .bands = BANDS, .low = 60.0, .high = 7600.0});
    for (int32_t frame = 0; semihosting_read(from, samples + WINDOW - HOP, HOP * sizeof *samples); ++frame) {
        sound_mel(samples, bands);
        for (int i = 0; i < BANDS; ++i) bands[i] = (sound_decibels(bands[i]) + 40.0f) / 20.0f;
        memmove(samples, samples + HOP, (WINDOW - HOP) * sizeof *samples);
        memcpy(method_input(net, 0, &bytes), bands, sizeof bands);
        if (bytes != sizeof bands || !method_run(net)) return false;
        const float score = *(const float *)method_output(net, 0, &bytes);
        if (bytes != sizeof score || !semihosting_write(scores, &score, sizeof score)) return false;
        if (!wake_next(&wake, score)) continue;
        say(frame + 1);
        if (!semihosting_write(words, &frame, sizeof frame)) return false;
    }
    semihosting_close(scores);
    semihosting_close(words);
    return true;
}
