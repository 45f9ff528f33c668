/* The vectorised inner parts for AArch64 and the arithmetic they share. Every function here gives the same bits as
 * its portable twin (tests run both on every case). */
#ifndef NEUTRON_NEON_H
#define NEUTRON_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "add.h"
#include "depthwise.h"
#include "table.h"
#include "vector/product.h"

#define NEUTRON_INLINE static inline __attribute__((always_inline))

void neutron_depthwise_neon(const NeutronDepthwise *d);
void neutron_add_row_neon(const void *parameters, const NeutronRow *row);
void neutron_table_rows_neon(const NeutronTableRows *t);

/* Multipliers and shifts of four channels; `right` is not positive. */
typedef struct {
    int32x4_t multiplier, left, right;
} NeutronScale4;

NEUTRON_INLINE NeutronScale4 neutron_scale4(int32x4_t multiplier, int32x4_t shift) {
    const int32x4_t none = vdupq_n_s32(0), bits = vdupq_n_s32(31);
    NeutronScale4 s = {multiplier, vandq_s32(vmaxq_s32(shift, none), bits),
                       vnegq_s32(vandq_s32(vnegq_s32(vminq_s32(shift, none)), bits))};
    return s;
}

/* neutron_scale (arithmetic.h) of four values. The doubling multiplication is neutron_high_mul, its saturation
 * included; halves go away from zero because 1 is taken from a negative number that is going to be shifted. */
NEUTRON_INLINE int32x4_t neutron_apply_scale4(int32x4_t x, const NeutronScale4 *s) {
    int32x4_t high = vqrdmulhq_s32(vshlq_s32(x, s->left), s->multiplier);
    int32x4_t less = vshrq_n_s32(vandq_s32(high, s->right), 31);
    return vrshlq_s32(vqaddq_s32(high, less), s->right);
}

/* What turns sums into bytes, for eight channels. */
typedef struct {
    NeutronScale4 scale[2];
    int32x4_t zero;
    int8x8_t low, high;
} NeutronEnd8;

NEUTRON_INLINE NeutronEnd8 neutron_end8(const int32_t *multiplier, const int32_t *shift, int32_t zero, int32_t low,
                                        int32_t high) {
    NeutronEnd8 e = {
        {neutron_scale4(vld1q_s32(multiplier), vld1q_s32(shift)),
         neutron_scale4(vld1q_s32(multiplier + 4), vld1q_s32(shift + 4))},
        vdupq_n_s32(zero),
        vdup_n_s8((int8_t)low),
        vdup_n_s8((int8_t)high),
    };
    return e;
}

/* Eight bytes; as in the portable code a value wraps to 32 bits, and then it is clamped. */
NEUTRON_INLINE int8x8_t neutron_bytes8(int32x4_t first, int32x4_t second, const NeutronEnd8 *e) {
    first = vaddq_s32(neutron_apply_scale4(first, &e->scale[0]), e->zero);
    second = vaddq_s32(neutron_apply_scale4(second, &e->scale[1]), e->zero);
    int8x8_t bytes = vqmovn_s16(vcombine_s16(vqmovn_s32(first), vqmovn_s32(second)));
    return vmin_s8(vmax_s8(bytes, e->low), e->high);
}

/* --- what the matrix products share --- */

/* A block of channels: where its weights are, what its sums start from and how they end. */
typedef struct {
    const int8_t *weights;
    uint32_t channel, lanes;
    int32x4_t start[2];
    NeutronEnd8 end;
} NeutronBlock8;

/* A group of a block that may have fewer than eight channels; nothing behind it is read. */
NEUTRON_INLINE int8x16x2_t neutron_load_group(const int8_t *weights, uint32_t lanes) {
    int8_t padded[32] = {0};
    if (lanes < 8u) {
        memcpy(padded, weights, lanes * 4u);
        weights = padded;
    }
    int8x16x2_t group = {{vld1q_s8(weights), vld1q_s8(weights + 16)}};
    return group;
}

/* Four values of a in every lane; of a row's last ones, `count` and zeros. */
NEUTRON_INLINE int8x16_t neutron_load4(const int8_t *a, uint32_t count) {
    int32_t word = 0;
    memcpy(&word, a, count);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

/* Store one row of a block: sums to `raw`, or scaled bytes to `out`. */
NEUTRON_INLINE void neutron_store8(const NeutronGemm *g, uint32_t row, const NeutronBlock8 *b, uint32_t lanes,
                                   int32x4_t first, int32x4_t second) {
    if (g->raw) {
        int32_t sums[8];
        vst1q_s32(sums, first);
        vst1q_s32(sums + 4, second);
        memcpy(g->raw + (size_t)row * g->n + b->channel, sums, lanes * sizeof *sums);
        return;
    }
    int8_t *to = g->out + row * g->out_pitch + b->channel;
    int8x8_t bytes = neutron_bytes8(first, second, &b->end);
    if (lanes == 8u) {
        vst1_s8(to, bytes);
    } else {
        int8_t kept[8];
        vst1_s8(kept, bytes);
        memcpy(to, kept, lanes);
    }
}

/* Rows begin .. end - 1 of one line and one block of channels. */
typedef void NeutronBlockFunction(const NeutronProduct *p, const NeutronBlock8 *block, uint32_t begin, uint32_t end);

/* The whole product, block by block (product_neon.c). */
void neutron_product_blocks(const NeutronProduct *p, NeutronBlockFunction *block_rows);

void neutron_product_start(const int8_t *weights, uint32_t k, uint32_t n, const int32_t *bias, int32_t *to);
void neutron_product_copy(int8_t *to, const int8_t *from, size_t bytes);

#endif
