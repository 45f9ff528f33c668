/* Names what a camera sees: resizing, the network, the five likeliest of a thousand things. */
#include "application.h"
#include "chances.h"
#include "names.h"
#include "pictures.h"

enum { CAMERA = 288, SIZE = 224, KINDS = 1000, SHOWN = 5 };

static uint8_t camera[CAMERA * CAMERA * 3], small[SIZE * SIZE * 3];
static float likely[KINDS];

bool application(void) {
    static const float mean[3] = {127.0f / 255.0f, 127.0f / 255.0f, 127.0f / 255.0f};
    static const float deviation[3] = {128.0f / 255.0f, 128.0f / 255.0f, 128.0f / 255.0f};
    const int32_t net = method_find("efficientnet");
    const int32_t from = semihosting_open("pictures.bin", SEMIHOSTING_READ);
    uint32_t bytes;
    while (semihosting_read(from, camera, sizeof camera)) {
        picture_resize((Picture){camera, CAMERA, CAMERA, CAMERA * 3}, SIZE, SIZE, small);
        float *const planes = method_input(net, 0, &bytes);
        if (bytes != sizeof small * sizeof(float)) return false;
        picture_planes(small, SIZE * SIZE, mean, deviation, planes, SIZE * SIZE);
        if (!method_run(net)) return false;
        const float *const scores = method_output(net, 0, &bytes);
        if (bytes != sizeof likely) return false;
        int32_t best[SHOWN];
        chances(scores, KINDS, 1.0f, likely);
        chances_best(likely, KINDS, SHOWN, best);
        for (int32_t i = 0; i < SHOWN; ++i) {
            semihosting_number((uint64_t)(likely[best[i]] * 100.0f + 0.5f));
            semihosting_text("% ");
            semihosting_text(names[best[i]]);
            semihosting_text("\n");
        }
        semihosting_text("\n");
    }
    return true;
}
