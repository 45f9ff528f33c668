/* Text: where lines are on a map of likelihoods, and what columns of characters say; as text.py has it. */
#ifndef APPS_TEXT_H
#define APPS_TEXT_H

#include <stdint.h>

enum { TEXT_MOST = 64 };

typedef struct {
    int32_t left, top, right, bottom, line;
} Region;

/* Connected pixels that are text, as rectangles with a margin, in the order of reading; how many. `waiting` has room
 * for height * width pixels; the map is overwritten. */
int32_t text_regions(float *likely, int32_t height, int32_t width, float least, int32_t *waiting,
                     Region found[TEXT_MOST]);

/* The likeliest character of every column, repeats and the first, which is none, dropped; how many. */
int32_t text_read_columns(const float *scores, int32_t columns, int32_t characters, int32_t *found);

#endif
