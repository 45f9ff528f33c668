// softmax: int8 along the last dimension, in the fixed point of CMSIS-NN. The dialect's Python reference computes in
// float and differs by a step at times; the chip does not.
#include "operators.h"
#include "softmax.h"

namespace openneutron::cortex_m {

Error softmax_out(Tensor input, int64_t dim, int64_t input_zero_point, int64_t output_zero_point,
                  int64_t input_multiplier, int64_t input_shift, int64_t diff_min, Tensor out) {
  const int64_t rank = input.dim();
  CORTEX_M_REQUIRE(has_type(input, ScalarType::Char) && has_type(out, ScalarType::Char));
  CORTEX_M_REQUIRE(rank > 0 && (dim == -1 || dim == rank - 1)); // all that ExecuTorch's kernel takes
  CORTEX_M_REQUIRE(is_int32(input_zero_point) && output_zero_point == -128 && is_int32(diff_min));
  CORTEX_M_REQUIRE(is_int32(input_multiplier) && input_multiplier > 0 && input_shift >= 0 && input_shift < 31);
  CORTEX_M_TRY(shape_output(out, input.sizes()));
  const NeutronSoftmax softmax{static_cast<uint32_t>(input.size(rank - 1)), static_cast<int32_t>(input_multiplier),
                               static_cast<int32_t>(input_shift), static_cast<int32_t>(diff_min)};
  const int8_t* in = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  std::vector<int8_t> row(softmax.depth), shares(softmax.depth);
  walk_of(out, input).rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    for (int64_t i = 0; i < count; ++i)
      row[i] = in[at[1] + i * step[1]];
    neutron_softmax_row(&softmax, nullptr, row.data(), shares.data());
    for (int64_t i = 0; i < count; ++i)
      to[at[0] + i * step[0]] = shares[i];
  });
  return Error::Ok;
}

} // namespace openneutron::cortex_m
