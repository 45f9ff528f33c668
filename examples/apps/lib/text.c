#include "text.h"

enum { LEAST_PIXELS = 12, LEAST_SIDE = 3 };

static int32_t least_of(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t most_of(int32_t a, int32_t b) { return a > b ? a : b; }

/* Takes all pixels that hang together with the first off the map; how many there are. */
static int32_t take(float *likely, int32_t height, int32_t width, float least, int32_t *waiting, int32_t first,
                    Region *region) {
    int32_t count = 1, pixels = 0;
    waiting[0] = first;
    likely[first] = 0.0f;
    *region = (Region){first % width, first / width, first % width + 1, first / width + 1, 0};
    while (count > 0) {
        const int32_t at = waiting[--count], row = at / width, column = at % width;
        const int32_t beside[4] = {row > 0 ? at - width : -1, row + 1 < height ? at + width : -1,
                                   column > 0 ? at - 1 : -1, column + 1 < width ? at + 1 : -1};
        ++pixels;
        region->left = least_of(region->left, column);
        region->right = most_of(region->right, column + 1);
        region->top = least_of(region->top, row);
        region->bottom = most_of(region->bottom, row + 1);
        for (int i = 0; i < 4; ++i) {
            if (beside[i] < 0 || !(likely[beside[i]] > least)) continue;
            likely[beside[i]] = 0.0f;
            waiting[count++] = beside[i];
        }
    }
    return pixels;
}

static void add_margin(Region *region, int32_t height, int32_t width) {
    const int32_t w = region->right - region->left, h = region->bottom - region->top;
    const int32_t margin = 3 * w * h / (4 * (w + h));
    region->left = most_of(0, region->left - margin);
    region->top = most_of(0, region->top - margin);
    region->right = least_of(width, region->right + margin);
    region->bottom = least_of(height, region->bottom + margin);
}

static int is_before(const Region *a, const Region *b, int by_line) {
    if (!by_line) return a->top + a->bottom < b->top + b->bottom;
    return a->line != b->line ? a->line < b->line : a->left < b->left;
}

static void sort(Region *found, int32_t count, int by_line) {
    for (int32_t i = 1; i < count; ++i) {
        const Region one = found[i];
        int32_t at = i;
        for (; at > 0 && is_before(&one, &found[at - 1], by_line); --at) found[at] = found[at - 1];
        found[at] = one;
    }
}

int32_t text_regions(float *likely, int32_t height, int32_t width, float least, int32_t *waiting,
                     Region found[TEXT_MOST]) {
    int32_t count = 0;
    for (int32_t i = 0; i < height * width && count < TEXT_MOST; ++i) {
        if (!(likely[i] > least)) continue;
        Region *const region = &found[count];
        const int32_t pixels = take(likely, height, width, least, waiting, i, region);
        if (pixels < LEAST_PIXELS || region->bottom - region->top < LEAST_SIDE) continue;
        add_margin(region, height, width);
        ++count;
    }
    sort(found, count, 0);
    for (int32_t i = 1, first = 0; i < count; ++i) {
        const int next = found[i].top + found[i].bottom >= 2 * found[first].bottom;
        found[i].line = found[first].line + next;
        if (next) first = i;
    }
    sort(found, count, 1);
    return count;
}

int32_t text_read_columns(const float *scores, int32_t columns, int32_t characters, int32_t *found) {
    int32_t count = 0, before = 0;
    for (int32_t column = 0; column < columns; ++column, scores += characters) {
        int32_t best = 0;
        for (int32_t c = 1; c < characters; ++c)
            if (scores[c] > scores[best]) best = c;
        if (best != 0 && best != before) found[count++] = best;
        before = best;
    }
    return count;
}
