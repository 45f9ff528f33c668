/* Elements that are gathered from anywhere (transposes, other orders of dimensions, expansions, slices), and rows. */
#include "cpu_kernels.h"

#include <string.h>

#define UNROLL _Pragma("GCC unroll 4")

/* The longer of the two last dimensions is the inner loop. */
#define GATHER(TYPE)                                                                       \
    do {                                                                                   \
        const TYPE *from = in;                                                             \
        TYPE *to = out;                                                                    \
        do {                                                                               \
            for (size_t r = 0; r < outer; ++r) {                                           \
                const TYPE *element = from + (ptrdiff_t)(at[0] + r * outer_step);          \
                TYPE *place = to + r * outer_place;                                        \
                size_t n = inner;                                                          \
                for (; n >= 4; n -= 4, place += 4 * inner_place, element += 4 * by) {      \
                    place[0] = element[0];                                                 \
                    place[inner_place] = element[by];                                      \
                    place[2 * inner_place] = element[2 * by];                              \
                    place[3 * inner_place] = element[3 * by];                              \
                }                                                                          \
                for (; n > 0; --n, place += inner_place, element += by) *place = *element; \
            }                                                                              \
            to += inner * outer;                                                           \
        } while (cpu_walk_next(walk, 2, index, at));                                       \
    } while (0)

void cpu_gather(const CpuWalk *walk, const void *in, void *out, size_t element_bytes) {
    const size_t rank = walk->rank;
    const size_t count = rank > 0 ? walk->size[rank - 1] : 1, step = rank > 0 ? walk->step[0][rank - 1] : 1;
    const size_t rows = rank > 1 ? walk->size[rank - 2] : 1, row_step = rank > 1 ? walk->step[0][rank - 2] : 0;
    size_t index[CPU_RANK] = {0}, at[CPU_READ] = {0};
    if (step == 1 && count >= 16) {
        char *to = out;
        const size_t bytes = count * element_bytes;
        do {
            memcpy(to, (const char *)in + (ptrdiff_t)(at[0] * element_bytes), bytes);
            to += bytes;
        } while (cpu_walk_next(walk, 1, index, at));
        return;
    }
    const bool turned = count < 16 && count < rows;
    const size_t inner = turned ? rows : count, outer = turned ? count : rows;
    const size_t inner_step = turned ? row_step : step, outer_step = turned ? step : row_step;
    const ptrdiff_t by = (ptrdiff_t)inner_step;
    const size_t inner_place = turned ? count : 1, outer_place = turned ? 1 : count;
    switch (element_bytes) {
        case 1: GATHER(uint8_t); break;
        case 2: GATHER(uint16_t); break;
        case 4: GATHER(uint32_t); break;
        default: GATHER(uint64_t); break;
    }
}

void cpu_copy_rows(const void *in, void *out, size_t rows, size_t bytes, size_t in_step, size_t out_step) {
    const char *from = in;
    char *to = out;
    const bool words = ((uintptr_t)from | (uintptr_t)to | bytes | in_step | out_step) % sizeof(uint32_t) == 0;
    if (!words || bytes > 32) {
        for (; rows > 0; --rows, from += in_step, to += out_step) memcpy(to, from, bytes);
        return;
    }
    const size_t in_by = in_step / sizeof(uint32_t), out_by = out_step / sizeof(uint32_t);
    for (size_t column = 0; column < bytes; column += sizeof(uint32_t)) {
        const uint32_t *word = (const uint32_t *)(const void *)(from + column);
        uint32_t *place = (uint32_t *)(void *)(to + column);
        UNROLL for (size_t row = 0; row < rows; ++row, word += in_by, place += out_by) *place = *word;
    }
}
