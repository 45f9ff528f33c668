#include "boxes.h"

#include <string.h>

/* Where a score goes among sorted boxes: behind those that are as good. */
static int32_t rank(const Box *boxes, int32_t count, float score) {
    while (count > 0 && boxes[count - 1].score < score) --count;
    return count;
}

int32_t boxes_decode(const float *output, int32_t kinds, int32_t anchors, float least, Box boxes[BOXES_MOST]) {
    const float *const scores = output + 4 * anchors;
    int32_t count = 0;
    for (int32_t i = 0; i < anchors; ++i) {
        int32_t kind = 0;
        for (int32_t k = 1; k < kinds; ++k)
            if (scores[k * anchors + i] > scores[kind * anchors + i]) kind = k;
        const float score = scores[kind * anchors + i];
        if (!(score >= least)) continue;
        const int32_t at = rank(boxes, count, score);
        if (at == BOXES_MOST) continue;
        if (count < BOXES_MOST) ++count;
        memmove(boxes + at + 1, boxes + at, (size_t)(count - at - 1) * sizeof *boxes);
        const float x = output[i], y = output[anchors + i];
        const float w = output[2 * anchors + i] * 0.5f, h = output[3 * anchors + i] * 0.5f;
        boxes[at] = (Box){x - w, y - h, x + w, y + h, score, kind};
    }
    return count;
}

static float least_of(float a, float b) { return a < b ? a : b; }
static float most_of(float a, float b) { return a > b ? a : b; }

float boxes_iou(const Box *a, const Box *b) {
    const float w = most_of(least_of(a->right, b->right) - most_of(a->left, b->left), 0.0f);
    const float h = most_of(least_of(a->bottom, b->bottom) - most_of(a->top, b->top), 0.0f);
    const float one = (a->right - a->left) * (a->bottom - a->top), two = (b->right - b->left) * (b->bottom - b->top);
    const float both = one + two - w * h;
    return both > 0.0f ? w * h / both : 0.0f;
}

int32_t boxes_suppress(Box *boxes, int32_t count, float overlap) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
        int32_t other = 0;
        while (other < kept && (boxes[other].kind != boxes[i].kind || boxes_iou(&boxes[i], &boxes[other]) < overlap))
            ++other;
        if (other == kept) boxes[kept++] = boxes[i];
    }
    return kept;
}
