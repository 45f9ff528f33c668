// quantize_per_tensor, quantize_per_channel and back, between float and int8, uint8, int16.
#include "adapt.h"

PORTABLE(quantize_per_tensor_out, const Tensor&, double, int64_t, int64_t, int64_t, ScalarType, Tensor&)
PORTABLE(quantize_per_tensor_tensor_args_out, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, ScalarType,
         Tensor&)
PORTABLE(quantize_per_channel_out, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, int64_t, ScalarType,
         Tensor&)
PORTABLE(dequantize_per_tensor_out, const Tensor&, double, int64_t, int64_t, int64_t, ScalarType,
         std::optional<ScalarType>, Tensor&)
PORTABLE(dequantize_per_tensor_tensor_args_out, const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t,
         ScalarType, std::optional<ScalarType>, Tensor&)
PORTABLE(dequantize_per_channel_out, const Tensor&, const Tensor&, const std::optional<Tensor>&, int64_t, int64_t,
         int64_t, ScalarType, std::optional<ScalarType>, Tensor&)
CORTEX_M(quantize_per_tensor_out, const Tensor&, double, int64_t, int64_t, int64_t, ScalarType, Tensor&)
CORTEX_M(dequantize_per_tensor_out, const Tensor&, double, int64_t, int64_t, int64_t, ScalarType, Tensor&)

