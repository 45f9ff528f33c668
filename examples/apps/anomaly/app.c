/* Judges clips of a machine's sound: features, the autoencoder, and the error of what it reconstructs. */
#include <string.h>

#include "application.h"
#include "sound.h"

enum { CLIP = 32000, WINDOW = 1024, HOP = 512, BANDS = 128, FRAMES = 5, VALUES = FRAMES * BANDS };

static int16_t clip[CLIP];
static float frames[VALUES]; /* the last five, oldest first */

bool application(void) {
    const int32_t net = method_find("autoencoder");
    const int32_t from = semihosting_open("sounds.bin", SEMIHOSTING_READ);
    const int32_t to = semihosting_open("scores.out", SEMIHOSTING_WRITE);
    uint32_t bytes;
    sound_prepare((SoundShape){.window = WINDOW, .bands = BANDS, .low = 0.0, .high = 8000.0});
    while (semihosting_read(from, clip, sizeof clip)) {
        float error = 0.0f;
        int count = 0;
        for (int at = 0; at + WINDOW <= CLIP; at += HOP) {
            float *const newest = frames + VALUES - BANDS;
            memmove(frames, frames + BANDS, sizeof frames - BANDS * sizeof *frames);
            sound_mel(clip + at, newest);
            for (int i = 0; i < BANDS; ++i) newest[i] = (sound_decibels(newest[i]) + 50.0f) / 20.0f;
            if (at < (FRAMES - 1) * HOP) continue;
            memcpy(method_input(net, 0, &bytes), frames, sizeof frames);
            if (bytes != sizeof frames || !method_run(net)) return false;
            const float *const found = method_output(net, 0, &bytes);
            for (int i = 0; i < VALUES; ++i) error += (found[i] - frames[i]) * (found[i] - frames[i]) / VALUES;
            ++count;
        }
        error /= (float)count;
        if (!semihosting_write(to, &error, sizeof error)) return false;
    }
    semihosting_close(to);
    return true;
}
