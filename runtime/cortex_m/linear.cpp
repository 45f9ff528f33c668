// quantized_linear, quantized_batch_matmul: rows of one int8 matrix times rows of another.
#include "operators.h"

namespace openneutron::cortex_m {

namespace {

// The sum of (a + a_offset) * (b + b_offset). Wraps at 32 bits when Sum is uint32_t; the parts are summed apart so that
// the compiler finds the dot product of bytes.
template <class Sum>
Sum dot(const int8_t* a, Sum a_offset, const int8_t* b, Sum b_offset, int64_t length) {
  constexpr int64_t kBlock = 1 << 16; // the parts of a block fit 32 bits
  Sum total = 0;
  for (int64_t start = 0; start < length; start += kBlock) {
    const int64_t count = length - start < kBlock ? length - start : kBlock;
    int32_t products = 0, a_sum = 0, b_sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      products += a[start + i] * b[start + i];
      a_sum += a[start + i];
      b_sum += b[start + i];
    }
    total += static_cast<Sum>(products) + b_offset * static_cast<Sum>(a_sum) + a_offset * static_cast<Sum>(b_sum) +
             a_offset * b_offset * static_cast<Sum>(count);
  }
  return total;
}

} // namespace

Error quantized_linear_out(Tensor input, Tensor weights, OptionalTensor bias, OptionalTensor kernel_sum,
                           int64_t input_offset, int64_t filter_offset, int64_t output_offset,
                           IntList requantize_multipliers, IntList requantize_shifts, int64_t activation_max,
                           int64_t activation_min, Tensor out) {
  CORTEX_M_REQUIRE(has_type(input, ScalarType::Char) && has_type(weights, ScalarType::Char));
  CORTEX_M_REQUIRE(has_type(bias, ScalarType::Int) && has_type(kernel_sum, ScalarType::Int));
  CORTEX_M_REQUIRE(has_type(out, ScalarType::Char));
  CORTEX_M_REQUIRE(input.dim() >= 1 && weights.dim() == 2 && input.size(input.dim() - 1) == weights.size(1));
  CORTEX_M_REQUIRE(!bias || bias->numel() == weights.size(0));
  CORTEX_M_REQUIRE(!kernel_sum || kernel_sum->numel() == weights.size(0));
  CORTEX_M_REQUIRE(is_int32(input_offset) && is_int32(filter_offset) && is_int32(output_offset));
  CORTEX_M_REQUIRE(is_int32(activation_min) && is_int32(activation_max));
  CORTEX_M_REQUIRE(!requantize_multipliers.empty() && !requantize_shifts.empty());
  CORTEX_M_REQUIRE(Requantize::valid(requantize_multipliers[0], requantize_shifts[0]));
  SizesType sizes[kMaxRank] = {};
  for (ssize_t d = 0; d < input.dim(); ++d)
    sizes[d] = static_cast<SizesType>(input.size(d));
  sizes[input.dim() - 1] = static_cast<SizesType>(weights.size(0));
  CORTEX_M_TRY(shape_output(out, {sizes, static_cast<size_t>(input.dim())}));

  const Ordered x(input), w(weights);
  const int64_t length = weights.size(1);
  const int32_t* add = bias ? bias->const_data_ptr<int32_t>() : nullptr;
  const int32_t* sums = kernel_sum ? kernel_sum->const_data_ptr<int32_t>() : nullptr;
  const Requantize rescale{static_cast<int32_t>(requantize_multipliers[0]), static_cast<int32_t>(requantize_shifts[0])};
  const Output finish{static_cast<int32_t>(output_offset), static_cast<int32_t>(activation_min),
                      static_cast<int32_t>(activation_max)};
  int8_t* to = out.mutable_data_ptr<int8_t>();
  int64_t row = 0;
  walk_of(out).rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    const int8_t* in = x + row++ * length;
    int64_t input_sum = 0;
    for (int64_t i = 0; i < length; ++i)
      input_sum += in[i];
    for (int64_t o = 0; o < count; ++o) {
      int64_t sum;
      if (sums) { // the offsets and the bias are in the kernel sum; 64 bits from here on
        sum =
            static_cast<int32_t>(dot<uint32_t>(in, 0, w + o * length, 0, length)) + input_sum * filter_offset + sums[o];
      } else {
        uint32_t products = dot<uint32_t>(in, static_cast<uint32_t>(input_offset), w + o * length,
                                          static_cast<uint32_t>(filter_offset), length);
        sum = neutron_add32(static_cast<int32_t>(products), add ? add[o] : 0);
      }
      to[at[0] + o * step[0]] = finish(rescale(sum));
    }
  });
  return Error::Ok;
}

Error quantized_batch_matmul_out(Tensor lhs, int64_t lhs_zero_point, Tensor rhs_transposed, int64_t rhs_zero_point,
                                 int64_t output_zero_point, int64_t output_multiplier, int64_t output_shift, Tensor,
                                 Tensor out) {
  CORTEX_M_REQUIRE(has_type(lhs, ScalarType::Char) && has_type(rhs_transposed, ScalarType::Char));
  CORTEX_M_REQUIRE(has_type(out, ScalarType::Char) && lhs.dim() == 3 && rhs_transposed.dim() == 3);
  CORTEX_M_REQUIRE(lhs.size(0) == rhs_transposed.size(0) && lhs.size(2) == rhs_transposed.size(2));
  CORTEX_M_REQUIRE(is_int32(lhs_zero_point) && is_int32(rhs_zero_point) && is_int32(output_zero_point));
  CORTEX_M_REQUIRE(Requantize::valid(output_multiplier, output_shift));
  const SizesType sizes[3] = {static_cast<SizesType>(lhs.size(0)), static_cast<SizesType>(lhs.size(1)),
                              static_cast<SizesType>(rhs_transposed.size(1))};
  CORTEX_M_TRY(shape_output(out, {sizes, 3}));

  const Ordered a(lhs), b(rhs_transposed);
  const int64_t length = lhs.size(2), columns = rhs_transposed.size(1);
  const Requantize rescale{static_cast<int32_t>(output_multiplier), static_cast<int32_t>(output_shift)};
  const Output finish{static_cast<int32_t>(output_zero_point), -128, 127};
  int8_t* to = out.mutable_data_ptr<int8_t>();
  int64_t row = 0;
  walk_of(out).rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    const int64_t batch = row / lhs.size(1);
    for (int64_t j = 0; j < count; ++j) {
      // The offsets are negated zero points. The reference sums in float: exact below 2^24, rounded here above it.
      int64_t sum =
          dot<int64_t>(a + row * length, lhs_zero_point, b + (batch * columns + j) * length, rhs_zero_point, length);
      to[at[0] + j * step[0]] = finish(rescale(to_int32(static_cast<float>(sum))));
    }
    ++row;
  });
  return Error::Ok;
}

} // namespace openneutron::cortex_m
