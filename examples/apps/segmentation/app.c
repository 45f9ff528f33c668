/* Says of every pixel of a picture which shape it belongs to. */
#include "application.h"
#include "pictures.h"

enum { SIZE = 64, PIXELS = SIZE * SIZE, KINDS = 4 };

static uint8_t picture[PIXELS * 3], mask[PIXELS];

bool application(void) {
    static const float half[3] = {0.5f, 0.5f, 0.5f};
    const int32_t net = method_find("unet");
    const int32_t from = semihosting_open("pictures.bin", SEMIHOSTING_READ);
    const int32_t to = semihosting_open("masks.out", SEMIHOSTING_WRITE);
    uint32_t bytes;
    while (semihosting_read(from, picture, sizeof picture)) {
        float *const planes = method_input(net, 0, &bytes);
        if (bytes != sizeof picture * sizeof(float)) return false;
        picture_planes(picture, PIXELS, half, half, planes, PIXELS);
        if (!method_run(net)) return false;
        const float *const scores = method_output(net, 0, &bytes);
        if (bytes != KINDS * PIXELS * sizeof(float)) return false;
        for (int32_t i = 0; i < PIXELS; ++i) {
            uint8_t best = 0;
            for (uint8_t k = 1; k < KINDS; ++k)
                if (scores[k * PIXELS + i] > scores[best * PIXELS + i]) best = k;
            mask[i] = best;
        }
        if (!semihosting_write(to, mask, sizeof mask)) return false;
    }
    semihosting_close(to);
    return true;
}
