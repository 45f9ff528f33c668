// Float operators, element by element: of two tensors that may broadcast, of a tensor and a number, of one tensor.
#include "adapt.h"

#include <cmath>
#include <string_view>

PORTABLE(add_out, const Tensor&, const Tensor&, const Scalar&, Tensor&)
PORTABLE(add_scalar_out, const Tensor&, const Scalar&, const Scalar&, Tensor&)
PORTABLE(sub_out, const Tensor&, const Tensor&, const Scalar&, Tensor&)
PORTABLE(sub_scalar_out, const Tensor&, const Scalar&, const Scalar&, Tensor&)
PORTABLE(mul_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(mul_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(div_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(div_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(minimum_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(maximum_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(where_out, const Tensor&, const Tensor&, const Tensor&, Tensor&)
PORTABLE(eq_tensor_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(eq_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(ne_tensor_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(ne_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(lt_tensor_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(lt_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(le_tensor_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(le_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(gt_tensor_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(gt_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(ge_tensor_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(ge_scalar_out, const Tensor&, const Scalar&, Tensor&)
PORTABLE(relu_out, const Tensor&, Tensor&)
PORTABLE(abs_out, const Tensor&, Tensor&)
PORTABLE(neg_out, const Tensor&, Tensor&)
PORTABLE(sqrt_out, const Tensor&, Tensor&)
PORTABLE(rsqrt_out, const Tensor&, Tensor&)
PORTABLE(reciprocal_out, const Tensor&, Tensor&)
PORTABLE(exp_out, const Tensor&, Tensor&)
PORTABLE(tanh_out, const Tensor&, Tensor&)
PORTABLE(sigmoid_out, const Tensor&, Tensor&)
PORTABLE(gelu_out, const Tensor&, std::string_view, Tensor&)
PORTABLE(clamp_out, const Tensor&, const std::optional<Scalar>&, const std::optional<Scalar>&, Tensor&)
PORTABLE(hardtanh_out, const Tensor&, const Scalar&, const Scalar&, Tensor&)

namespace openneutron::native {
namespace {

using ::executorch::runtime::tensors_have_same_dim_order;

// The size of a dimension of `out` in a tensor that broadcasts to it.
size_t size_in(const Tensor& tensor, const Tensor& out, ssize_t d) {
  const ssize_t own = d - (out.dim() - tensor.dim());
  return own < 0 ? 1 : static_cast<size_t>(tensor.size(own));
}

size_t step_in(const Tensor& tensor, const Tensor& out, ssize_t d) {
  const ssize_t own = d - (out.dim() - tensor.dim());
  return own < 0 || tensor.size(own) == 1 ? 0 : static_cast<size_t>(tensor.strides()[static_cast<size_t>(own)]);
}

// Whether tensors broadcast to what is written; `flat`: none of them has to.
template <typename... Tensors>
bool broadcast(bool* flat, const Tensor& out, const Tensors&... tensors) {
  *flat = true;
  bool fits = ((tensors.dim() <= out.dim()) && ...) && ((tensors.dim() == out.dim()) || ...);
  for (ssize_t d = 0; fits && d < out.dim(); ++d) {
    const auto size = static_cast<size_t>(out.size(d));
    const auto has = [&](const Tensor& tensor) { return size_in(tensor, out, d) == size; };
    fits = ((has(tensors) || size_in(tensors, out, d) == 1) && ...) && (has(tensors) || ...);
    *flat = *flat && (has(tensors) && ...);
  }
  return fits;
}

// Whether the kernel takes the call; it is done then.
bool binary(CpuBinary* row, const Tensor& a, const Tensor& b, float alpha, Tensor& out,
            ScalarType type = ScalarType::Float) {
  bool flat;
  if (!are_floats(a, b) || out.scalar_type() != type || !broadcast(&flat, out, a, b)) {
    return false;
  }
  if (!tensors_have_same_dim_order(a, b, out)) {
    return false;
  }
  if (out.numel() == 0) {
    return true;
  }
  if (flat) {
    row(floats(a), 1, floats(b), 1, out.mutable_data_ptr(), count_of(out), alpha);
    return true;
  }
  // As the portable kernel: the inputs by their strides, the output in the order of its sizes, whatever its own order is.
  CpuWalk walk{};
  for (ssize_t d = 0; d < out.dim(); ++d) {
    cpu_walk_add(&walk, static_cast<size_t>(out.size(d)), step_in(a, out, d), step_in(b, out, d), 0);
  }
  const auto bytes = static_cast<size_t>(out.element_size());
  cpu_broadcast(row, &walk, floats(a), floats(b), out.mutable_data_ptr(), bytes, alpha);
  return true;
}

bool where(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& out) {
  bool flat;
  if (condition.scalar_type() != ScalarType::Bool || !are_floats(a, b, out) ||
      !broadcast(&flat, out, condition, a, b) || !tensors_have_same_dim_order(condition, a, b, out)) {
    return false;
  }
  CpuWalk walk{};
  if (flat) {
    cpu_walk_add(&walk, count_of(out), 1, 1, 1);
  }
  for (ssize_t d = 0; !flat && d < out.dim(); ++d) {
    cpu_walk_add(&walk, static_cast<size_t>(out.size(d)), step_in(condition, out, d), step_in(a, out, d),
                 step_in(b, out, d));
  }
  if (out.numel() > 0) {
    cpu_where(&walk, condition.const_data_ptr<bool>(), floats(a), floats(b), floats_of(out));
  }
  return true;
}

bool unary_fits(const Tensor& in, const Tensor& out, ScalarType type = ScalarType::Float) {
  return are_floats(in) && out.scalar_type() == type && same_sizes(in, out) && tensors_have_same_dim_order(in, out);
}

bool with_number(CpuBinary* row, const Tensor& a, float b, Tensor& out, ScalarType type = ScalarType::Float) {
  if (!unary_fits(a, out, type)) {
    return false;
  }
  row(floats(a), 1, &b, 0, out.mutable_data_ptr(), count_of(out), 1.0f);
  return true;
}

bool unary(CpuUnary* function, const Tensor& in, Tensor& out) {
  if (!unary_fits(in, out)) {
    return false;
  }
  function(floats(in), floats_of(out), count_of(out));
  return true;
}

bool clamp(const Tensor& in, float low, float high, Tensor& out) {
  if (!unary_fits(in, out) || std::isnan(low) || std::isnan(high)) {
    return false;
  }
  cpu_clamp(floats(in), floats_of(out), count_of(out), low, high);
  return true;
}

} // namespace

#define SUM(name)                                                                                                      \
  Tensor& name##_out(Context& context, const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {           \
    float factor;                                                                                                      \
    const bool taken = number(alpha, &factor) && binary(cpu_##name, a, b, factor, out);                                \
    return taken ? out : FALL_BACK(name##_out)(context, a, b, alpha, out);                                             \
  }                                                                                                                    \
  Tensor& name##_scalar_out(Context& context, const Tensor& a, const Scalar& b, const Scalar& alpha, Tensor& out) {    \
    float factor, value;                                                                                               \
    const bool taken = number(alpha, &factor) && number(b, &value) && with_number(cpu_##name, a, factor * value, out); \
    return taken ? out : FALL_BACK(name##_scalar_out)(context, a, b, alpha, out);                                      \
  }

#define PRODUCT(name)                                                                          \
  Tensor& name##_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) { \
    float value;                                                                               \
    const bool taken = number(b, &value) && with_number(cpu_##name, a, value, out);            \
    return taken ? out : FALL_BACK(name##_scalar_out)(context, a, b, out);                     \
  }

#define BINARY(name)                                                                              \
  Tensor& name##_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {           \
    return binary(cpu_##name, a, b, 1.0f, out) ? out : FALL_BACK(name##_out)(context, a, b, out); \
  }

#define UNARY(name)                                                                    \
  Tensor& name##_out(Context& context, const Tensor& in, Tensor& out) {                \
    return unary(cpu_##name, in, out) ? out : FALL_BACK(name##_out)(context, in, out); \
  }

#define COMPARISON(name)                                                                                             \
  Tensor& name##_tensor_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {                       \
    return binary(cpu_##name, a, b, 1.0f, out, ScalarType::Bool) ? out                                               \
                                                                 : FALL_BACK(name##_tensor_out)(context, a, b, out); \
  }                                                                                                                  \
  Tensor& name##_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {                       \
    float value;                                                                                                     \
    return number(b, &value) && with_number(cpu_##name, a, value, out, ScalarType::Bool)                             \
               ? out                                                                                                 \
               : FALL_BACK(name##_scalar_out)(context, a, b, out);                                                   \
  }

SUM(add)
SUM(sub)
BINARY(mul)
PRODUCT(mul)
BINARY(div)
PRODUCT(div)
BINARY(minimum)
BINARY(maximum)
UNARY(relu)
UNARY(abs)
UNARY(neg)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(exp)
UNARY(tanh)
UNARY(sigmoid)

COMPARISON(eq)
COMPARISON(ne)
COMPARISON(lt)
COMPARISON(le)
COMPARISON(gt)
COMPARISON(ge)

Tensor& where_out(Context& context, const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& out) {
  return where(condition, a, b, out) ? out : FALL_BACK(where_out)(context, condition, a, b, out);
}

Tensor& gelu_out(Context& context, const Tensor& in, std::string_view approximate, Tensor& out) {
  if (DOUBLES || approximate != "none" || !unary_fits(in, out)) {
    return FALL_BACK(gelu_out)(context, in, approximate, out);
  }
  const float* from = floats(in);
  float* to = floats_of(out);
  for (size_t at = 0, count = count_of(in); at < count; ++at) {
    at += cpu_gelu(from + at, to + at, count - at);
    if (at < count) { // the portable kernel's expression
      to[at] = static_cast<float>(0.5 * from[at] * (1 + std::erf(from[at] * 0.70710678118654752440)));
    }
  }
  return out;
}

Tensor& clamp_out(Context& context, const Tensor& in, const std::optional<Scalar>& min,
                  const std::optional<Scalar>& max, Tensor& out) {
  float low = -INFINITY, high = INFINITY;
  const bool taken = (min.has_value() || max.has_value()) && (!min.has_value() || number(*min, &low)) &&
                     (!max.has_value() || number(*max, &high)) && clamp(in, low, high, out);
  return taken ? out : FALL_BACK(clamp_out)(context, in, min, max, out);
}

Tensor& hardtanh_out(Context& context, const Tensor& in, const Scalar& min, const Scalar& max, Tensor& out) {
  float low, high;
  const bool taken = number(min, &low) && number(max, &high) && clamp(in, low, high, out);
  return taken ? out : FALL_BACK(hardtanh_out)(context, in, min, max, out);
}

} // namespace openneutron::native
