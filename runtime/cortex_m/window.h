// What convolutions and pools share: feature maps by their strides, and windows over them.
#ifndef NEUTRON_CORTEX_M_WINDOW_H
#define NEUTRON_CORTEX_M_WINDOW_H

#include "kernel.h"

namespace openneutron::cortex_m {

enum class Layout { NCHW, NHWC }; // of a tensor's shape; its dim order may be any

// A feature map: sizes and strides of batch, height, width and channel.
struct FeatureMap {
  int64_t n, h, w, c;
  int64_t n_step, h_step, w_step, c_step;

  FeatureMap(const Tensor& tensor, Layout layout) {
    const bool nchw = layout == Layout::NCHW;
    const int ch = nchw ? 1 : 3, y = nchw ? 2 : 1, x = nchw ? 3 : 2;
    n = tensor.size(0), h = tensor.size(y), w = tensor.size(x), c = tensor.size(ch);
    n_step = tensor.strides()[0], h_step = tensor.strides()[y], w_step = tensor.strides()[x],
    c_step = tensor.strides()[ch];
  }

  int64_t at(int64_t b, int64_t y, int64_t x) const {
    return b * n_step + y * h_step + x * w_step;
  }
};

inline Error shape_feature_map(const Tensor& out, Layout layout, int64_t n, int64_t h, int64_t w, int64_t c) {
  CORTEX_M_REQUIRE(h > 0 && w > 0 && is_int32(h) && is_int32(w) && is_int32(c));
  const SizesType nn = static_cast<SizesType>(n), hh = static_cast<SizesType>(h), ww = static_cast<SizesType>(w),
                  cc = static_cast<SizesType>(c);
  const SizesType nchw[4] = {nn, cc, hh, ww}, nhwc[4] = {nn, hh, ww, cc};
  return shape_output(out, {layout == Layout::NCHW ? nchw : nhwc, 4});
}

// Height and width of a window's parameter: one value for both, if `one` allows it, or two, in low..2^24.
struct Pair {
  int64_t h = 0, w = 0;

  Error read(IntList list, int64_t low, bool one = false) {
    CORTEX_M_REQUIRE(list.size() == 2 || (one && list.size() == 1));
    h = list[0];
    w = list[list.size() - 1];
    constexpr int64_t kMost = 1 << 24; // products of two stay far from overflow
    CORTEX_M_REQUIRE(h >= low && w >= low && h <= kMost && w <= kMost);
    return Error::Ok;
  }
};

} // namespace openneutron::cortex_m

#endif
