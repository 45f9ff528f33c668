// Sums, means, softmax and layer norm of floats.
#include "adapt.h"

#include <tuple>

namespace torch::executor {
using Dims = std::optional<ArrayRef<int64_t>>;
using Type = std::optional<ScalarType>;
} // namespace torch::executor

PORTABLE(sum_dim_out, const Tensor&, Dims, bool, Type, Tensor&)
PORTABLE(mean_dim_out, const Tensor&, Dims, bool, Type, Tensor&)
PORTABLE(softmax_out, const Tensor&, int64_t, bool, Tensor&)
PORTABLE(log_softmax_out, const Tensor&, int64_t, bool, Tensor&)

namespace torch::executor::native {
std::tuple<Tensor&, Tensor&, Tensor&> native_layer_norm_out(::executorch::runtime::KernelRuntimeContext&, const Tensor&,
                                                            ArrayRef<int64_t>, const std::optional<Tensor>&,
                                                            const std::optional<Tensor>&, double, Tensor&, Tensor&,
                                                            Tensor&);
} // namespace torch::executor::native

namespace openneutron::native {
namespace {

using Dims = std::optional<ArrayRef<int64_t>>;
using Type = std::optional<ScalarType>;

bool reduce(const Tensor& in, const Dims& dims, bool keepdim, const Type& type, bool mean, Tensor& out) {
  if (!are_plain_floats(in, out) || in.numel() == 0 || in.dim() == 0 || in.dim() > CPU_RANK ||
      (type.has_value() && *type != ScalarType::Float)) {
    return false;
  }
  uint32_t reduced = 0;
  const size_t listed = dims.has_value() ? dims->size() : 0;
  for (size_t i = 0; i < listed; ++i) {
    const int64_t d = (*dims)[i] < 0 ? (*dims)[i] + in.dim() : (*dims)[i];
    if (d < 0 || d >= in.dim() || (reduced >> d & 1) != 0) {
      return false;
    }
    reduced |= 1u << d;
  }
  reduced = listed == 0 ? UINT32_MAX : reduced;
  CpuWalk kept{}, summed{};
  size_t number = 1;
  ssize_t at = 0;
  for (ssize_t d = 0; d < in.dim(); ++d) {
    const auto size = static_cast<size_t>(in.size(d)), step = static_cast<size_t>(in.strides()[static_cast<size_t>(d)]);
    const bool is_summed = (reduced >> d & 1) != 0;
    number *= is_summed ? size : 1;
    cpu_walk_add(is_summed ? &summed : &kept, size, step, 0, 0);
    if (!is_summed || keepdim) {
      if (at == out.dim() || out.size(at++) != (is_summed ? 1 : in.size(d))) {
        return false;
      }
    }
  }
  if (at != out.dim()) {
    return false;
  }
  // The portable kernel has a loop of its own for the last dimension alone, and that begins with 0.
  const bool from_zero = listed == 1 && (reduced >> (in.dim() - 1) & 1) != 0;
  cpu_sum(&kept, &summed, floats(in), floats_of(out), from_zero, mean ? static_cast<float>(number) : 1.0f);
  return true;
}

bool softmax(void (*rows)(const float*, float*, size_t, size_t), const Tensor& in, int64_t dim, bool half_to_float,
             Tensor& out) {
  if (half_to_float || !are_plain_floats(in, out) || !same_sizes(in, out) || in.dim() == 0 || dim < -in.dim() ||
      dim >= in.dim()) {
    return false;
  }
  const auto axis = static_cast<size_t>(dim < 0 ? dim + in.dim() : dim);
  const auto size = static_cast<size_t>(in.size(static_cast<ssize_t>(axis)));
  const auto step = static_cast<size_t>(in.strides()[axis]);
  for (size_t at = 0; at < count_of(in); at += size * step) {
    for (size_t i = at; i < at + step; ++i) {
      rows(floats(in) + i, floats_of(out) + i, size, step);
    }
  }
  return true;
}

} // namespace

Tensor& sum_dim_out(Context& context, const Tensor& in, Dims dims, bool keepdim, Type type, Tensor& out) {
  return reduce(in, dims, keepdim, type, false, out) ? out
                                                     : FALL_BACK(sum_dim_out)(context, in, dims, keepdim, type, out);
}

Tensor& mean_dim_out(Context& context, const Tensor& in, Dims dims, bool keepdim, Type type, Tensor& out) {
  return reduce(in, dims, keepdim, type, true, out) ? out
                                                    : FALL_BACK(mean_dim_out)(context, in, dims, keepdim, type, out);
}

Tensor& softmax_out(Context& context, const Tensor& in, int64_t dim, bool half_to_float, Tensor& out) {
  return softmax(cpu_softmax, in, dim, half_to_float, out)
             ? out
             : FALL_BACK(softmax_out)(context, in, dim, half_to_float, out);
}

Tensor& log_softmax_out(Context& context, const Tensor& in, int64_t dim, bool half_to_float, Tensor& out) {
  return softmax(cpu_log_softmax, in, dim, half_to_float, out)
             ? out
             : FALL_BACK(log_softmax_out)(context, in, dim, half_to_float, out);
}

std::tuple<Tensor&, Tensor&, Tensor&> native_layer_norm_out(Context& context, const Tensor& in, ArrayRef<int64_t> shape,
                                                            const std::optional<Tensor>& weight,
                                                            const std::optional<Tensor>& bias, double eps, Tensor& out,
                                                            Tensor& mean, Tensor& rstd) {
  const auto rank = static_cast<ssize_t>(shape.size());
  const ssize_t outer = in.dim() - rank;
  bool taken = are_plain_floats(in, out, mean, rstd) && same_sizes(in, out) && rank > 0 && outer >= 0 &&
               in.numel() > 0 && mean.dim() == in.dim() && same_sizes(mean, rstd);
  size_t size = 1;
  const auto fits = [&](const std::optional<Tensor>& given, ssize_t d) {
    return !given.has_value() ||
           (are_plain_floats(*given) && given->dim() == rank && given->size(d) == in.size(outer + d));
  };
  for (ssize_t d = 0; taken && d < rank; ++d) {
    taken = shape[static_cast<size_t>(d)] == in.size(outer + d) && fits(weight, d) && fits(bias, d) &&
            mean.size(outer + d) == 1;
    size *= static_cast<size_t>(in.size(outer + d));
  }
  for (ssize_t d = 0; taken && d < outer; ++d) {
    taken = mean.size(d) == in.size(d);
  }
  if (!taken) {
    return FALL_BACK(native_layer_norm_out)(context, in, shape, weight, bias, eps, out, mean, rstd);
  }
  for (size_t row = 0, at = 0; at < count_of(in); ++row, at += size) {
    floats_of(mean)[row] = cpu_layer_norm(floats(in) + at, weight.has_value() ? floats(*weight) : nullptr,
                                          bias.has_value() ? floats(*bias) : nullptr, floats_of(out) + at, size,
                                          static_cast<float>(eps), floats_of(rstd) + row);
  }
  return {out, mean, rstd};
}

} // namespace openneutron::native
