// quantized_add, _mul, _div, _activation, minimum, maximum: one output element from one element of each operand.
#include "operators.h"

namespace openneutron::cortex_m {

namespace {

// [1, C, 1, 1] with [N, C, H, W], both channels-last: all that quantized_add and quantized_mul broadcast.
bool is_channel_broadcast(const Tensor& a, const Tensor& b) {
  return is_channels_last(a) && is_channels_last(b) && a.size(1) == b.size(1) &&
         (a.numel() == a.size(1) || b.numel() == b.size(1));
}

Error check_int8_pair(const Tensor& self, const Tensor& other, const Tensor& out) {
  CORTEX_M_REQUIRE(has_type(self, ScalarType::Char) && has_type(other, ScalarType::Char));
  CORTEX_M_REQUIRE(has_type(out, ScalarType::Char));
  CORTEX_M_REQUIRE(same_shape(self, other) || is_channel_broadcast(self, other));
  return shape_output(out, self.numel() > other.numel() ? self.sizes() : other.sizes());
}

// out = element(self, other) for every element of out; the three have one type.
template <class T, class Element>
void binary(const Tensor& self, const Tensor& other, const Tensor& out, Element element) {
  const T* a = self.const_data_ptr<T>();
  const T* b = other.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  walk_of(out, self, other).rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    const T *x = a + at[1], *y = b + at[2];
    T* z = to + at[0];
    for (int64_t i = 0; i < count; ++i, x += step[1], y += step[2], z += step[0])
      *z = element(*x, *y);
  });
}

} // namespace

Error quantized_add_out(Tensor self, int64_t self_zero_point, int64_t self_multiplier, int64_t self_shift, Tensor other,
                        int64_t other_zero_point, int64_t other_multiplier, int64_t other_shift,
                        int64_t output_zero_point, int64_t output_multiplier, int64_t output_shift,
                        int64_t activation_min, int64_t activation_max, Tensor out) {
  constexpr uint32_t kLeftShift = 20; // of CMSIS-NN, for int8
  CORTEX_M_REQUIRE(is_int32(self_zero_point) && is_int32(other_zero_point) && is_int32(output_zero_point));
  CORTEX_M_REQUIRE(is_int32(activation_min) && is_int32(activation_max));
  CORTEX_M_REQUIRE(Requantize::valid(self_multiplier, self_shift));
  CORTEX_M_REQUIRE(Requantize::valid(other_multiplier, other_shift));
  CORTEX_M_REQUIRE(Requantize::valid(output_multiplier, output_shift));
  CORTEX_M_TRY(check_int8_pair(self, other, out));

  // An operand has 256 values: scale them once.
  int32_t scaled[2][256];
  const Requantize inputs[2] = {{static_cast<int32_t>(self_multiplier), static_cast<int32_t>(self_shift)},
                                {static_cast<int32_t>(other_multiplier), static_cast<int32_t>(other_shift)}};
  const int32_t zeros[2] = {static_cast<int32_t>(self_zero_point), static_cast<int32_t>(other_zero_point)};
  for (int operand = 0; operand < 2; ++operand) {
    for (int32_t q = -128; q < 128; ++q) {
      scaled[operand][q + 128] = inputs[operand](neutron_shl32(neutron_sub32(q, zeros[operand]), kLeftShift));
    }
  }
  const Requantize rescale{static_cast<int32_t>(output_multiplier), static_cast<int32_t>(output_shift)};
  const Output finish{static_cast<int32_t>(output_zero_point), static_cast<int32_t>(activation_min),
                      static_cast<int32_t>(activation_max)};
  binary<int8_t>(self, other, out, [&](int8_t a, int8_t b) {
    return finish(rescale(neutron_add32(scaled[0][a + 128], scaled[1][b + 128])));
  });
  return Error::Ok;
}

Error quantized_mul_out(Tensor self, int64_t self_zero_point, Tensor other, int64_t other_zero_point,
                        int64_t output_zero_point, int64_t output_multiplier, int64_t output_shift, Tensor out) {
  CORTEX_M_REQUIRE(is_int32(self_zero_point) && is_int32(other_zero_point) && is_int32(output_zero_point));
  CORTEX_M_REQUIRE(Requantize::valid(output_multiplier, output_shift));
  CORTEX_M_TRY(check_int8_pair(self, other, out));
  const int32_t self_zero = static_cast<int32_t>(self_zero_point), other_zero = static_cast<int32_t>(other_zero_point);
  const Requantize rescale{static_cast<int32_t>(output_multiplier), static_cast<int32_t>(output_shift)};
  const Output finish{static_cast<int32_t>(output_zero_point), -128, 127};
  binary<int8_t>(self, other, out, [&](int8_t a, int8_t b) {
    return finish(rescale(neutron_mul32(neutron_sub32(a, self_zero), neutron_sub32(b, other_zero))));
  });
  return Error::Ok;
}