namespace openneutron::native {
namespace {

bool small(int64_t zero) {
  return -CPU_ZERO_LIMIT <= zero && zero <= CPU_ZERO_LIMIT;
}

bool bounds_fit(ScalarType type, int64_t low, int64_t high) {
  switch (type) {
    case ScalarType::Byte: return low >= 0 && high <= UINT8_MAX && low <= UINT8_MAX && high >= 0;
    case ScalarType::Char: return low >= INT8_MIN && high <= INT8_MAX && low <= INT8_MAX && high >= INT8_MIN;
    case ScalarType::Short: return low >= INT16_MIN && high <= INT16_MAX && low <= INT16_MAX && high >= INT16_MIN;
    default: return false;
  }
}

bool can_quantize(const Tensor& in, int64_t low, int64_t high, ScalarType type, const Tensor& out) {
  return in.scalar_type() == ScalarType::Float && out.scalar_type() == type && same_sizes(in, out) &&
         bounds_fit(type, low, high);
}

// Elements from `at` on.
template <bool narrow = false>
void quantize(const Tensor& in, Tensor& out, size_t at, size_t count, double scale, int64_t zero, int64_t low,
              int64_t high) {
  const float inverse = 1.0f / static_cast<float>(scale);
  const auto z = static_cast<int32_t>(zero), l = static_cast<int32_t>(low), h = static_cast<int32_t>(high);
  const float* from = static_cast<const float*>(in.const_data_ptr()) + at;
  void* to = out.mutable_data_ptr();
  if (!narrow && out.scalar_type() == ScalarType::Byte) {
    cpu_quantize_u8(from, static_cast<uint8_t*>(to) + at, count, inverse, z, l, h);
  } else if (out.scalar_type() == ScalarType::Char) {
    const auto row = narrow ? cpu_quantize_narrow_s8 : cpu_quantize_s8;
    row(from, static_cast<int8_t*>(to) + at, count, inverse, z, l, h);
  } else {
    const auto row = narrow ? cpu_quantize_narrow_s16 : cpu_quantize_s16;
    row(from, static_cast<int16_t*>(to) + at, count, inverse, z, l, h);
  }
}

bool can_dequantize(const Tensor& in, int64_t low, int64_t high, ScalarType type,
                    const std::optional<ScalarType>& out_type, const Tensor& out) {
  return in.scalar_type() == type && out.scalar_type() == ScalarType::Float && same_sizes(in, out) && low <= high &&
         (!out_type.has_value() || *out_type == ScalarType::Float) &&
         (type == ScalarType::Byte || type == ScalarType::Char || type == ScalarType::Short);
}

void dequantize(const Tensor& in, Tensor& out, size_t at, size_t count, float scale, int64_t zero) {
  const auto z = static_cast<int32_t>(zero);
  const void* from = in.const_data_ptr();
  float* to = static_cast<float*>(out.mutable_data_ptr()) + at;
  switch (in.scalar_type()) {
    case ScalarType::Byte: return cpu_dequantize_u8(static_cast<const uint8_t*>(from) + at, to, count, scale, z);
    case ScalarType::Char: return cpu_dequantize_s8(static_cast<const int8_t*>(from) + at, to, count, scale, z);
    default: return cpu_dequantize_s16(static_cast<const int16_t*>(from) + at, to, count, scale, z);
  }
}

bool are_one(const Tensor& scale, const Tensor& zero) {
  return scale.scalar_type() == ScalarType::Double && zero.scalar_type() == ScalarType::Long && scale.numel() == 1 &&
         zero.numel() == 1;
}

// The axis, or -1; channels lie one after the other in each of the outer blocks.
int64_t channel_axis(const Tensor& in, int64_t axis, const Tensor& scales) {
  if (in.dim() == 0 || axis < -in.dim() || axis >= in.dim()) {
    return -1;
  }
  axis += axis < 0 ? in.dim() : 0;
  return scales.numel() == in.size(axis) ? axis : -1;
}

size_t inner_size(const Tensor& in, int64_t axis) {
  size_t found = 1;
  for (int64_t d = axis + 1; d < in.dim(); ++d) {
    found *= static_cast<size_t>(in.size(d));
  }
  return found;
}

} // namespace

Tensor& quantize_per_tensor_out(Context& context, const Tensor& input, double scale, int64_t zero_point,
                                int64_t quant_min, int64_t quant_max, ScalarType dtype, Tensor& out) {
  if (!can_quantize(input, quant_min, quant_max, dtype, out) || !small(zero_point)) {
    return FALL_BACK(quantize_per_tensor_out)(context, input, scale, zero_point, quant_min, quant_max, dtype, out);
  }
  quantize(input, out, 0, static_cast<size_t>(input.numel()), scale, zero_point, quant_min, quant_max);
  return out;
}

Tensor& quantize_per_tensor_tensor_args_out(Context& context, const Tensor& input, const Tensor& scale,
                                            const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
                                            ScalarType dtype, Tensor& out) {
  if (!are_one(scale, zero_point)) {
    return FALL_BACK(quantize_per_tensor_tensor_args_out)(context, input, scale, zero_point, quant_min, quant_max,
                                                          dtype, out);
  }
  return quantize_per_tensor_out(context, input, *scale.const_data_ptr<double>(), *zero_point.const_data_ptr<int64_t>(),
                                 quant_min, quant_max, dtype, out);
}

Tensor& quantize_per_channel_out(Context& context, const Tensor& input, const Tensor& scales, const Tensor& zero_points,
                                 int64_t axis, int64_t quant_min, int64_t quant_max, ScalarType dtype, Tensor& out) {
  const int64_t channel = channel_axis(input, axis, scales);
  bool taken = channel >= 0 && can_quantize(input, quant_min, quant_max, dtype, out) &&
               scales.scalar_type() == ScalarType::Double && zero_points.scalar_type() == ScalarType::Long &&
               zero_points.numel() == scales.numel();
  const auto channels = static_cast<size_t>(scales.numel());
  for (size_t c = 0; taken && c < channels; ++c) {
    taken = small(zero_points.const_data_ptr<int64_t>()[c]);
  }
  if (!taken) {
    return FALL_BACK(quantize_per_channel_out)(context, input, scales, zero_points, axis, quant_min, quant_max, dtype,
                                               out);
  }
  const size_t inner = inner_size(input, channel), count = static_cast<size_t>(input.numel());
  for (size_t at = 0, c = 0; at < count; at += inner, c = c + 1 == channels ? 0 : c + 1) {
    quantize(input, out, at, inner, scales.const_data_ptr<double>()[c], zero_points.const_data_ptr<int64_t>()[c],
             quant_min, quant_max);
  }
  return out;
}

Tensor& dequantize_per_tensor_out(Context& context, const Tensor& input, double scale, int64_t zero_point,
                                  int64_t quant_min, int64_t quant_max, ScalarType dtype,
                                  std::optional<ScalarType> out_dtype, Tensor& out) {
  if (!can_dequantize(input, quant_min, quant_max, dtype, out_dtype, out) || !small(zero_point)) {
    return FALL_BACK(dequantize_per_tensor_out)(context, input, scale, zero_point, quant_min, quant_max, dtype,
                                                out_dtype, out);
  }
  dequantize(input, out, 0, static_cast<size_t>(input.numel()), static_cast<float>(scale), zero_point);
  return out;
}

Tensor& dequantize_per_tensor_tensor_args_out(Context& context, const Tensor& input, const Tensor& scale,
                                              const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
                                              ScalarType dtype, std::optional<ScalarType> out_dtype, Tensor& out) {
  if (!are_one(scale, zero_point)) {
    return FALL_BACK(dequantize_per_tensor_tensor_args_out)(context, input, scale, zero_point, quant_min, quant_max,
                                                            dtype, out_dtype, out);
  }
  return dequantize_per_tensor_out(context, input, *scale.const_data_ptr<double>(),
                                   *zero_point.const_data_ptr<int64_t>(), quant_min, quant_max, dtype, out_dtype, out);
}

// For int8 the portable kernel multiplies in double precision and rounds to float: the product of a float and such an
// integer is exact there, so it rounds once, as the float product does.
Tensor& dequantize_per_channel_out(Context& context, const Tensor& input, const Tensor& scales,
                                   const std::optional<Tensor>& zero_points, int64_t axis, int64_t quant_min,
                                   int64_t quant_max, ScalarType dtype, std::optional<ScalarType> out_dtype,
                                   Tensor& out) {
  const int64_t channel = channel_axis(input, axis, scales);
  bool taken = channel >= 0 && can_dequantize(input, quant_min, quant_max, dtype, out_dtype, out) && is_plain(input) &&
               (scales.scalar_type() == ScalarType::Double || scales.scalar_type() == ScalarType::Float) &&
               (!zero_points.has_value() ||
                (zero_points->scalar_type() == ScalarType::Long && zero_points->numel() == scales.numel()));
  const auto channels = static_cast<size_t>(scales.numel());
  const int64_t* zeros = taken && zero_points.has_value() ? zero_points->const_data_ptr<int64_t>() : nullptr;
  for (size_t c = 0; taken && c < channels; ++c) {
    const int64_t zero = zeros != nullptr ? zeros[c] : 0;
    taken = quant_min <= zero && zero <= quant_max && small(zero); // the portable kernel stops for others
  }
  if (!taken) {
    return FALL_BACK(dequantize_per_channel_out)(context, input, scales, zero_points, axis, quant_min, quant_max, dtype,
                                                 out_dtype, out);
  }
  const size_t inner = inner_size(input, channel), count = static_cast<size_t>(input.numel());
  for (size_t at = 0, c = 0; at < count; at += inner, c = c + 1 == channels ? 0 : c + 1) {
    const float scale = scales.scalar_type() == ScalarType::Double
                            ? static_cast<float>(scales.const_data_ptr<double>()[c])
                            : scales.const_data_ptr<float>()[c];
    dequantize(input, out, at, inner, scale, zeros != nullptr ? zeros[c] : 0);
  }
  return out;
}

} // namespace openneutron::native

