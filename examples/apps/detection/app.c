/* Finds faces in a camera's pictures: resizing, the network, decoding, suppression. */
#include <string.h>

#include "application.h"
#include "boxes.h"
#include "pictures.h"

enum { SIZE = 320, HEIGHT = 480, WIDTH = 640, KINDS = 18, ANCHORS = 2100, FACE = 1, OTHER_FACE = 12 };

static uint8_t camera[HEIGHT * WIDTH * 3], small[SIZE * HEIGHT / WIDTH * SIZE * 3];
static Box boxes[BOXES_MOST];

static int32_t only_faces(int32_t count) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
        if (boxes[i].kind != FACE && boxes[i].kind != OTHER_FACE) continue;
        boxes[kept] = boxes[i];
        boxes[kept++].kind = FACE;
    }
    return kept;
}

bool application(void) {
    static const float none[3] = {0.0f, 0.0f, 0.0f}, one[3] = {1.0f, 1.0f, 1.0f};
    const int32_t net = method_find("yolo"), rows = SIZE * HEIGHT / WIDTH;
    const int32_t from = semihosting_open("pictures.bin", SEMIHOSTING_READ);
    const int32_t to = semihosting_open("boxes.out", SEMIHOSTING_WRITE);
    uint32_t bytes;
    for (int32_t picture = 0; semihosting_read(from, camera, sizeof camera); ++picture) {
        picture_resize((Picture){camera, HEIGHT, WIDTH, WIDTH * 3}, rows, SIZE, small);
        float *const planes = method_input(net, 0, &bytes);
        if (bytes != 3 * SIZE * SIZE * sizeof(float)) return false;
        memset(planes, 0, bytes); /* black below the picture */
        picture_planes(small, rows * SIZE, none, one, planes, SIZE * SIZE);
        if (!method_run(net)) return false;
        const float *const output = method_output(net, 0, &bytes);
        if (bytes != (4 + KINDS) * ANCHORS * sizeof(float)) return false;
        int32_t count = boxes_decode(output, KINDS, ANCHORS, 0.25f, boxes);
        count = boxes_suppress(boxes, only_faces(count), 0.45f);
        for (int32_t i = 0; i < count; ++i) {
            Box *const box = &boxes[i];
            const float scale = (float)WIDTH / SIZE;
            box->left *= scale, box->top *= scale, box->right *= scale, box->bottom *= scale;
            if (!semihosting_write(to, &picture, sizeof picture) || !semihosting_write(to, box, sizeof *box))
                return false;
        }
    }
    semihosting_close(to);
    return true;
}
