// int8 operators of ExecuTorch's Cortex-M dialect that its kernels, built on CMSIS-NN, are slow at.
#include "adapt.h"

CORTEX_M(quantized_add_out, const Tensor&, int64_t, int64_t, int64_t, const Tensor&, int64_t, int64_t, int64_t, int64_t,
         int64_t, int64_t, int64_t, int64_t, Tensor&)
CORTEX_M(quantized_mul_out, const Tensor&, int64_t, const Tensor&, int64_t, int64_t, int64_t, int64_t, Tensor&)
CORTEX_M(softmax_out, const Tensor&, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, Tensor&)

namespace openneutron::cortex_m::native {
namespace {

using ::executorch::aten::ScalarType;
using ::executorch::aten::Tensor;
using Context = ::executorch::runtime::KernelRuntimeContext;
using openneutron::native::same_sizes;

constexpr ssize_t kWorthTables = 64; // elements of a sum
constexpr ssize_t kSafeSize =
    512; // below it no row's sum of exponentials is too large, and the input may be written over

bool are_int8(const Tensor& a, const Tensor& b, const Tensor& out) {
  return a.scalar_type() == ScalarType::Char && b.scalar_type() == ScalarType::Char &&
         out.scalar_type() == ScalarType::Char;
}

bool in_range(int64_t value, int64_t low, int64_t high) {
  return low <= value && value <= high;
}

bool is_zero(int64_t value) {
  return in_range(value, INT8_MIN, INT8_MAX);
}

bool is_fraction(int64_t multiplier) {
  return in_range(multiplier, 1, INT32_MAX);
}

const int8_t* values(const Tensor& tensor) {
  return static_cast<const int8_t*>(tensor.const_data_ptr());
}

// Elements of both, one behind the other, that a call is made of, and which of the two is repeated: as the kernels of
// ExecuTorch do, which see a tensor with one pixel as channels that are the last.
struct Pair {
  ssize_t count;
  bool repeat, swap;
};

bool pair_of(const Tensor& a, const Tensor& b, const Tensor& out, Pair* pair) {
  if (!are_int8(a, b, out) || out.numel() == 0) {
    return false;
  }
  const bool both = a.dim() == 4 && b.dim() == 4 && a.size(1) == b.size(1);
  const bool repeat = both && (a.numel() == a.size(1) || b.numel() == b.size(1));
  *pair = {repeat ? a.size(1) : out.numel(), repeat, a.numel() < b.numel()};
  return same_sizes(a.numel() < b.numel() ? b : a, out) && (repeat || same_sizes(a, b));
}

bool output_of(int64_t zero, int64_t multiplier, int64_t shift, int64_t low, int64_t high, CpuOutput* out) {
  if (!is_zero(zero) || !is_fraction(multiplier) || !in_range(shift, -22, -1) || !is_zero(low) || !is_zero(high)) {
    return false;
  }
  *out = {static_cast<int32_t>(zero), static_cast<int32_t>(multiplier), static_cast<int32_t>(-shift),
          static_cast<int32_t>(low), static_cast<int32_t>(high)};
  return true;
}

bool input_of(int64_t zero, int64_t multiplier, int64_t shift, CpuInput* in) {
  *in = {static_cast<int32_t>(zero), static_cast<int32_t>(multiplier), static_cast<int32_t>(shift)};
  return is_zero(zero) && is_fraction(multiplier) && in_range(shift, -31, 0);
}

int32_t (*tables(Context& context, size_t count))[256] {
  const auto memory = context.allocate_temp(count * 256 * sizeof(int32_t));
  return memory.ok() ? static_cast<int32_t (*)[256]>(*memory) : nullptr;
}

} // namespace

Tensor& quantized_add_out(Context& context, const Tensor& a, int64_t a_zero, int64_t a_multiplier, int64_t a_shift,
                          const Tensor& b, int64_t b_zero, int64_t b_multiplier, int64_t b_shift, int64_t zero,
                          int64_t multiplier, int64_t shift, int64_t low, int64_t high, Tensor& out) {
  Pair pair;
  CpuInput in[2];
  CpuOutput to;
  bool taken = !VECTORS && out.numel() >= kWorthTables && pair_of(a, b, out, &pair) &&
               input_of(a_zero, a_multiplier, a_shift, &in[0]) && input_of(b_zero, b_multiplier, b_shift, &in[1]) &&
               output_of(zero, multiplier, shift, low, high, &to);
  int32_t (*known)[256] = taken ? tables(context, 2) : nullptr;
  taken = known != nullptr && cpu_add_tables_s8(in, known);
  if (!taken) {
    return FALL_BACK_CORTEX_M(quantized_add_out)(context, a, a_zero, a_multiplier, a_shift, b, b_zero, b_multiplier,
                                                 b_shift, zero, multiplier, shift, low, high, out);
  }
  auto* result = static_cast<int8_t*>(out.mutable_data_ptr());
  for (ssize_t at = 0; at < out.numel(); at += pair.count) {
    const ssize_t a_at = pair.repeat && pair.swap ? 0 : at, b_at = pair.repeat && !pair.swap ? 0 : at;
    cpu_add_s8(known, &to, values(a) + a_at, values(b) + b_at, result + at, static_cast<size_t>(pair.count));
  }
  return out;
}

Tensor& quantized_mul_out(Context& context, const Tensor& a, int64_t a_zero, const Tensor& b, int64_t b_zero,
                          int64_t zero, int64_t multiplier, int64_t shift, Tensor& out) {
  Pair pair;
  CpuOutput to;
  if (VECTORS || !pair_of(a, b, out, &pair) || !is_zero(a_zero) || !is_zero(b_zero) ||
      !output_of(zero, multiplier, shift, INT8_MIN, INT8_MAX, &to)) {
    return FALL_BACK_CORTEX_M(quantized_mul_out)(context, a, a_zero, b, b_zero, zero, multiplier, shift, out);
  }
  auto* result = static_cast<int8_t*>(out.mutable_data_ptr());
  for (ssize_t at = 0; at < out.numel(); at += pair.count) {
    const ssize_t a_at = pair.repeat && pair.swap ? 0 : at, b_at = pair.repeat && !pair.swap ? 0 : at;
    cpu_mul_s8(static_cast<int32_t>(a_zero), static_cast<int32_t>(b_zero), &to, values(a) + a_at, values(b) + b_at,
               result + at, static_cast<size_t>(pair.count));
  }
  return out;
}

Tensor& softmax_out(Context& context, const Tensor& in, int64_t dim, int64_t in_zero, int64_t out_zero,
                    int64_t multiplier, int64_t shift, int64_t least, Tensor& out) {
  const ssize_t rank = in.dim();
  bool taken = are_int8(in, in, out) && rank > 0 && (dim == -1 || dim == rank - 1) && same_sizes(in, out) &&
               in.numel() > 0 && out_zero == INT8_MIN && is_fraction(multiplier) && in_range(shift, 0, 30) &&
               in_range(least, INT32_MIN + 1, 0) &&
               (in.size(rank - 1) < kSafeSize || values(in) != out.const_data_ptr());
  int32_t (*known)[256] = taken ? tables(context, 1) : nullptr;
  if (known != nullptr) {
    const CpuSoftmax softmax = {static_cast<int32_t>(multiplier), static_cast<int32_t>(shift),
                                static_cast<int32_t>(-least)};
    const auto size = static_cast<size_t>(in.size(rank - 1));
    taken = cpu_softmax_s8(&softmax, *known, values(in), static_cast<int8_t*>(out.mutable_data_ptr()),
                           static_cast<size_t>(in.numel()) / size, size);
  }
  return known != nullptr && taken
             ? out
             : FALL_BACK_CORTEX_M(softmax_out)(context, in, dim, in_zero, out_zero, multiplier, shift, least, out);
}

} // namespace openneutron::cortex_m::native
