/* The depthwise pixel for cores with the DSP extension: four channels at a time. */
#include "dsp.h"

#ifdef NEUTRON_DSP

#include "depthwise.h"

NEUTRON_INLINE int8_t finish(const NeutronDepthwise *d, uint32_t c, int32_t sum) {
    return (int8_t)neutron_requantize_one(sum, d->multiplier[c], d->shift[c], d->output_zero, d->low, d->high);
}

/* Channels c to c + 3 of pixel i: the low and high halfwords of even and odd bytes are a channel each. */
NEUTRON_INLINE void four(const NeutronDepthwise *d, uint32_t i, uint32_t c) {
    const int16x2_t zeros = (int16x2_t)((uint32_t)(d->input_zero & 0xFFFF) * 0x10001u);
    const size_t tap_pitch = d->tap_pitch, weights_pitch = d->out_c, at = i * d->in_step + c;
    const int8_t *const *row = d->rows, *const *const end = row + d->row_count;
    const int8_t *weights_row = d->weights + c;
    int32_t s0 = d->bias[c], s1 = d->bias[c + 1u], s2 = d->bias[c + 2u], s3 = d->bias[c + 3u];
    for (; row != end; ++row, weights_row += d->weights_row) {
        if (*row == NULL) continue;
        const int8_t *in = *row + at, *weights = weights_row;
        for (uint32_t t = d->columns; t != 0; --t) {
            uint32_t values = neutron_word(in), factors = neutron_word(weights);
            in += tap_pitch, weights += weights_pitch;
            int16x2_t even = __ssub16(neutron_even(values), zeros), odd = __ssub16(neutron_odd(values), zeros);
            int16x2_t even_factor = neutron_even(factors), odd_factor = neutron_odd(factors);
            s0 = __smlabb(even, even_factor, s0);
            s1 = __smlabb(odd, odd_factor, s1);
            s2 = __smlatt(even, even_factor, s2);
            s3 = __smlatt(odd, odd_factor, s3);
        }
    }
    uint32_t bytes = (uint8_t)finish(d, c, s0);
    bytes |= (uint32_t)(uint8_t)finish(d, c + 1u, s1) << 8;
    bytes |= (uint32_t)(uint8_t)finish(d, c + 2u, s2) << 16;
    bytes |= (uint32_t)(uint8_t)finish(d, c + 3u, s3) << 24;
    memcpy(d->out + i * d->out_step + c, &bytes, sizeof bytes);
}

/* Channel c of pixel i, with any number of output channels for one of the input. */
static void one(const NeutronDepthwise *d, uint32_t i, uint32_t c) {
    uint32_t sum = (uint32_t)d->bias[c];
    for (uint32_t r = 0; r < d->row_count; ++r) {
        if (d->rows[r] == NULL) continue;
        const int8_t *in = d->rows[r] + i * d->in_step + c / d->multiplier_c;
        const int8_t *weights = d->weights + r * d->weights_row + c;
        for (uint32_t t = d->columns; t != 0; --t, in += d->tap_pitch, weights += d->out_c) {
            sum += (uint32_t)((*in - d->input_zero) * *weights);
        }
    }
    d->out[i * d->out_step + c] = finish(d, c, (int32_t)sum);
}

void neutron_depthwise(const NeutronDepthwise *d) {
    for (uint32_t i = 0; i < d->count; ++i) {
        uint32_t c = 0;
        if (d->multiplier_c == 1u) {
            for (; c + 4u <= d->out_c; c += 4u) four(d, i, c);
        }
        for (; c < d->out_c; ++c) one(d, i, c);
    }
}

#endif
