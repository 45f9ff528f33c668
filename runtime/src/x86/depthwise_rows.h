/* Depthwise convolutions with a window of 3x3, whole rows at a time: twin of the loop in
 * kernels/depthwise_conv_2d.c. */
#ifndef NEUTRON_DEPTHWISE_ROWS_H
#define NEUTRON_DEPTHWISE_ROWS_H

#include "kernel.h"

/* Run the convolution if this CPU and its shape allow; else 0, and nothing is done. */
int neutron_depthwise_rows(const NeutronMachine *machine, const NeutronDepthwiseConv2DParams *p);

/* For a 3x3 window without dilation, one output channel for each input channel, stride_w 1 or 2. */
void neutron_depthwise_rows_vnni(const NeutronDepthwiseConv2DParams *p, const int8_t *input, const int8_t *weights,
                                 const int32_t *channels, int8_t *output);

/* The same for 8 or 16 channels; 0 if their scales or the row's length do not allow it, and nothing is done. */
int neutron_depthwise_narrow_vnni(const NeutronDepthwiseConv2DParams *p, const int8_t *input, const int8_t *weights,
                                  const int32_t *channels, int8_t *output);

#endif
