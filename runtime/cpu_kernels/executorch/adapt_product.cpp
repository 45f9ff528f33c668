// Matrix products and convolutions of floats.
#include "adapt.h"

namespace torch::executor {
using Ints = ArrayRef<int64_t>;
} // namespace torch::executor

PORTABLE(mm_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(bmm_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(addmm_out, const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, Tensor&)
PORTABLE(convolution_out, const Tensor&, const Tensor&, const std::optional<Tensor>&, Ints, Ints, Ints, bool, Ints,
         int64_t, Tensor&)

namespace openneutron::native {
namespace {

using Ints = ArrayRef<int64_t>;

// [..., m, n] times [..., n, p].
bool product(const Tensor& a, const Tensor& b, Tensor& out, ssize_t rank) {
  if (!are_plain_floats(a, b, out) || a.dim() != rank || b.dim() != rank || out.dim() != rank) {
    return false;
  }
  const auto m = static_cast<size_t>(a.size(rank - 2)), n = static_cast<size_t>(a.size(rank - 1)),
             p = static_cast<size_t>(b.size(rank - 1));
  size_t batches = 1;
  for (ssize_t d = 0; d < rank - 2; ++d) {
    if (a.size(d) != b.size(d) || a.size(d) != out.size(d)) {
      return false;
    }
    batches *= static_cast<size_t>(a.size(d));
  }
  if (b.size(rank - 2) != a.size(rank - 1) || out.size(rank - 2) != a.size(rank - 2) ||
      out.size(rank - 1) != b.size(rank - 1)) {
    return false;
  }
  for (size_t i = 0; i < batches; ++i) {
    cpu_matmul(floats(a) + i * m * n, floats(b) + i * n * p, floats_of(out) + i * m * p, m, n, p);
  }
  return true;
}

// Sizes and steps of a tensor as [batch, channel, y, x]; of one dimension y has one row.
void spread(const Tensor& tensor, ptrdiff_t sizes[4], ptrdiff_t steps[4]) {
  for (ssize_t d = 0, at = 0; at < 4; ++at) {
    const bool has = tensor.dim() == 4 || at != 2;
    sizes[at] = has ? tensor.size(d) : 1;
    steps[at] = has ? tensor.strides()[static_cast<size_t>(d)] : 0;
    d += has ? 1 : 0;
  }
}

bool convolve(const Tensor& in, const Tensor& weight, const std::optional<Tensor>& bias, Ints stride, Ints padding,
              Ints dilation, int64_t groups, Tensor& out) {
  const auto spatial = static_cast<size_t>(in.dim() - 2);
  if (!are_floats(in, weight, out) || (in.dim() != 3 && in.dim() != 4) || weight.dim() != in.dim() ||
      out.dim() != in.dim() || stride.size() != spatial || padding.size() != spatial || dilation.size() != spatial ||
      groups < 1 || in.numel() == 0 || weight.numel() == 0 || out.numel() == 0 ||
      !::executorch::runtime::tensors_have_same_dim_order(in, out) ||
      (in.dim() == 3 && (!is_plain(in) || !is_plain(weight)))) {
    return false;
  }
  const auto known = [](const Tensor& tensor) {
    return is_plain(tensor) ||
           ::executorch::runtime::is_channels_last_dim_order(tensor.dim_order().data(), tensor.dim_order().size());
  };
  ptrdiff_t in_sizes[4], out_sizes[4], weight_sizes[4];
  CpuWindow w{};
  spread(in, in_sizes, w.in_step);
  spread(out, out_sizes, w.out_step);
  spread(weight, weight_sizes, w.weight_step);
  if (!known(weight) || in_sizes[1] % groups != 0 || weight_sizes[0] % groups != 0 ||
      weight_sizes[1] != in_sizes[1] / groups || out_sizes[0] != in_sizes[0] || out_sizes[1] != weight_sizes[0] ||
      (bias.has_value() && (!are_floats(*bias) || bias->dim() != 1 || bias->size(0) != out_sizes[1]))) {
    return false;
  }
  w.batches = static_cast<size_t>(in_sizes[0]);
  w.groups = static_cast<size_t>(groups);
  w.in_channels = static_cast<size_t>(weight_sizes[1]);
  w.out_channels = static_cast<size_t>(out_sizes[1] / groups);
  for (size_t d = 0; d < 2; ++d) {
    const bool has = d + spatial >= 2;
    const size_t own = d + spatial - 2;
    const int64_t given[3] = {has ? stride[own] : 1, has ? padding[own] : 0, has ? dilation[own] : 1};
    constexpr int64_t kMost = 1 << 20;
    if (given[0] < 1 || given[1] < 0 || given[2] < 1 || given[0] > kMost || given[1] > kMost || given[2] > kMost) {
      return false;
    }
    w.in[d] = in_sizes[d + 2];
    w.out[d] = out_sizes[d + 2];
    w.kernel[d] = weight_sizes[d + 2];
    w.stride[d] = static_cast<ptrdiff_t>(given[0]);
    w.padding[d] = static_cast<ptrdiff_t>(given[1]);
    w.dilation[d] = static_cast<ptrdiff_t>(given[2]);
    const int64_t room = w.in[d] + 2 * given[1] - given[2] * (w.kernel[d] - 1) - 1;
    if (room < 0 || w.out[d] != room / given[0] + 1) {
      return false;
    }
  }
  cpu_convolution(&w, floats(in), floats(weight), bias.has_value() ? floats(*bias) : nullptr, floats_of(out));
  return true;
}

} // namespace

Tensor& mm_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return product(a, b, out, 2) ? out : FALL_BACK(mm_out)(context, a, b, out);
}

Tensor& bmm_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return product(a, b, out, 3) ? out : FALL_BACK(bmm_out)(context, a, b, out);
}

Tensor& addmm_out(Context& context, const Tensor& in, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  float by, times;
  bool taken = number(beta, &by) && number(alpha, &times) && are_plain_floats(in, out) && out.dim() == 2 &&
               (in.dim() == 1 || in.dim() == 2);
  const int64_t rows = in.dim() == 2 ? in.size(0) : 1, columns = taken ? in.size(in.dim() - 1) : 0;
  taken =
      taken && (rows == out.size(0) || rows == 1) && (columns == out.size(1) || columns == 1) && product(a, b, out, 2);
  if (!taken) {
    return FALL_BACK(addmm_out)(context, in, a, b, beta, alpha, out);
  }
  const auto width = static_cast<size_t>(out.size(1)), step = static_cast<size_t>(columns == 1 ? 0 : 1);
  for (int64_t i = 0; i < out.size(0); ++i) {
    const float* add = floats(in) + (rows == 1 ? 0 : i * columns);
    cpu_scale_add(floats_of(out) + static_cast<size_t>(i) * width, add, step, width, times, by);
  }
  return out;
}

Tensor& convolution_out(Context& context, const Tensor& in, const Tensor& weight, const std::optional<Tensor>& bias,
                        Ints stride, Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups,
                        Tensor& out) {
  return !transposed && convolve(in, weight, bias, stride, padding, dilation, groups, out)
             ? out
             : FALL_BACK(convolution_out)(context, in, weight, bias, stride, padding, dilation, transposed,
                                          output_padding, groups, out);
}

} // namespace openneutron::native
