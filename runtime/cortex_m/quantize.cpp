// quantize_per_tensor, dequantize_per_tensor: between float and integers, in single precision as ExecuTorch's kernels.
#include "operators.h"

namespace openneutron::cortex_m {

namespace {

// The values an integer type may be clamped to; none for a type that is not quantized to.
struct Bounds {
  int64_t low, high;
};

template <class T>
std::optional<Bounds> bounds() {
  return Bounds{std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

std::optional<Bounds> bounds_of(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return bounds<uint8_t>();
    case ScalarType::Char: return bounds<int8_t>();
    case ScalarType::UInt16: return bounds<uint16_t>();
    case ScalarType::Short: return bounds<int16_t>();
    case ScalarType::Int: return bounds<int32_t>();
    default: return std::nullopt;
  }
}

struct Scale {
  float factor, zero, low, high;
};

template <class From, class To>
void quantize(const Tensor& input, const Scale& scale, const Tensor& out) {
  const From* in = input.const_data_ptr<From>();
  To* to = out.mutable_data_ptr<To>();
  walk_of(out, input).rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    for (int64_t i = 0; i < count; ++i) {
      float x = static_cast<float>(in[at[1] + i * step[1]]) * scale.factor;
      to[at[0] + i * step[0]] =
          static_cast<To>(to_int32(offset_clamp(std::nearbyint(x), scale.zero, scale.low, scale.high)));
    }
  });
}

template <class From>
void quantize_to(ScalarType type, const Tensor& input, const Scale& scale, const Tensor& out) {
  switch (type) {
    case ScalarType::Byte: return quantize<From, uint8_t>(input, scale, out);
    case ScalarType::Char: return quantize<From, int8_t>(input, scale, out);
    case ScalarType::UInt16: return quantize<From, uint16_t>(input, scale, out);
    case ScalarType::Short: return quantize<From, int16_t>(input, scale, out);
    default: return quantize<From, int32_t>(input, scale, out);
  }
}

template <class From>
void dequantize(const Tensor& input, const Scale& scale, const Tensor& out) {
  const From* in = input.const_data_ptr<From>();
  float* to = out.mutable_data_ptr<float>();
  walk_of(out, input).rows([&](const int64_t* at, int64_t count, const int64_t* step) {
    for (int64_t i = 0; i < count; ++i) {
      to[at[0] + i * step[0]] = (static_cast<float>(in[at[1] + i * step[1]]) - scale.zero) * scale.factor;
    }
  });
}

} // namespace

Error quantize_per_tensor_out(Tensor input, double scale, int64_t zero_point, int64_t quant_min, int64_t quant_max,
                              ScalarType dtype, Tensor out) {
  std::optional<Bounds> limits = bounds_of(dtype);
  CORTEX_M_REQUIRE(limits && quant_min >= limits->low && quant_max <= limits->high);
  CORTEX_M_REQUIRE(scale != 0.0);
  CORTEX_M_REQUIRE(has_type(out, dtype) && has_data(input));
  CORTEX_M_TRY(shape_output(out, input.sizes()));
  // The inverse as ExecuTorch's kernel has it, of a scale in single precision; the Python reference's is of a double.
  Scale values{1.0f / static_cast<float>(scale), static_cast<float>(zero_point), static_cast<float>(quant_min),
               static_cast<float>(quant_max)};
  switch (input.scalar_type()) {
    case ScalarType::Float: quantize_to<float>(dtype, input, values, out); break;
    case ScalarType::Half: quantize_to<executorch::aten::Half>(dtype, input, values, out); break;
    case ScalarType::BFloat16: quantize_to<executorch::aten::BFloat16>(dtype, input, values, out); break;
    default: CORTEX_M_REQUIRE(!"the input is a float tensor");
  }
  return Error::Ok;
}

Error dequantize_per_tensor_out(Tensor input, double scale, int64_t zero_point, int64_t, int64_t, ScalarType dtype,
                                Tensor out) {
  CORTEX_M_REQUIRE(has_type(input, dtype) && has_type(out, ScalarType::Float));
  CORTEX_M_TRY(shape_output(out, input.sizes()));
  Scale values{static_cast<float>(scale), static_cast<float>(zero_point), 0, 0};
  switch (dtype) {
    case ScalarType::Byte: dequantize<uint8_t>(input, values, out); break;
    case ScalarType::Char: dequantize<int8_t>(input, values, out); break;
    case ScalarType::UInt16: dequantize<uint16_t>(input, values, out); break;
    case ScalarType::Short: dequantize<int16_t>(input, values, out); break;
    case ScalarType::Int: dequantize<int32_t>(input, values, out); break;
    default: CORTEX_M_REQUIRE(!"the input is an integer tensor");
  }
  return Error::Ok;
}

} // namespace openneutron::cortex_m
