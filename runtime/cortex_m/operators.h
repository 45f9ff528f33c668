// The operators of the cortex_m dialect, with the parameters of their schemas in ExecuTorch's
// backends/cortex_m/ops/operators.yaml, whose Python reference (operators.py beside it) defines what they compute;
// where CMSIS-NN differs from it (average pooling), they do what CMSIS-NN does, so that a host run predicts the chip.
//
// These kernels are for the host: with them a program that has cortex_m:: operators runs in a Python process. They are
// never part of a firmware; on the target, ExecuTorch's Cortex-M library, built on CMSIS-NN, registers its own.
#ifndef NEUTRON_CORTEX_M_OPERATORS_H
#define NEUTRON_CORTEX_M_OPERATORS_H

#include "kernel.h"

namespace openneutron::cortex_m {

// quantize.cpp
Error quantize_per_tensor_out(Tensor input, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
                              ScalarType dtype, Tensor out);
Error dequantize_per_tensor_out(Tensor input, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
                                ScalarType dtype, Tensor out);

// elementwise.cpp
Error quantized_add_out(Tensor self, int64_t self_zero_point, int64_t self_multiplier, int64_t self_shift, Tensor other,
                        int64_t other_zero_point, int64_t other_multiplier, int64_t other_shift,
                        int64_t output_zero_point, int64_t output_multiplier, int64_t output_shift,
                        int64_t activation_min, int64_t activation_max, Tensor out);
Error quantized_mul_out(Tensor self, int64_t self_zero_point, Tensor other, int64_t other_zero_point,
                        int64_t output_zero_point, int64_t output_multiplier, int64_t output_shift, Tensor out);
Error quantized_div_out(Tensor self, int64_t self_zero_point, Tensor other, int64_t other_zero_point,
                        int64_t output_zero_point, double output_scale, Tensor out);
Error quantized_activation_out(Tensor input, Tensor lut, Tensor out);
Error minimum_out(Tensor self, Tensor other, Tensor out);
Error maximum_out(Tensor self, Tensor other, Tensor out);

// linear.cpp
Error quantized_linear_out(Tensor input, Tensor weights, OptionalTensor bias, OptionalTensor kernel_sum,
                           int64_t input_offset, int64_t filter_offset, int64_t output_offset,
                           IntList requantize_multipliers, IntList requantize_shifts, int64_t activation_max,
                           int64_t activation_min, Tensor out);
Error quantized_batch_matmul_out(Tensor lhs, int64_t lhs_zero_point, Tensor rhs_transposed, int64_t rhs_zero_point,
                                 int64_t output_zero_point, int64_t output_multiplier, int64_t output_shift,
                                 Tensor scratch, Tensor out);

// softmax.cpp
Error softmax_out(Tensor input, int64_t dim, int64_t input_zero_point, int64_t output_zero_point,
                  int64_t input_multiplier, int64_t input_shift, int64_t diff_min, Tensor out);

// move.cpp
Error transpose_out(Tensor input, IntList perm, Tensor out);
Error pad_out(Tensor input, IntList pre_pad, IntList post_pad, int64_t pad_value, Tensor out);

// convolution.cpp; of each pair the second one's tensors are NHWC by their shape, the first one's NCHW in any dim order
#define CORTEX_M_CONVOLUTION(name)                                                                                 \
  Error name(Tensor input, Tensor weight, OptionalTensor bias, IntList stride, IntList padding, IntList dilation,  \
             int64_t input_offset, int64_t output_offset, Tensor requantize_multipliers, Tensor requantize_shifts, \
             int64_t activation_min, int64_t activation_max, Tensor scratch, Tensor out)
CORTEX_M_CONVOLUTION(quantized_conv2d_out);
CORTEX_M_CONVOLUTION(quantized_conv2d_nhwc_out);

#define CORTEX_M_DEPTHWISE(name)                                                                                   \
  Error name(Tensor input, Tensor weight, OptionalTensor bias, IntList stride, IntList padding, IntList dilation,  \
             int64_t depth_multiplier, int64_t input_offset, int64_t output_offset, Tensor requantize_multipliers, \
             Tensor requantize_shifts, int64_t activation_min, int64_t activation_max, Tensor scratch, Tensor out)
CORTEX_M_DEPTHWISE(quantized_depthwise_conv2d_out);
CORTEX_M_DEPTHWISE(quantized_depthwise_conv2d_nhwc_out);

#define CORTEX_M_TRANSPOSE_CONVOLUTION(name)                                                                          \
  Error name(Tensor input, Tensor weight, OptionalTensor bias, IntList stride, IntList padding,                       \
             IntList output_padding, IntList dilation, int64_t input_offset, int64_t output_offset,                   \
             Tensor requantize_multipliers, Tensor requantize_shifts, int64_t activation_min, int64_t activation_max, \
             Tensor scratch, Tensor output_scratch, Tensor out)
CORTEX_M_TRANSPOSE_CONVOLUTION(quantized_transpose_conv2d_out);
CORTEX_M_TRANSPOSE_CONVOLUTION(quantized_transpose_conv2d_nhwc_out);

// pool.cpp, likewise
#define CORTEX_M_AVERAGE_POOL(name)                                                                                  \
  Error name(Tensor input, IntList kernel_size, IntList stride, IntList padding, bool ceil_mode, int64_t zero_point, \
             int64_t multiplier, int64_t shift, Tensor scratch, Tensor out)
CORTEX_M_AVERAGE_POOL(quantized_avg_pool2d_out);
CORTEX_M_AVERAGE_POOL(quantized_avg_pool2d_nhwc_out);

#define CORTEX_M_MAX_POOL(name)                                                                                    \
  Error name(Tensor input, IntList kernel_size, IntList stride, IntList padding, IntList dilation, bool ceil_mode, \
             int64_t input_zero_point, int64_t output_zero_point, int64_t activation_min, int64_t activation_max,  \
             Tensor out)
CORTEX_M_MAX_POOL(quantized_max_pool2d_out);
CORTEX_M_MAX_POOL(quantized_max_pool2d_nhwc_out);

} // namespace openneutron::cortex_m

#endif
