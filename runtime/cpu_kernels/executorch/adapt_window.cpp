// Convolutions, transposed or not, and pooling of floats.
#include "adapt.h"

#include <tuple>

namespace torch::executor {
using Ints = ArrayRef<int64_t>;
} // namespace torch::executor

PORTABLE(convolution_out, const Tensor&, const Tensor&, const std::optional<Tensor>&, Ints, Ints, Ints, bool, Ints,
         int64_t, Tensor&)
PORTABLE(avg_pool2d_out, const Tensor&, Ints, Ints, Ints, bool, bool, std::optional<int64_t>, Tensor&)

namespace torch::executor::native {
std::tuple<Tensor&, Tensor&> max_pool2d_with_indices_out(::executorch::runtime::KernelRuntimeContext&, const Tensor&,
                                                         Ints, Ints, Ints, Ints, bool, Tensor&, Tensor&);
} // namespace torch::executor::native

namespace openneutron::native {
namespace {

using Ints = ArrayRef<int64_t>;

constexpr int64_t kMost = 1 << 20; // of strides and the like, so that no product overflows

// Sizes and steps of a tensor as [batch, channel, y, x]; the dimension that one of three does not have is of one.
void spread(const Tensor& tensor, ssize_t missing, ptrdiff_t sizes[4], ptrdiff_t steps[4]) {
  for (ssize_t d = 0, at = 0; at < 4; ++at) {
    const bool has = tensor.dim() == 4 || at != missing;
    sizes[at] = has ? tensor.size(d) : 1;
    steps[at] = has ? tensor.strides()[static_cast<size_t>(d)] : 0;
    d += has ? 1 : 0;
  }
}

bool known_order(const Tensor& tensor) {
  const auto order = tensor.dim_order();
  return is_plain(tensor) ||
         (tensor.dim() == 4 && ::executorch::runtime::is_channels_last_dim_order(order.data(), order.size()));
}

bool moderate(int64_t value, int64_t least) {
  return least <= value && value <= kMost;
}

bool convolve(const Tensor& in, const Tensor& weight, const std::optional<Tensor>& bias, Ints stride, Ints padding,
              Ints dilation, bool transposed, Ints output_padding, int64_t groups, Tensor& out) {
  const auto spatial = static_cast<size_t>(in.dim() - 2);
  if (!are_floats(in, weight, out) || (in.dim() != 3 && in.dim() != 4) || weight.dim() != in.dim() ||
      out.dim() != in.dim() || stride.size() != spatial || padding.size() != spatial || dilation.size() != spatial ||
      (transposed && output_padding.size() != spatial) || groups < 1 || in.numel() == 0 || weight.numel() == 0 ||
      out.numel() == 0 || !::executorch::runtime::tensors_have_same_dim_order(in, out) || !known_order(in) ||
      !known_order(weight)) {
    return false;
  }
  ptrdiff_t in_sizes[4], out_sizes[4], weight_sizes[4];
  CpuWindow w{};
  spread(in, 2, in_sizes, w.in_step);
  spread(out, 2, out_sizes, w.out_step);
  spread(weight, 2, weight_sizes, w.weight_step);
  const ptrdiff_t inputs = transposed ? weight_sizes[0] : weight_sizes[1] * groups;
  const ptrdiff_t outputs = transposed ? weight_sizes[1] * groups : weight_sizes[0];
  if (weight_sizes[0] % groups != 0 || in_sizes[1] != inputs || out_sizes[0] != in_sizes[0] ||
      out_sizes[1] != outputs ||
      (bias.has_value() && (!are_floats(*bias) || bias->dim() != 1 || bias->size(0) != outputs))) {
    return false;
  }
  w.batches = static_cast<size_t>(in_sizes[0]);
  w.groups = static_cast<size_t>(groups);
  w.in_channels = static_cast<size_t>(inputs / groups);
  w.out_channels = static_cast<size_t>(outputs / groups);
  w.transposed = transposed;
  for (size_t d = 0; d < 2; ++d) {
    const bool has = d + spatial >= 2;
    const size_t own = d + spatial - 2;
    const int64_t step = has ? stride[own] : 1, pad = has ? padding[own] : 0, wide = has ? dilation[own] : 1;
    const int64_t more = has && transposed ? output_padding[own] : 0;
    if (!moderate(step, 1) || !moderate(pad, 0) || !moderate(wide, 1) || (transposed && wide != 1) || more < 0 ||
        more >= step) {
      return false;
    }
    w.in[d] = in_sizes[d + 2];
    w.out[d] = out_sizes[d + 2];
    w.kernel[d] = weight_sizes[d + 2];
    w.stride[d] = static_cast<ptrdiff_t>(step);
    w.padding[d] = static_cast<ptrdiff_t>(pad);
    w.dilation[d] = static_cast<ptrdiff_t>(wide);
    const int64_t room = w.in[d] + 2 * pad - wide * (w.kernel[d] - 1) - 1;
    const int64_t size = transposed ? (w.in[d] - 1) * step - 2 * pad + w.kernel[d] + more : room / step + 1;
    if ((!transposed && room < 0) || w.out[d] != size) {
      return false;
    }
  }
  cpu_convolution(&w, floats(in), floats(weight), bias.has_value() ? floats(*bias) : nullptr, floats_of(out));
  return true;
}

// One number is for both dimensions, none means the given one.
bool both(Ints list, int64_t otherwise, int64_t least, ptrdiff_t values[2]) {
  for (size_t d = 0; d < 2; ++d) {
    const int64_t value = list.empty() ? otherwise : list[list.size() == 1 ? 0 : d];
    if (list.size() > 2 || !moderate(value, least)) {
      return false;
    }
    values[d] = static_cast<ptrdiff_t>(value);
  }
  return true;
}

bool window_of(const Tensor& in, Ints kernel, Ints stride, Ints padding, Ints dilation, bool ceil_mode,
               const Tensor& out, CpuWindow& w) {
  if (!are_floats(in, out) || (in.dim() != 3 && in.dim() != 4) || out.dim() != in.dim() || in.numel() == 0 ||
      out.numel() == 0 || !known_order(in) || !known_order(out) || kernel.empty() || padding.empty() ||
      !both(kernel, 1, 1, w.kernel) || !both(padding, 0, 0, w.padding) || !both(dilation, 1, 1, w.dilation)) {
    return false;
  }
  const int64_t given[2] = {w.kernel[0], w.kernel[1]};
  if (!both(stride.empty() ? Ints(given, 2) : stride, 1, 1, w.stride)) {
    return false;
  }
  ptrdiff_t in_sizes[4], out_sizes[4];
  spread(in, 0, in_sizes, w.in_step);
  spread(out, 0, out_sizes, w.out_step);
  w.batches = static_cast<size_t>(in_sizes[0]);
  w.out_channels = static_cast<size_t>(in_sizes[1]);
  for (size_t d = 0; d < 2; ++d) {
    w.in[d] = in_sizes[d + 2];
    w.out[d] = out_sizes[d + 2];
    const ptrdiff_t stride_d = w.stride[d], pad = w.padding[d];
    const ptrdiff_t room = w.in[d] + 2 * pad - w.dilation[d] * (w.kernel[d] - 1) - 1 + (ceil_mode ? stride_d - 1 : 0);
    ptrdiff_t size = room / stride_d + 1;
    size -= ceil_mode && (size - 1) * stride_d >= w.in[d] + pad ? 1 : 0; // the last one begins in the image
    if (room < 0 || pad > w.kernel[d] / 2 || w.out[d] != size || out_sizes[d] != in_sizes[d] ||
        (w.out[d] - 1) * stride_d - pad >= w.in[d]) {
      return false;
    }
  }
  return true;
}

} // namespace

Tensor& convolution_out(Context& context, const Tensor& in, const Tensor& weight, const std::optional<Tensor>& bias,
                        Ints stride, Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups,
                        Tensor& out) {
  return convolve(in, weight, bias, stride, padding, dilation, transposed, output_padding, groups, out)
             ? out
             : FALL_BACK(convolution_out)(context, in, weight, bias, stride, padding, dilation, transposed,
                                          output_padding, groups, out);
}

Tensor& avg_pool2d_out(Context& context, const Tensor& in, Ints kernel, Ints stride, Ints padding, bool ceil_mode,
                       bool count_include_pad, std::optional<int64_t> divisor, Tensor& out) {
  CpuWindow w{};
  const auto by = static_cast<float>(divisor.value_or(0));
  if ((divisor.has_value() && *divisor == 0) || !is_plain(in) || !is_plain(out) ||
      !window_of(in, kernel, stride, padding, {}, ceil_mode, out, w)) {
    return FALL_BACK(avg_pool2d_out)(context, in, kernel, stride, padding, ceil_mode, count_include_pad, divisor, out);
  }
  cpu_average_pool(&w, floats(in), floats_of(out), count_include_pad, by);
  return out;
}

std::tuple<Tensor&, Tensor&> max_pool2d_with_indices_out(Context& context, const Tensor& in, Ints kernel, Ints stride,
                                                         Ints padding, Ints dilation, bool ceil_mode, Tensor& out,
                                                         Tensor& indices) {
  CpuWindow w{};
  if (indices.scalar_type() != ScalarType::Long || !same_sizes(out, indices) ||
      !window_of(in, kernel, stride, padding, dilation, ceil_mode, out, w)) {
    return FALL_BACK(max_pool2d_with_indices_out)(context, in, kernel, stride, padding, dilation, ceil_mode, out,
                                                  indices);
  }
  cpu_max_pool(&w, floats(in), floats_of(out), indices.mutable_data_ptr<int64_t>());
  return {out, indices};
}

} // namespace openneutron::native
