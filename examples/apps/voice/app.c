/* Says where somebody speaks: frames of samples, Silero's network with its state inside, and what counts as speech. */
#include <string.h>

#include "application.h"
#include "decisions.h"

enum { FRAME = 512, CONTEXT = 64, RATE = 16000 };

static int16_t samples[FRAME];
static float heard[CONTEXT + FRAME]; /* a frame, and the end of the one before */

static void say_time(int32_t frame) {
    const int32_t tenths = (int32_t)((int64_t)frame * FRAME * 10 / RATE);
    semihosting_number((uint64_t)(tenths / 10));
    semihosting_text(".");
    semihosting_number((uint64_t)(tenths % 10));
}

static bool say(int32_t to, Segment segment) {
    semihosting_text("speech from ");
    say_time(segment.first);
    semihosting_text(" to ");
    say_time(segment.behind);
    semihosting_text(" s\n");
    return semihosting_write(to, &segment, sizeof segment);
}

bool application(void) {
    const int32_t net = method_find("detector");
    const int32_t from = semihosting_open("samples.bin", SEMIHOSTING_READ);
    const int32_t likelihoods = semihosting_open("likely.out", SEMIHOSTING_WRITE);
    const int32_t segments = semihosting_open("segments.out", SEMIHOSTING_WRITE);
    Speech speech = speech_new(0.5f, 0.35f, 4, 1);
    Segment found;
    uint32_t bytes;
    while (semihosting_read(from, samples, sizeof samples)) {
        memmove(heard, heard + FRAME, CONTEXT * sizeof *heard);
        for (int i = 0; i < FRAME; ++i) heard[CONTEXT + i] = (float)samples[i] / 32768.0f;
        memcpy(method_input(net, 0, &bytes), heard, sizeof heard);
        if (bytes != sizeof heard || !method_run(net)) return false;
        const float likely = *(const float *)method_output(net, 0, &bytes);
        if (bytes != sizeof likely || !semihosting_write(likelihoods, &likely, sizeof likely)) return false;
        if (speech_next(&speech, likely, &found) && !say(segments, found)) return false;
    }
    if (speech_end(&speech, &found) && !say(segments, found)) return false;
    semihosting_close(likelihoods);
    semihosting_close(segments);
    return true;
}
