/* Boxes of YOLO's outputs: decoding and non-maximum suppression, as boxes.py has them. */
#ifndef APPS_BOXES_H
#define APPS_BOXES_H

#include <stdint.h>

enum { BOXES_MOST = 256 };

typedef struct {
    float left, top, right, bottom, score;
    int32_t kind;
} Box;

/* Of (4 + kinds, anchors), middles and sizes first, the boxes that are sure enough, best first; how many. */
int32_t boxes_decode(const float *output, int32_t kinds, int32_t anchors, float least, Box boxes[BOXES_MOST]);

float boxes_iou(const Box *a, const Box *b);

/* Keeps the best, without those of a kind that overlap a better one; how many are left. */
int32_t boxes_suppress(Box *boxes, int32_t count, float overlap);

#endif
