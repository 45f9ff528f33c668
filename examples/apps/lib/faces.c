#include "faces.h"

#include <string.h>

#include "pictures.h"

enum { SQUARE = 12, STEP = 2, LEVELS = 8, GREY = 128 };

static const struct {
    int32_t top, left, height, width; /* on the canvas */
} levels[LEVELS] = {{0, 0, 144, 192},  {0, 192, 102, 136}, {102, 192, 72, 96}, {144, 0, 51, 68},
                    {144, 68, 36, 48}, {144, 116, 27, 36}, {144, 152, 18, 24}, {144, 176, 12, 16}};

typedef float Shared(const Box *a, const Box *b);

static float least_of(float a, float b) { return a < b ? a : b; }
static float most_of(float a, float b) { return a > b ? a : b; }

void faces_pyramid(const uint8_t *camera, uint8_t *canvas) {
    const Picture picture = {camera, FACES_HEIGHT, FACES_WIDTH, 3 * FACES_WIDTH};
    memset(canvas, GREY, 3 * FACES_CANVAS_HEIGHT * FACES_CANVAS_WIDTH);
    for (int32_t i = 0; i < LEVELS; ++i) {
        uint8_t *const place = canvas + 3 * (levels[i].top * FACES_CANVAS_WIDTH + levels[i].left);
        picture_average(picture, levels[i].height, levels[i].width, place, 3 * FACES_CANVAS_WIDTH);
    }
}

int32_t faces_add(Face found[FACES_MOST], int32_t count, const Face *face) {
    int32_t at = count;
    while (at > 0 && found[at - 1].box.score < face->box.score) --at;
    if (at == FACES_MOST) return count;
    if (count < FACES_MOST) ++count;
    memmove(found + at + 1, found + at, (size_t)(count - at - 1) * sizeof *found);
    found[at] = *face;
    return count;
}

/* How much of the smaller of two boxes is in the other. */
static float covered(const Box *a, const Box *b) {
    const float w = most_of(least_of(a->right, b->right) - most_of(a->left, b->left), 0.0f);
    const float h = most_of(least_of(a->bottom, b->bottom) - most_of(a->top, b->top), 0.0f);
    const float one = (a->right - a->left) * (a->bottom - a->top), two = (b->right - b->left) * (b->bottom - b->top);
    const float least = least_of(one, two);
    return least > 0.0f ? w * h / least : 0.0f;
}

static int32_t suppress(Face *faces, int32_t count, float overlap, Shared *shared) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
        const Box *const box = &faces[i].box;
        int32_t other = 0;
        while (other < kept && (faces[other].box.kind != box->kind || shared(box, &faces[other].box) < overlap))
            ++other;
        if (other == kept) faces[kept++] = faces[i];
    }
    return kept;
}

static void move(Face *face, float more) {
    Box *const box = &face->box;
    const float width = box->right - box->left + more, height = box->bottom - box->top + more;
    box->left += face->moves[0] * width;
    box->top += face->moves[1] * height;
    box->right += face->moves[2] * width;
    box->bottom += face->moves[3] * height;
}

/* Takes the longer side in both directions, about the same middle. */
static void make_square(Box *box) {
    const float width = box->right - box->left, height = box->bottom - box->top, side = most_of(width, height);
    box->left = box->left + width * 0.5f - side * 0.5f;
    box->top = box->top + height * 0.5f - side * 0.5f;
    box->right = box->left + side;
    box->bottom = box->top + side;
}

static int32_t candidates_of(int32_t level, const float *moves, const float *likely, Face *found, int32_t count) {
    const int32_t top = levels[level].top / STEP, left = levels[level].left / STEP;
    const int32_t rows = (levels[level].height - SQUARE) / STEP + 1,
                  columns = (levels[level].width - SQUARE) / STEP + 1;
    const float size = (float)FACES_WIDTH / (float)levels[level].width, side = (SQUARE - 1) * size;
    for (int32_t row = 0; row < rows; ++row) {
        for (int32_t column = 0; column < columns; ++column) {
            const int32_t at = (top + row) * FACES_COLUMNS + left + column;
            if (!(likely[at] >= 0.6f)) continue;
            const float x = (float)(STEP * column + 1) * size, y = (float)(STEP * row + 1) * size;
            Face face = {.box = {x, y, x + side, y + side, likely[at], level}};
            for (int32_t i = 0; i < 4; ++i) face.moves[i] = moves[i * FACES_ROWS * FACES_COLUMNS + at];
            count = faces_add(found, count, &face);
        }
    }
    return count;
}

int32_t faces_candidates(const float *moves, const float *likely, Face found[FACES_MOST]) {
    int32_t count = 0;
    for (int32_t level = 0; level < LEVELS; ++level) count = candidates_of(level, moves, likely, found, count);
    count = suppress(found, count, 0.5f, boxes_iou); /* of each size by itself, then of all */
    for (int32_t i = 0; i < count; ++i) found[i].box.kind = 0;
    count = suppress(found, count, 0.7f, boxes_iou);
    for (int32_t i = 0; i < count; ++i) {
        move(&found[i], 0.0f);
        make_square(&found[i].box);
    }
    return count;
}

bool faces_cut(const uint8_t *camera, const Face *face, int32_t side, uint8_t *cut) {
    int32_t left = (int32_t)face->box.left, top = (int32_t)face->box.top;
    int32_t right = (int32_t)face->box.right, bottom = (int32_t)face->box.bottom;
    left = left < 1 ? 0 : left - 1, top = top < 1 ? 0 : top - 1;
    right = right > FACES_WIDTH ? FACES_WIDTH : right, bottom = bottom > FACES_HEIGHT ? FACES_HEIGHT : bottom;
    if (right <= left || bottom <= top) return false;
    const uint8_t *const first = camera + 3 * (top * FACES_WIDTH + left);
    picture_average((Picture){first, bottom - top, right - left, 3 * FACES_WIDTH}, side, side, cut, 3 * side);
    return true;
}

static int32_t keep_likely(Face *found, int32_t count) {
    int32_t kept = 0;
    while (kept < count && found[kept].box.score > 0.7f) ++kept;
    return kept;
}

int32_t faces_refine(Face *found, int32_t count) {
    count = suppress(found, keep_likely(found, count), 0.7f, boxes_iou);
    for (int32_t i = 0; i < count; ++i) {
        move(&found[i], 1.0f);
        make_square(&found[i].box);
    }
    return count;
}

int32_t faces_finish(Face *found, int32_t count) {
    count = keep_likely(found, count);
    for (int32_t i = 0; i < count; ++i) {
        const Box *const box = &found[i].box;
        const float width = box->right - box->left + 1.0f, height = box->bottom - box->top + 1.0f;
        for (int32_t p = 0; p < 5; ++p) {
            found[i].points[p] = width * found[i].points[p] + box->left - 1.0f;
            found[i].points[p + 5] = height * found[i].points[p + 5] + box->top - 1.0f;
        }
        move(&found[i], 1.0f);
    }
    return suppress(found, count, 0.7f, covered);
}