namespace {

template <class T>
void divide(const Tensor& self, int32_t self_zero, const Tensor& other, int32_t other_zero, int64_t output_zero_point,
            double output_scale, const Tensor& out) {
  const float scale = static_cast<float>(output_scale), zero = static_cast<float>(output_zero_point);
  const float low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  binary<T>(self, other, out, [&](T a, T b) {
    float numerator = static_cast<float>(neutron_sub32(a, self_zero));
    float denominator = static_cast<float>(neutron_sub32(b, other_zero));
    float quotient = denominator != 0.0f ? numerator / denominator : 0.0f; // no value of int8 is better for 1 / 0
    // Halves away from zero, as ExecuTorch's kernel; its Python reference rounds them to even.
    return static_cast<T>(to_int32(offset_clamp(std::round(quotient * scale), zero, low, high)));
  });
}

} // namespace

Error quantized_div_out(Tensor self, int64_t self_zero_point, Tensor other, int64_t other_zero_point,
                        int64_t output_zero_point, double output_scale, Tensor out) {
  const ScalarType type = self.scalar_type();
  CORTEX_M_REQUIRE(type == ScalarType::Char || type == ScalarType::Short);
  CORTEX_M_REQUIRE(has_type(self, type) && has_type(other, type) && has_type(out, type));
  CORTEX_M_REQUIRE(is_int32(self_zero_point) && is_int32(other_zero_point) && same_shape(self, other));
  CORTEX_M_TRY(shape_output(out, self.sizes()));
  const int32_t self_zero = static_cast<int32_t>(self_zero_point), other_zero = static_cast<int32_t>(other_zero_point);
  if (type == ScalarType::Char) {
    divide<int8_t>(self, self_zero, other, other_zero, output_zero_point, output_scale, out);
  } else {
    divide<int16_t>(self, self_zero, other, other_zero, output_zero_point, output_scale, out);
  }
  return Error::Ok;
}

Error quantized_activation_out(Tensor input, Tensor lut, Tensor out) {
  CORTEX_M_REQUIRE(has_type(input, ScalarType::Char) && has_type(out, ScalarType::Char));
  CORTEX_M_REQUIRE(has_type(lut, ScalarType::Char) && lut.dim() == 1 && lut.size(0) == 256);
  CORTEX_M_TRY(shape_output(out, input.sizes()));
  const int8_t* table = lut.const_data_ptr<int8_t>() + 128;
  binary<int8_t>(input, input, out, [&](int8_t x, int8_t) { return table[x]; });
  return Error::Ok;
}

namespace {

// The shape two tensors are broadcast to; of a single value the reference keeps the other one's shape.
Error shape_broadcast(const Tensor& self, const Tensor& other, const Tensor& out) {
  if (other.numel() == 1)
    return shape_output(out, self.sizes());
  SizesType sizes[kMaxRank] = {};
  const ssize_t rank = self.dim() > other.dim() ? self.dim() : other.dim();
  for (ssize_t d = 0; d < rank; ++d) {
    const ssize_t i = d - (rank - self.dim()), j = d - (rank - other.dim());
    const ssize_t a = i < 0 ? 1 : self.size(i), b = j < 0 ? 1 : other.size(j);
    CORTEX_M_REQUIRE(a == b || a == 1 || b == 1);
    sizes[d] = static_cast<SizesType>(a == 1 ? b : a);
  }
  return shape_output(out, {sizes, static_cast<size_t>(rank)});
}

template <class T>
Error extremum(const Tensor& self, const Tensor& other, bool largest, const Tensor& out) {
  // x != x: a NaN on either side is the result, as torch has it.
  if (largest) {
    binary<T>(self, other, out, [](T a, T b) { return a > b || a != a ? a : b; });
  } else {
    binary<T>(self, other, out, [](T a, T b) { return a < b || a != a ? a : b; });
  }
  return Error::Ok;
}

Error extremum(const Tensor& self, const Tensor& other, bool largest, const Tensor& out) {
  const ScalarType type = self.scalar_type();
  CORTEX_M_REQUIRE(has_type(self, type) && has_type(other, type) && has_type(out, type));
  CORTEX_M_TRY(shape_broadcast(self, other, out));
  switch (type) {
    case ScalarType::Byte: return extremum<uint8_t>(self, other, largest, out);
    case ScalarType::Char: return extremum<int8_t>(self, other, largest, out);
    case ScalarType::Short: return extremum<int16_t>(self, other, largest, out);
    case ScalarType::Int: return extremum<int32_t>(self, other, largest, out);
    case ScalarType::Long: return extremum<int64_t>(self, other, largest, out);
    case ScalarType::Float: return extremum<float>(self, other, largest, out);
    default: CORTEX_M_REQUIRE(!"a type minimum and maximum take");
  }
}

} // namespace

Error minimum_out(Tensor self, Tensor other, Tensor out) {
  return extremum(self, other, false, out);
}

Error maximum_out(Tensor self, Tensor other, Tensor out) {
  return extremum(self, other, true, out);
}

} // namespace openneutron::cortex_m