// The Cortex-M dialect's: the same, of int8 and int16, with another conversion of values that no integer has place for.
namespace openneutron::cortex_m::native {

using namespace openneutron::native;

Tensor& quantize_per_tensor_out(Context& context, const Tensor& input, double scale, int64_t zero_point,
                                int64_t quant_min, int64_t quant_max, ScalarType dtype, Tensor& out) {
  if (VECTORS || dtype == ScalarType::Byte || !can_quantize(input, quant_min, quant_max, dtype, out) ||
      !small(zero_point)) {
    return FALL_BACK_CORTEX_M(quantize_per_tensor_out)(context, input, scale, zero_point, quant_min, quant_max, dtype,
                                                       out);
  }
  quantize<true>(input, out, 0, count_of(input), scale, zero_point, quant_min, quant_max);
  return out;
}

Tensor& dequantize_per_tensor_out(Context& context, const Tensor& input, double scale, int64_t zero_point,
                                  int64_t quant_min, int64_t quant_max, ScalarType dtype, Tensor& out) {
  if (VECTORS || dtype == ScalarType::Byte || !bounds_fit(dtype, quant_min, quant_max) || zero_point < quant_min ||
      zero_point > quant_max || !can_dequantize(input, quant_min, quant_max, dtype, std::nullopt, out)) {
    return FALL_BACK_CORTEX_M(dequantize_per_tensor_out)(context, input, scale, zero_point, quant_min, quant_max, dtype,
                                                         out);
  }
  dequantize(input, out, 0, count_of(input), static_cast<float>(scale), zero_point);
  return out;
}

} // namespace openneutron::cortex_m::native
