// Images of floats in other sizes.
#include "adapt.h"

namespace torch::executor {
using Size = ::executorch::aten::OptionalArrayRef<int64_t>;
using Factors = ::executorch::aten::OptionalArrayRef<double>;
} // namespace torch::executor

PORTABLE(upsample_nearest2d_vec_out, const Tensor&, Size, Factors, Tensor&)
PORTABLE(upsample_bilinear2d_vec_out, const Tensor&, Size, bool, Factors, Tensor&)

namespace openneutron::native {
namespace {

using Size = ::executorch::aten::OptionalArrayRef<int64_t>;
using Factors = ::executorch::aten::OptionalArrayRef<double>;

constexpr int64_t kMost = 1 << 22; // pixels a side, so that a float has place for them and their halves

bool window_of(const Tensor& in, const Size& size, const Factors& factors, bool align_corners, const Tensor& out,
               CpuWindow& w, float scale[2]) {
  const auto order = in.dim_order();
  if (!are_floats(in, out) || in.dim() != 4 || out.dim() != 4 || in.numel() == 0 || out.numel() == 0 ||
      !::executorch::runtime::tensors_have_same_dim_order(in, out) ||
      !(is_plain(in) || ::executorch::runtime::is_channels_last_dim_order(order.data(), order.size())) ||
      in.size(0) != out.size(0) || in.size(1) != out.size(1) || size.has_value() == factors.has_value() ||
      (size.has_value() ? size.value().size() : factors.value().size()) != 2) {
    return false;
  }
  w.batches = static_cast<size_t>(in.size(0));
  w.out_channels = static_cast<size_t>(in.size(1));
  for (size_t d = 0; d < 4; ++d) {
    w.in_step[d] = in.strides()[d];
    w.out_step[d] = out.strides()[d];
  }
  for (size_t d = 0; d < 2; ++d) {
    const int64_t from = in.size(static_cast<ssize_t>(d + 2)), to = out.size(static_cast<ssize_t>(d + 2));
    if (from > kMost || to > kMost) {
      return false;
    }
    w.in[d] = static_cast<ptrdiff_t>(from);
    w.out[d] = static_cast<ptrdiff_t>(to);
    const double given =
        size.has_value() ? static_cast<double>(size.value()[d]) / static_cast<double>(from) : factors.value()[d];
    if (size.has_value() ? size.value()[d] != to
                         : !(given > 0.0 && given < static_cast<double>(kMost)) ||
                               static_cast<int64_t>(static_cast<double>(from) * given) != to) {
      return false;
    }
    double ratio = 1.0 / given;
    if (align_corners) {
      ratio = to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0.0;
    }
    scale[d] = static_cast<float>(ratio);
  }
  return true;
}

} // namespace

Tensor& upsample_nearest2d_vec_out(Context& context, const Tensor& in, Size size, Factors factors, Tensor& out) {
  CpuWindow w{};
  float scale[2];
  if (!window_of(in, size, factors, false, out, w, scale)) {
    return FALL_BACK(upsample_nearest2d_vec_out)(context, in, size, factors, out);
  }
  cpu_upsample_nearest(&w, scale, floats(in), floats_of(out));
  return out;
}

Tensor& upsample_bilinear2d_vec_out(Context& context, const Tensor& in, Size size, bool align_corners, Factors factors,
                                    Tensor& out) {
  CpuWindow w{};
  float scale[2];
  if (!window_of(in, size, factors, align_corners, out, w, scale)) {
    return FALL_BACK(upsample_bilinear2d_vec_out)(context, in, size, align_corners, factors, out);
  }
  cpu_upsample_bilinear(&w, scale, align_corners, floats(in), floats_of(out));
  return out;
}

} // namespace openneutron::native
