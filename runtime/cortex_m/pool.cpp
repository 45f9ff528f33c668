// quantized_avg_pool2d, quantized_max_pool2d and their NHWC forms: int8, padding is not counted.
#include "operators.h"
#include "window.h"

namespace openneutron::cortex_m {

namespace {

struct Pool {
  Pair kernel, stride, padding;

  // As many windows as torch has; the last one starts in the input or the padding before it.
  static int64_t count(int64_t size, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode) {
    const int64_t room = size + 2 * padding - kernel;
    if (room < 0 && !(ceil_mode && room > -stride))
      return 0;
    int64_t windows = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
    return ceil_mode && (windows - 1) * stride >= size + padding ? windows - 1 : windows;
  }

  Error prepare(const Tensor& input, IntList kernel_size, IntList strides, IntList paddings, bool ceil_mode,
                Layout layout, const Tensor& out) {
    CORTEX_M_REQUIRE(has_type(input, ScalarType::Char) && has_type(out, ScalarType::Char) && input.dim() == 4);
    CORTEX_M_TRY(kernel.read(kernel_size, 1, true));
    CORTEX_M_TRY(stride.read(strides, 1, true));
    CORTEX_M_TRY(padding.read(paddings, 0, true));
    CORTEX_M_REQUIRE(padding.h <= kernel.h / 2 && padding.w <= kernel.w / 2);
    const FeatureMap in(input, layout);
    CORTEX_M_REQUIRE(in.c > 0 && in.h > 0 && in.w > 0);
    return shape_feature_map(out, layout, in.n, count(in.h, kernel.h, stride.h, padding.h, ceil_mode),
                             count(in.w, kernel.w, stride.w, padding.w, ceil_mode), in.c);
  }

  // out = window(first tap, rows, columns) for every window and channel; only taps in the input.
  template <class Window>
  void run(const Tensor& input, Layout layout, const Tensor& out, Window window) const {
    const FeatureMap in(input, layout), to(out, layout);
    const int8_t* from = input.const_data_ptr<int8_t>();
    int8_t* result = out.mutable_data_ptr<int8_t>();
    for (int64_t b = 0; b < to.n; ++b) {
      for (int64_t y = 0; y < to.h; ++y) {
        const int64_t top = y * stride.h - padding.h, y0 = top > 0 ? top : 0;
        const int64_t y1 = top + kernel.h < in.h ? top + kernel.h : in.h;
        for (int64_t x = 0; x < to.w; ++x) {
          const int64_t left = x * stride.w - padding.w, x0 = left > 0 ? left : 0;
          const int64_t x1 = left + kernel.w < in.w ? left + kernel.w : in.w;
          const int8_t* taps = from + in.at(b, y0, x0);
          int8_t* pixel = result + to.at(b, y, x);
          for (int64_t c = 0; c < to.c; ++c) {
            pixel[c * to.c_step] = window(in, taps + c * in.c_step, y1 - y0, x1 - x0);
          }
        }
      }
    }
  }
};

Error average_pool(Layout layout, const Tensor& input, IntList kernel_size, IntList stride, IntList padding,
                   bool ceil_mode, int64_t multiplier, int64_t shift, const Tensor& out) {
  CORTEX_M_REQUIRE(is_int32(multiplier) && is_exponent(shift));
  Pool pool;
  CORTEX_M_TRY(pool.prepare(input, kernel_size, stride, padding, ceil_mode, layout, out));
  // As CMSIS-NN: the sum of the taps over their number, halves away from zero, whatever the scale. The dialect's
  // Python reference averages floats and differs by one step at times; the chip does not.
  pool.run(input, layout, out, [&](const FeatureMap& in, const int8_t* taps, int64_t rows, int64_t columns) {
    int32_t sum = 0;
    for (int64_t y = 0; y < rows; ++y) {
      for (int64_t x = 0; x < columns; ++x)
        sum += taps[y * in.h_step + x * in.w_step];
    }
    const int32_t count = static_cast<int32_t>(rows * columns), half = count / 2;
    return static_cast<int8_t>((sum > 0 ? sum + half : sum - half) / count);
  });
  return Error::Ok;
}

Error max_pool(Layout layout, const Tensor& input, IntList kernel_size, IntList stride, IntList padding,
               IntList dilation, bool ceil_mode, int64_t input_zero_point, int64_t output_zero_point,
               int64_t activation_min, int64_t activation_max, const Tensor& out) {
  CORTEX_M_REQUIRE(input_zero_point == output_zero_point && !ceil_mode);
  CORTEX_M_REQUIRE(is_int32(activation_min) && is_int32(activation_max));
  Pair step;
  CORTEX_M_TRY(step.read(dilation, 1, true));
  CORTEX_M_REQUIRE(step.h == 1 && step.w == 1);
  Pool pool;
  CORTEX_M_TRY(pool.prepare(input, kernel_size, stride, padding, false, layout, out));
  const Output finish{0, static_cast<int32_t>(activation_min), static_cast<int32_t>(activation_max)};
  pool.run(input, layout, out, [&](const FeatureMap& in, const int8_t* taps, int64_t rows, int64_t columns) {
    int32_t largest = -128;
    for (int64_t y = 0; y < rows; ++y) {
      for (int64_t x = 0; x < columns; ++x) {
        const int8_t value = taps[y * in.h_step + x * in.w_step];
        largest = value > largest ? value : largest;
      }
    }
    return finish(largest);
  });
  return Error::Ok;
}

} // namespace

CORTEX_M_AVERAGE_POOL(quantized_avg_pool2d_out) {
  (void)zero_point, (void)scratch;
  return average_pool(Layout::NCHW, input, kernel_size, stride, padding, ceil_mode, multiplier, shift, out);
}

CORTEX_M_AVERAGE_POOL(quantized_avg_pool2d_nhwc_out) {
  (void)zero_point, (void)scratch;
  return average_pool(Layout::NHWC, input, kernel_size, stride, padding, ceil_mode, multiplier, shift, out);
}

CORTEX_M_MAX_POOL(quantized_max_pool2d_out) {
  return max_pool(Layout::NCHW, input, kernel_size, stride, padding, dilation, ceil_mode, input_zero_point,
                  output_zero_point, activation_min, activation_max, out);
}

CORTEX_M_MAX_POOL(quantized_max_pool2d_nhwc_out) {
  return max_pool(Layout::NHWC, input, kernel_size, stride, padding, dilation, ceil_mode, input_zero_point,
                  output_zero_point, activation_min, activation_max, out);
}

} // namespace openneutron::cortex_m
