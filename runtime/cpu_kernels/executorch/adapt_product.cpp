// Matrix products of floats.
#include "adapt.h"

PORTABLE(mm_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(bmm_out, const Tensor&, const Tensor&, Tensor&)
PORTABLE(addmm_out, const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&, Tensor&)

namespace openneutron::native {
namespace {

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

} // namespace openneutron::native
