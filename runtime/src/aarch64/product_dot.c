/* The matrix product for AArch64 with dot products: four products and their sum in one instruction for each of four
 * channels. A register of a holds four groups, of which an instruction takes one: eight rows and eight channels are
 * 64 instructions for 16 loads. */
#include "neon.h"

#define ROWS 8u

/* One group of eight channels with lane `lane` of every row. */
#define ADD_GROUP(lane)                                                     \
    do {                                                                    \
        const int8x16x2_t w = neutron_load_group(weights, lanes);           \
        weights += lanes * NEUTRON_GROUP;                                   \
        _Pragma("GCC unroll 8") for (uint32_t r = 0; r < rows; ++r) {       \
            sums[r][0] = vdotq_laneq_s32(sums[r][0], w.val[0], x[r], lane); \
            sums[r][1] = vdotq_laneq_s32(sums[r][1], w.val[1], x[r], lane); \
        }                                                                   \
    } while (0)

NEUTRON_INLINE void tile(const NeutronProduct *p, const NeutronBlock8 *b, uint32_t row, uint32_t rows, uint32_t lanes) {
    const size_t pitch = p->g.a_pitch;
    const int8_t *weights = b->weights;
    int32x4_t sums[ROWS][2];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; ++r) {
        sums[r][0] = b->start[0];
        sums[r][1] = b->start[1];
    }
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a = p->parts[part] + row * pitch;
        uint32_t left = p->part_bytes;
        for (; left >= 4u * NEUTRON_GROUP; left -= 4u * NEUTRON_GROUP, a += 4u * NEUTRON_GROUP) {
            int8x16_t x[ROWS];
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; ++r) x[r] = vld1q_s8(a + r * pitch);
            ADD_GROUP(0);
            ADD_GROUP(1);
            ADD_GROUP(2);
            ADD_GROUP(3);
        }
        for (uint32_t count; left > 0; left -= count, a += count) {
            int8x16_t x[ROWS];
            count = left < NEUTRON_GROUP ? left : NEUTRON_GROUP;
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; ++r) {
                const int8_t *at = a + r * pitch;
                x[r] = count == NEUTRON_GROUP ? neutron_load4(at, 4) : neutron_load4(at, count);
            }
            ADD_GROUP(0);
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; ++r) neutron_store8(&p->g, row + r, b, lanes, sums[r][0], sums[r][1]);
}

static void block_rows(const NeutronProduct *p, const NeutronBlock8 *b, uint32_t begin, uint32_t end) {
    uint32_t i = begin;
    if (b->lanes == NEUTRON_BLOCK) {
        for (; i + ROWS <= end; i += ROWS) tile(p, b, i, ROWS, NEUTRON_BLOCK);
        for (; i < end; ++i) tile(p, b, i, 1, NEUTRON_BLOCK);
    } else {
        for (; i + ROWS <= end; i += ROWS) tile(p, b, i, ROWS, b->lanes);
        for (; i < end; ++i) tile(p, b, i, 1, b->lanes);
    }
}

static void run(const NeutronProduct *p) { neutron_product_blocks(p, block_rows); }

const NeutronProductCode neutron_product_dot = {
    .start = neutron_product_start, .run = run, .copy = neutron_product_copy};
