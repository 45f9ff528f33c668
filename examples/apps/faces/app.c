/* Finds faces in a camera's pictures: P-Net where they may be, R-Net which are, O-Net their eyes, nose and mouth. */
#include "application.h"
#include "faces.h"
#include "pictures.h"

enum {
    CANVAS = FACES_CANVAS_HEIGHT * FACES_CANVAS_WIDTH,
    CELLS = FACES_ROWS * FACES_COLUMNS,
    R_SIDE = 24,
    O_SIDE = 48
};

static uint8_t camera[FACES_HEIGHT * FACES_WIDTH * 3], pixels[CANVAS * 3];
static Face faces[FACES_MOST], judged[FACES_MOST];

static bool run(int32_t net, int32_t count) {
    static const float mean[3] = {0.5f, 0.5f, 0.5f};
    static const float deviation[3] = {128.0f / 255.0f, 128.0f / 255.0f, 128.0f / 255.0f};
    uint32_t bytes;
    float *const planes = method_input(net, 0, &bytes);
    if (bytes != (uint32_t)count * 3 * sizeof(float)) return false;
    picture_planes(pixels, count, mean, deviation, planes, count);
    return method_run(net);
}

static const float *output(int32_t net, uint32_t index, uint32_t count) {
    uint32_t bytes;
    const float *const values = method_output(net, index, &bytes);
    return bytes == count * sizeof(float) ? values : NULL;
}

/* Faces with the scores, moves and points that a network gives them, best first; how many, or -1. */
static int32_t judge(int32_t net, int32_t count, int32_t side, bool points) {
    int32_t found = 0;
    for (int32_t i = 0; i < count; ++i) {
        Face face = faces[i];
        if (!faces_cut(camera, &face, side, pixels)) continue;
        if (!run(net, side * side)) return -1;
        const float *const moves = output(net, 0, 4), *const likely = output(net, points ? 2 : 1, 2);
        const float *const places = points ? output(net, 1, 10) : face.points;
        if (moves == NULL || likely == NULL || places == NULL) return -1;
        face.box.score = likely[1];
        for (int32_t k = 0; k < 4; ++k) face.moves[k] = moves[k];
        for (int32_t k = 0; k < 10; ++k) face.points[k] = places[k];
        found = faces_add(judged, found, &face);
    }
    return found;
}

static int32_t find(int32_t p_net, int32_t r_net, int32_t o_net) {
    faces_pyramid(camera, pixels);
    if (!run(p_net, CANVAS)) return -1;
    const float *const moves = output(p_net, 0, 4 * CELLS), *const likely = output(p_net, 1, 2 * CELLS);
    if (moves == NULL || likely == NULL) return -1;
    int32_t count = judge(r_net, faces_candidates(moves, likely + CELLS, faces), R_SIDE, false);
    if (count < 0) return -1;
    count = faces_refine(judged, count);
    for (int32_t i = 0; i < count; ++i) faces[i] = judged[i];
    count = judge(o_net, count, O_SIDE, true);
    return count < 0 ? -1 : faces_finish(judged, count);
}

bool application(void) {
    const int32_t p_net = method_find("pnet"), r_net = method_find("rnet"), o_net = method_find("onet");
    const int32_t from = semihosting_open("pictures.bin", SEMIHOSTING_READ);
    const int32_t to = semihosting_open("faces.out", SEMIHOSTING_WRITE);
    for (int32_t picture = 0; semihosting_read(from, camera, sizeof camera); ++picture) {
        const int32_t count = find(p_net, r_net, o_net);
        if (count < 0) return false;
        for (int32_t i = 0; i < count; ++i)
            if (!semihosting_write(to, &picture, sizeof picture) ||
                !semihosting_write(to, &judged[i], sizeof judged[i]))
                return false;
    }
    semihosting_close(to);
    return true;
}
