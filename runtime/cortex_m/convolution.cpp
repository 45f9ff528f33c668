// quantized_conv2d, _depthwise_conv2d, _transpose_conv2d and their NHWC forms: int8 with per-channel scales.
//
// A convolution copies the input values under a window into a patch, in the order of the weights and with the offset
// added; outside the input the patch has zeros. Every output channel is then one dot product. A transposed convolution
// is the same with another rule for which input lies under a tap.
#include "operators.h"
#include "window.h"

namespace openneutron::cortex_m {

namespace {

struct Convolution {
  Layout layout;
  Pair stride, padding, dilation;
  int32_t input_offset;
  Output finish;
  const int32_t *bias, *multipliers, *shifts;

  // All that does not depend on the kind of convolution; `channels` is the number of output channels.
  Error prepare(Layout of, const Tensor& input, const Tensor& weight, const OptionalTensor& biases, IntList strides,
                IntList paddings, IntList dilations, int64_t offset, int64_t output_offset,
                const Tensor& requantize_multipliers, const Tensor& requantize_shifts, int64_t activation_min,
                int64_t activation_max, int64_t channels, const Tensor& out) {
    CORTEX_M_REQUIRE(has_type(input, ScalarType::Char) && has_type(weight, ScalarType::Char));
    CORTEX_M_REQUIRE(has_type(out, ScalarType::Char) && has_type(biases, ScalarType::Int));
    CORTEX_M_REQUIRE(has_type(requantize_multipliers, ScalarType::Int) && has_type(requantize_shifts, ScalarType::Int));
    CORTEX_M_REQUIRE(weight.size(1) > 0 && weight.size(2) > 0 && weight.numel() > 0);
    CORTEX_M_REQUIRE(!biases || (biases->dim() == 1 && biases->size(0) == channels));
    CORTEX_M_REQUIRE(requantize_multipliers.numel() >= channels && requantize_shifts.numel() >= channels);
    CORTEX_M_REQUIRE(is_int32(offset) && is_int32(output_offset));
    CORTEX_M_REQUIRE(is_int32(activation_min) && is_int32(activation_max));
    layout = of;
    CORTEX_M_TRY(stride.read(strides, 1));
    CORTEX_M_TRY(padding.read(paddings, 0));
    CORTEX_M_TRY(dilation.read(dilations, 1));
    input_offset = static_cast<int32_t>(offset);
    finish = {static_cast<int32_t>(output_offset), static_cast<int32_t>(activation_min),
              static_cast<int32_t>(activation_max)};
    bias = biases ? biases->const_data_ptr<int32_t>() : nullptr;
    multipliers = requantize_multipliers.const_data_ptr<int32_t>();
    shifts = requantize_shifts.const_data_ptr<int32_t>();
    for (int64_t c = 0; c < channels; ++c)
      CORTEX_M_REQUIRE(Requantize::valid(multipliers[c], shifts[c]));
    return Error::Ok;
  }

  int8_t result(int64_t channel, int64_t sum) const {
    return finish(Requantize{multipliers[channel], shifts[channel]}(sum));
  }

