/* The matrix product for any AArch64: products of bytes in 16 bits, added up in pairs (exact: -128 * -128 fits). */
#include "neon.h"

/* Rows of a and of the result that stay in the cache while all channels pass. */
#define CACHE_BYTES 32768u

static NeutronBlock8 prepare(const NeutronProduct *p, uint32_t channel) {
    const NeutronGemm *g = &p->g;
    NeutronBlock8 b = {.weights = g->weights + channel * neutron_groups(g->k) * NEUTRON_GROUP,
                       .channel = channel,
                       .lanes = g->n - channel < NEUTRON_BLOCK ? g->n - channel : NEUTRON_BLOCK};
    int32_t start[NEUTRON_BLOCK] = {0}, multiplier[NEUTRON_BLOCK] = {0}, shift[NEUTRON_BLOCK] = {0};
    memcpy(start, (p->start ? p->start : g->bias) + channel, b.lanes * sizeof *start);
    if (g->raw == NULL) {
        memcpy(multiplier, g->multiplier + channel, b.lanes * sizeof *multiplier);
        memcpy(shift, g->shift + channel, b.lanes * sizeof *shift);
    }
    b.start[0] = vld1q_s32(start);
    b.start[1] = vld1q_s32(start + 4);
    b.end = neutron_end8(multiplier, shift, g->zero, g->low, g->high);
    return b;
}

void neutron_product_blocks(const NeutronProduct *p, NeutronBlockFunction *block_rows) {
    const NeutronGemm *g = &p->g;
    uint32_t at_once = CACHE_BYTES / (g->k < CACHE_BYTES ? g->k : CACHE_BYTES) / 8u * 8u;
    if (at_once < 16u) at_once = 16u;
    for (uint32_t begin = 0, end; begin < g->m; begin = end) {
        end = g->m - begin < 2u * at_once ? g->m : begin + at_once;
        for (uint32_t j = 0; j < g->n; j += NEUTRON_BLOCK) {
            const NeutronBlock8 block = prepare(p, j);
            NeutronProduct line = *p;
            for (uint32_t i = 0; i < (p->lines ? p->line_count : 1u); ++i, line.parts += p->part_count) {
                if (p->lines) line.g.out = p->lines[i];
                block_rows(&line, &block, begin, end);
            }
        }
    }
}

void neutron_product_start(const int8_t *weights, uint32_t k, uint32_t n, const int32_t *bias, int32_t *to) {
    (void)weights;
    (void)k;
    memcpy(to, bias, n * sizeof *to);
}

void neutron_product_copy(int8_t *to, const int8_t *from, size_t bytes) { memcpy(to, from, bytes); }

/* Four rows or one. Each 32-bit lane gathers two of the four products of a channel; pairs of lanes are joined at the
 * end. */
NEUTRON_INLINE void tile(const NeutronProduct *p, const NeutronBlock8 *b, uint32_t row, uint32_t rows, uint32_t lanes) {
    const size_t pitch = p->g.a_pitch;
    const int8_t *weights = b->weights;
    int32x4_t sums[4][4];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = vdupq_n_s32(0);
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a = p->parts[part] + row * pitch;
        for (uint32_t left = p->part_bytes; left > 0; a += NEUTRON_GROUP, weights += lanes * NEUTRON_GROUP) {
            const uint32_t count = left < NEUTRON_GROUP ? left : NEUTRON_GROUP;
            const int8x16x2_t w = neutron_load_group(weights, lanes);
#pragma GCC unroll 4
            for (uint32_t r = 0; r < rows; ++r) {
                const int8_t *at = a + r * pitch;
                const int8x8_t x =
                    vget_low_s8(count == NEUTRON_GROUP ? neutron_load4(at, 4) : neutron_load4(at, count));
#pragma GCC unroll 2
                for (uint32_t h = 0; h < 2; ++h) {
                    sums[r][2 * h] = vpadalq_s16(sums[r][2 * h], vmull_s8(vget_low_s8(w.val[h]), x));
                    sums[r][2 * h + 1] = vpadalq_s16(sums[r][2 * h + 1], vmull_s8(vget_high_s8(w.val[h]), x));
                }
            }
            left -= count;
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; ++r) {
        neutron_store8(&p->g, row + r, b, lanes, vaddq_s32(vpaddq_s32(sums[r][0], sums[r][1]), b->start[0]),
                       vaddq_s32(vpaddq_s32(sums[r][2], sums[r][3]), b->start[1]));
    }
}

static void block_rows(const NeutronProduct *p, const NeutronBlock8 *b, uint32_t begin, uint32_t end) {
    uint32_t i = begin;
    if (b->lanes == NEUTRON_BLOCK) {
        for (; i + 4u <= end; i += 4u) tile(p, b, i, 4, NEUTRON_BLOCK);
        for (; i < end; ++i) tile(p, b, i, 1, NEUTRON_BLOCK);
    } else {
        for (; i + 4u <= end; i += 4u) tile(p, b, i, 4, b->lanes);
        for (; i < end; ++i) tile(p, b, i, 1, b->lanes);
    }
}

static void run(const NeutronProduct *p) { neutron_product_blocks(p, block_rows); }

const NeutronProductCode neutron_product_neon = {
    .start = neutron_product_start, .run = run, .copy = neutron_product_copy};
