// softmax: int8 along one dimension; in single precision, as torch computes it.
#include "operators.h"

namespace openneutron::cortex_m {

Error softmax_out(Tensor input, int64_t dim, int64_t input_zero_point, int64_t output_zero_point,
                  int64_t input_multiplier, int64_t input_shift, int64_t, Tensor out) {
  CORTEX_M_REQUIRE(has_type(input, ScalarType::Char) && has_type(out, ScalarType::Char));
  const int64_t rank = input.dim() > 0 ? input.dim() : 1;
  CORTEX_M_REQUIRE(dim >= -rank && dim < rank && is_int32(input_zero_point) && output_zero_point == -128);
  CORTEX_M_REQUIRE(is_int32(input_shift));
  const double scale = std::ldexp(static_cast<double>(input_multiplier) / 2147483648.0, static_cast<int>(input_shift)) /
      static_cast<double>(1 << 26);
  CORTEX_M_REQUIRE(scale > 0);
  CORTEX_M_TRY(shape_output(out, input.sizes()));
  if (input.numel() == 0) return Error::Ok;

  if (dim < 0) dim += rank;
  Walk<2> rows = walk_of(out, input);
  const int64_t depth = input.dim() > 0 ? input.size(dim) : 1;
  int64_t out_step = 0, in_step = 0;
  if (input.dim() > 0) {
    out_step = rows.strides[0][dim];
    in_step = rows.strides[1][dim];
    rows.sizes[dim] = 1;
  }
  const int8_t* in = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  std::vector<float> powers(static_cast<size_t>(depth));
  rows.rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    for (int64_t i = 0; i < count; ++i) {
      const int8_t* x = in + at[1] + i * step[1];
      int8_t* y = to + at[0] + i * step[0];
      float largest = -std::numeric_limits<float>::infinity();
      for (int64_t d = 0; d < depth; ++d) {
        powers[d] = static_cast<float>(x[d * in_step] - static_cast<int32_t>(input_zero_point)) * static_cast<float>(scale);
        largest = powers[d] > largest ? powers[d] : largest;
      }
      float sum = 0;
      for (int64_t d = 0; d < depth; ++d) sum += powers[d] = std::exp(powers[d] - largest);
      for (int64_t d = 0; d < depth; ++d) {
        float share = powers[d] / sum;
        y[d * out_step] = static_cast<int8_t>(to_int32(round_offset_clamp(share * 256.0f, -128.0f, -128.0f, 127.0f)));
      }
    }
  });
  return Error::Ok;
}

} // namespace openneutron::cortex_m