  // Where a window of `taps` starts and how far apart its taps are; the number of windows.
  static int64_t windows(int64_t size, int64_t taps, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t room = size + 2 * padding - dilation * (taps - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
  }
};

// Which input row (or column) lies under tap `tap` of output row `at`; negative or beyond the input if none.
struct Forward {
  int64_t operator()(int64_t at, int64_t tap, int64_t stride, int64_t padding, int64_t dilation) const {
    return at * stride - padding + tap * dilation;
  }
};

struct Transposed {
  int64_t operator()(int64_t at, int64_t tap, int64_t stride, int64_t padding, int64_t dilation) const {
    const int64_t scaled = at + padding - tap * dilation;
    return scaled >= 0 && scaled % stride == 0 ? scaled / stride : -1;
  }
};

// Value is int16 where the input with its offset fits, which is faster.
template <class Value, class Sum>
Sum dot(const Value* patch, const int8_t* weights, int64_t length) {
  Sum sum = 0;
  for (int64_t i = 0; i < length; ++i) {
    sum += static_cast<Sum>(static_cast<int32_t>(patch[i])) * static_cast<Sum>(static_cast<int32_t>(weights[i]));
  }
  return sum;
}

template <>
uint32_t dot<int16_t, uint32_t>(const int16_t* patch, const int8_t* weights, int64_t length) {
  constexpr int64_t kBlock = 256; // 256 * 2^15 * 2^7 < 2^31
  uint32_t total = 0;
  for (int64_t start = 0; start < length; start += kBlock) {
    const int64_t count = length - start < kBlock ? length - start : kBlock;
    int32_t sum = 0;
    for (int64_t i = start; i < start + count; ++i)
      sum += patch[i] * static_cast<int16_t>(weights[i]);
    total += static_cast<uint32_t>(sum);
  }
  return total;
}

// Weights are [out channel][tap row][tap column][input channel of the group]. `end` turns a sum into its output.
template <class Value, class Sum, class Rule, class End>
void convolve(const Convolution& p, const Tensor& input, const Tensor& weight, int64_t groups, const Tensor& out,
              Rule rule, End end) {
  const FeatureMap in(input, p.layout), to(out, p.layout);
  const int64_t taps_h = weight.size(1), taps_w = weight.size(2), depth = weight.size(3);
  const int64_t length = taps_h * taps_w * depth, channels = to.c / groups;
  const int8_t* from = input.const_data_ptr<int8_t>();
  const Ordered weights(weight);
  int8_t* result = out.mutable_data_ptr<int8_t>();
  std::vector<Value> patch(static_cast<size_t>(length));
  for (int64_t b = 0; b < to.n; ++b) {
    for (int64_t y = 0; y < to.h; ++y) {
      for (int64_t x = 0; x < to.w; ++x) {
        int8_t* pixel = result + to.at(b, y, x);
        for (int64_t g = 0; g < groups; ++g) {
          Value* value = patch.data();
          for (int64_t ky = 0; ky < taps_h; ++ky) {
            const int64_t iy = rule(y, ky, p.stride.h, p.padding.h, p.dilation.h);
            for (int64_t kx = 0; kx < taps_w; ++kx, value += depth) {
              const int64_t ix = rule(x, kx, p.stride.w, p.padding.w, p.dilation.w);
              if (iy < 0 || iy >= in.h || ix < 0 || ix >= in.w) {
                for (int64_t c = 0; c < depth; ++c)
                  value[c] = 0;
                continue;
              }
              const int8_t* tap = from + in.at(b, iy, ix) + g * depth * in.c_step;
              for (int64_t c = 0; c < depth; ++c) {
                value[c] = static_cast<Value>(neutron_add32(tap[c * in.c_step], p.input_offset));
              }
            }
          }
          for (int64_t c = g * channels; c < (g + 1) * channels; ++c) {
            pixel[c * to.c_step] = p.result(c, end(c, dot<Value, Sum>(patch.data(), weights + c * length, length)));
          }
        }
      }
    }
  }
}

bool offset_fits_int16(int32_t offset) {
  return offset >= -32768 + 128 && offset <= 32767 - 127;
}

Error convolution(Layout layout, const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntList stride,
                  IntList padding, IntList dilation, int64_t input_offset, int64_t output_offset,
                  const Tensor& multipliers, const Tensor& shifts, int64_t activation_min, int64_t activation_max,
                  const Tensor& out) {
  CORTEX_M_REQUIRE(input.dim() == 4 && weight.dim() == 4);
  Convolution p;
  CORTEX_M_TRY(p.prepare(layout, input, weight, bias, stride, padding, dilation, input_offset, output_offset,
                         multipliers, shifts, activation_min, activation_max, weight.size(0), out));
  const FeatureMap in(input, layout);
  CORTEX_M_REQUIRE(in.c >= weight.size(3) && in.c % weight.size(3) == 0);
  const int64_t groups = in.c / weight.size(3);
  CORTEX_M_REQUIRE(weight.size(0) % groups == 0);
  CORTEX_M_TRY(shape_feature_map(
      out, layout, in.n, Convolution::windows(in.h, weight.size(1), p.stride.h, p.padding.h, p.dilation.h),
      Convolution::windows(in.w, weight.size(2), p.stride.w, p.padding.w, p.dilation.w), weight.size(0)));
  auto end = [&](int64_t c, uint32_t sum) { // int32 that wraps
    return static_cast<int32_t>(sum + static_cast<uint32_t>(p.bias ? p.bias[c] : 0));
  };
  if (offset_fits_int16(p.input_offset)) {
    convolve<int16_t, uint32_t>(p, input, weight, groups, out, Forward(), end);
  } else {
    convolve<int32_t, uint32_t>(p, input, weight, groups, out, Forward(), end);
  }
  return Error::Ok;
}

Error transpose_convolution(Layout layout, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                            IntList stride, IntList padding, IntList output_padding, IntList dilation,
                            int64_t input_offset, int64_t output_offset, const Tensor& multipliers,
                            const Tensor& shifts, int64_t activation_min, int64_t activation_max, const Tensor& out) {
  CORTEX_M_REQUIRE(input.dim() == 4 && weight.dim() == 4);
  Convolution p;
  CORTEX_M_TRY(p.prepare(layout, input, weight, bias, stride, padding, dilation, input_offset, output_offset,
                         multipliers, shifts, activation_min, activation_max, weight.size(0), out));
  Pair extra;
  CORTEX_M_TRY(extra.read(output_padding, 0));
  CORTEX_M_REQUIRE(extra.h < p.stride.h || extra.h < p.dilation.h);
  CORTEX_M_REQUIRE(extra.w < p.stride.w || extra.w < p.dilation.w);
  const FeatureMap in(input, layout);
  CORTEX_M_REQUIRE(in.c == weight.size(3) && in.h > 0 && in.w > 0); // one group
  const int64_t h = (in.h - 1) * p.stride.h - 2 * p.padding.h + p.dilation.h * (weight.size(1) - 1) + extra.h + 1;
  const int64_t w = (in.w - 1) * p.stride.w - 2 * p.padding.w + p.dilation.w * (weight.size(2) - 1) + extra.w + 1;
  CORTEX_M_TRY(shape_feature_map(out, layout, in.n, h, w, weight.size(0)));
  // The reference sums in float: exact below 2^24, rounded here above it.
  auto end = [&](int64_t c, int64_t sum) {
    return to_int32(static_cast<float>(sum) + (p.bias ? static_cast<float>(p.bias[c]) : 0.0f));
  };
  convolve<int32_t, int64_t>(p, input, weight, 1, out, Transposed(), end);
  return Error::Ok;
}

// Add one tap's products to the sums of all output channels, in int32 that wraps.
void add_products(const int8_t* values, int64_t count, int64_t step, int32_t offset, const int8_t* weights,
                  int64_t multiplier, uint32_t* sums) {
  if (multiplier == 1 && step == 1) { // apart, for the compiler to vectorise
    for (int64_t c = 0; c < count; ++c) {
      sums[c] += static_cast<uint32_t>(neutron_mul32(neutron_add32(values[c], offset), weights[c]));
    }
    return;
  }
  for (int64_t c = 0, o = 0; c < count; ++c) {
    const int32_t value = neutron_add32(values[c * step], offset);
    for (int64_t m = 0; m < multiplier; ++m, ++o)
      sums[o] += static_cast<uint32_t>(neutron_mul32(value, weights[o]));
  }
}

// Weights are [1][tap row][tap column][out channel]; an input channel makes `multiplier` output channels.
Error depthwise_convolution(Layout layout, const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                            IntList stride, IntList padding, IntList dilation, int64_t depth_multiplier,
                            int64_t input_offset, int64_t output_offset, const Tensor& multipliers,
                            const Tensor& shifts, int64_t activation_min, int64_t activation_max, const Tensor& out) {
  CORTEX_M_REQUIRE(input.dim() == 4 && weight.dim() == 4 && weight.size(0) == 1);
  const int64_t channels = weight.size(3);
  Convolution p;
  CORTEX_M_TRY(p.prepare(layout, input, weight, bias, stride, padding, dilation, input_offset, output_offset,
                         multipliers, shifts, activation_min, activation_max, channels, out));
  const FeatureMap in(input, layout);
  CORTEX_M_REQUIRE(in.c > 0 && depth_multiplier >= 1 && channels % in.c == 0 && channels / in.c == depth_multiplier);
  const int64_t taps_h = weight.size(1), taps_w = weight.size(2);
  CORTEX_M_TRY(shape_feature_map(out, layout, in.n,
                                 Convolution::windows(in.h, taps_h, p.stride.h, p.padding.h, p.dilation.h),
                                 Convolution::windows(in.w, taps_w, p.stride.w, p.padding.w, p.dilation.w), channels));
  const FeatureMap to(out, layout);
  const int8_t* from = input.const_data_ptr<int8_t>();
  int8_t* result = out.mutable_data_ptr<int8_t>();
  const Ordered weights(weight);
  std::vector<uint32_t> sums(static_cast<size_t>(channels)); // int32 that wraps
  for (int64_t b = 0; b < to.n; ++b) {
    for (int64_t y = 0; y < to.h; ++y) {
      for (int64_t x = 0; x < to.w; ++x) {
        for (int64_t c = 0; c < channels; ++c)
          sums[c] = static_cast<uint32_t>(p.bias ? p.bias[c] : 0);
        for (int64_t ky = 0; ky < taps_h; ++ky) {
          const int64_t iy = y * p.stride.h - p.padding.h + ky * p.dilation.h;
          if (iy < 0 || iy >= in.h)
            continue;
          for (int64_t kx = 0; kx < taps_w; ++kx) {
            const int64_t ix = x * p.stride.w - p.padding.w + kx * p.dilation.w;
            if (ix < 0 || ix >= in.w)
              continue;
            const int8_t* tap = from + in.at(b, iy, ix);
            const int8_t* row = weights + (ky * taps_w + kx) * channels;
            add_products(tap, in.c, in.c_step, p.input_offset, row, depth_multiplier, sums.data());
          }
        }
        int8_t* pixel = result + to.at(b, y, x);
        for (int64_t c = 0; c < channels; ++c)
          pixel[c * to.c_step] = p.result(c, static_cast<int32_t>(sums[c]));
      }
    }
  }
  return Error::Ok;
}

} // namespace

CORTEX_M_CONVOLUTION(quantized_conv2d_out) {
  (void)scratch;
  return convolution(Layout::NCHW, input, weight, bias, stride, padding, dilation, input_offset, output_offset,
                     requantize_multipliers, requantize_shifts, activation_min, activation_max, out);
}

CORTEX_M_CONVOLUTION(quantized_conv2d_nhwc_out) {
  (void)scratch;
  return convolution(Layout::NHWC, input, weight, bias, stride, padding, dilation, input_offset, output_offset,
                     requantize_multipliers, requantize_shifts, activation_min, activation_max, out);
}

CORTEX_M_DEPTHWISE(quantized_depthwise_conv2d_out) {
  (void)scratch;
  return depthwise_convolution(Layout::NCHW, input, weight, bias, stride, padding, dilation, depth_multiplier,
                               input_offset, output_offset, requantize_multipliers, requantize_shifts, activation_min,
                               activation_max, out);
}

CORTEX_M_DEPTHWISE(quantized_depthwise_conv2d_nhwc_out) {
  (void)scratch;
  return depthwise_convolution(Layout::NHWC, input, weight, bias, stride, padding, dilation, depth_multiplier,
                               input_offset, output_offset, requantize_multipliers, requantize_shifts, activation_min,
                               activation_max, out);
}

CORTEX_M_TRANSPOSE_CONVOLUTION(quantized_transpose_conv2d_out) {
  (void)scratch, (void)output_scratch;
  return transpose_convolution(Layout::NCHW, input, weight, bias, stride, padding, output_padding, dilation,
                               input_offset, output_offset, requantize_multipliers, requantize_shifts, activation_min,
                               activation_max, out);
}

CORTEX_M_TRANSPOSE_CONVOLUTION(quantized_transpose_conv2d_nhwc_out) {
  (void)scratch, (void)output_scratch;
  return transpose_convolution(Layout::NHWC, input, weight, bias, stride, padding, output_padding, dilation,
                               input_offset, output_offset, requantize_multipliers, requantize_shifts, activation_min,
                               activation_max, out);
}

} // namespace openneutron::cortex_m
