/* One pixel of a depthwise convolution: the inner part that has a vectorised twin. */
#ifndef NEUTRON_DEPTHWISE_H
#define NEUTRON_DEPTHWISE_H

#include <stddef.h>
#include <stdint.h>

/* out[c] = clamp(scale(bias[c] + sum over taps of (input[c] - input_zero) * weights[c]) + output_zero)
 * for `count` output pixels whose windows have the same taps inside the input. */
typedef struct {
    const int8_t *const *rows;   /* first pixel's first tap in each row of the window, null for a row outside */
    uint32_t row_count, columns; /* rows of the window; columns inside the input */
    size_t tap_pitch;            /* bytes between taps of a row */
    const int8_t *weights;       /* of the first row's first column inside */
    size_t weights_row;          /* bytes between rows of weights; out_c between columns */
    uint32_t out_c, multiplier_c;
    const int32_t *bias, *multiplier, *shift;
    int32_t input_zero, output_zero, low, high;
    int8_t *out;
    uint32_t count;
    size_t in_step, out_step; /* bytes between pixels */
} NeutronDepthwise;

void neutron_depthwise(const NeutronDepthwise *d);

void neutron_depthwise_portable(const NeutronDepthwise *d);

#endif
