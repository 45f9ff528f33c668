/* Depthwise convolutions, ADD and TABLE for any AArch64. */
#include "neon.h"
#include "vector/taps.h"

#define CHANNELS 8u
#define PIXELS 4u /* that share one load of a tap's weights */

/* `pixels` pixels from i on, eight channels each. */
NEUTRON_INLINE void depthwise(const NeutronDepthwise *d, const Taps *taps, const int16x8_t *weights,
                              const NeutronEnd8 *end, const int32x4_t bias[2], uint32_t c, uint32_t i,
                              uint32_t pixels) {
    const int8x8_t zero = vdup_n_s8((int8_t)d->input_zero);
    const size_t at = i * d->in_step + c;
    int32x4_t sums[PIXELS][2];
#pragma GCC unroll 4
    for (uint32_t n = 0; n < pixels; ++n) {
        sums[n][0] = bias[0];
        sums[n][1] = bias[1];
    }
    for (uint32_t t = 0; t < taps->count; ++t) {
        const int8_t *in = taps->in[t] + at;
        const int16x8_t w = weights[t];
#pragma GCC unroll 4
        for (uint32_t n = 0; n < pixels; ++n) {
            const int16x8_t x = vsubl_s8(vld1_s8(in + n * d->in_step), zero);
            sums[n][0] = vmlal_s16(sums[n][0], vget_low_s16(x), vget_low_s16(w));
            sums[n][1] = vmlal_high_s16(sums[n][1], x, w);
        }
    }
    int8_t *out = d->out + i * d->out_step + c;
#pragma GCC unroll 4
    for (uint32_t n = 0; n < pixels; ++n) {
        vst1_s8(out + n * d->out_step, neutron_bytes8(sums[n][0], sums[n][1], end));
    }
}

static void depthwise8(const NeutronDepthwise *d, const Taps *taps, uint32_t c) {
    int16x8_t weights[NEUTRON_MAX_TAPS];
    for (uint32_t t = 0; t < taps->count; ++t) weights[t] = vmovl_s8(vld1_s8(taps->weights[t] + c));
    const int32x4_t bias[2] = {vld1q_s32(d->bias + c), vld1q_s32(d->bias + c + 4)};
    const NeutronEnd8 end = neutron_end8(d->multiplier + c, d->shift + c, d->output_zero, d->low, d->high);
    uint32_t i = 0;
    for (; i + PIXELS <= d->count; i += PIXELS) depthwise(d, taps, weights, &end, bias, c, i, PIXELS);
    for (; i < d->count; ++i) depthwise(d, taps, weights, &end, bias, c, i, 1);
}

void neutron_depthwise_neon(const NeutronDepthwise *d) {
    Taps taps;
    if (!neutron_list_taps(d, CHANNELS, &taps)) {
        neutron_depthwise_portable(d);
        return;
    }
    /* The last channels may overlap those before: they are computed twice, to the same result. */
    for (uint32_t c = 0; c < d->out_c; c += CHANNELS) {
        depthwise8(d, &taps, c + CHANNELS <= d->out_c ? c : d->out_c - CHANNELS);
    }
}

/* Eight values of an operand, brought to the scale of the sum. */
NEUTRON_INLINE int32x4x2_t operand(int8x8_t values, int32_t zero, int32x4_t left, const NeutronScale4 *scale) {
    const int16x8_t x = vsubl_s8(values, vdup_n_s8((int8_t)zero));
    int32x4x2_t both = {{neutron_apply_scale4(vshlq_s32(vmovl_s16(vget_low_s16(x)), left), scale),
                         neutron_apply_scale4(vshlq_s32(vmovl_high_s16(x), left), scale)}};
    return both;
}

void neutron_add_row_neon(const void *parameters, const NeutronRow *row) {
    const NeutronAddParams *p = (const NeutronAddParams *)parameters;
    if (row->a_stride != 1 || row->out_stride != 1 || (row->b_stride != 1 && row->b_stride != 0) || row->count < 8u) {
        neutron_add_row_portable(parameters, row);
        return;
    }
    const NeutronRow s = *row;
    const NeutronScale4 a_scale = neutron_scale4(vdupq_n_s32(p->a_multiplier), vdupq_n_s32(p->a_shift));
    const NeutronScale4 b_scale = neutron_scale4(vdupq_n_s32(p->b_multiplier), vdupq_n_s32(p->b_shift));
    const NeutronScale4 scale = neutron_scale4(vdupq_n_s32(p->output_multiplier), vdupq_n_s32(p->output_shift));
    const NeutronEnd8 end = {
        {scale, scale}, vdupq_n_s32(p->output_zero), vdup_n_s8((int8_t)p->clamp_min), vdup_n_s8((int8_t)p->clamp_max)};
    const int32x4_t left = vdupq_n_s32((int32_t)p->left_shift);
    const int32_t a_zero = p->a_zero, b_zero = p->b_zero;
    uint32_t i = 0;
    for (; i + 8u <= s.count; i += 8u) {
        const int32x4x2_t a = operand(vld1_s8(s.a + i), a_zero, left, &a_scale);
        const int32x4x2_t b = operand(s.b_stride ? vld1_s8(s.b + i) : vdup_n_s8(*s.b), b_zero, left, &b_scale);
        vst1_s8(s.out + i, neutron_bytes8(vaddq_s32(a.val[0], b.val[0]), vaddq_s32(a.val[1], b.val[1]), &end));
    }
    NeutronRow rest = s;
    rest.a += i;
    rest.b += s.b_stride ? i : 0;
    rest.out += i;
    rest.count -= i;
    neutron_add_row_portable(parameters, &rest);
}

/* A lookup gives 0, or leaves what is there, where the index is beyond its 64 entries. */
static void lookup(const uint8x16x4_t table[4], const uint8_t *from, uint8_t *to) {
    const uint8x16_t x = vld1q_u8(from), step = vdupq_n_u8(64);
    uint8x16_t y = vqtbl4q_u8(table[0], x), index = x;
#pragma GCC unroll 3
    for (uint32_t i = 1; i < 4; ++i) {
        index = vsubq_u8(index, step);
        y = vqtbx4q_u8(y, table[i], index);
    }
    vst1q_u8(to, y);
}

void neutron_table_rows_neon(const NeutronTableRows *t) {
    uint8x16x4_t table[4];
    for (uint32_t i = 0; i < 4; ++i) {
        for (uint32_t j = 0; j < 4; ++j) table[i].val[j] = vld1q_u8(t->table + 64u * i + 16u * j);
    }
    for (uint32_t r = 0; r < t->rows; ++r) {
        const uint8_t *from = t->in + r * t->in_pitch;
        uint8_t *to = t->out + r * t->out_pitch;
        uint32_t i = 0;
        for (; i + 16u <= t->length; i += 16u) lookup(table, from + i, to + i);
        if (i < t->length) {
            uint8_t last[16] = {0};
            memcpy(last, from + i, t->length - i);
            lookup(table, last, last);
            memcpy(to + i, last, t->length - i);
        }
    }
}
