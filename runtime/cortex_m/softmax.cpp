// softmax: int8 along one dimension, in single precision.
//
// The reference calls torch's softmax, whose last bits decide which way a share near half a step is rounded. They
// depend on the exponential it uses and on the order of its sums, and these on the CPU: along the last dimension and
// where enough elements lie side by side it works on vectors as wide as the CPU's. This file does the same steps, as
// one thread does them; a tensor so large that torch divides it between threads may differ at the seams.
#include <cstdlib>
#include <cstring>

#include "operators.h"

namespace openneutron::cortex_m {

namespace {

constexpr int64_t kMostLanes = 16;

// How torch computes on this machine: it takes the widest vectors there are, or those it is told to.
struct Machine {
  int64_t lanes = 8;
  bool vectors = false; // else plain C++, of the same width

  Machine() {
#if defined(__x86_64__)
    const char* told = std::getenv("ATEN_CPU_CAPABILITY");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq");
    if (told && (!std::strcmp(told, "avx512") || !std::strcmp(told, "avx2") || !std::strcmp(told, "default"))) {
      vectors = std::strcmp(told, "default") != 0;
      lanes = std::strcmp(told, "avx512") ? 8 : 16;
    } else {
      vectors = avx2;
      lanes = avx512 ? 16 : 8;
    }
#endif
  }
};

float power_of_two(int32_t exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// e^x for x <= 0 as SLEEF's expf has it, which is torch's on vectors: range reduction by ln 2 in two parts, a
// polynomial of degree 7, fused multiply-adds throughout.
float vector_exp(float x) {
  if (x < -104.0f)
    return 0.0f;
  const float count = std::nearbyint(x * 1.44269504088896340736f);
  const float s = std::fma(count, -1.428606765330187045e-06f, std::fma(count, -0.693145751953125f, x));
  float u = 0.000198527617612853646278381f;
  for (float c : {0.00139304355252534151077271f, 0.00833336077630519866943359f, 0.0416664853692054748535156f,
                  0.166666671633720397949219f, 0.5f}) {
    u = std::fma(u, s, c);
  }
  u = 1.0f + std::fma(s * s, u, s);
  const int32_t exponent = static_cast<int32_t>(count), half = exponent >> 1; // in two steps: it may leave the range
  return u * power_of_two(half) * power_of_two(exponent - half);
}

// The sum in the order of torch's vector reduction: lane by lane, then halves of the lanes.
float vector_sum(const Machine& machine, const float* x, int64_t count) {
  const int64_t lanes = machine.lanes;
  float sums[kMostLanes];
  for (int64_t i = 0; i < count && i < lanes; ++i)
    sums[i] = x[i];
  for (int64_t i = lanes; i < count; ++i)
    sums[i % lanes] += x[i];
  if (count < lanes || !machine.vectors) {
    for (int64_t i = 1; i < count && i < lanes; ++i)
      sums[0] += sums[i];
    return sums[0];
  }
  for (int64_t half = lanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i)
      sums[i] += sums[i + half];
  }
  return sums[0];
}

// Values in, shares out, along the last dimension.
void softmax_last(const Machine& machine, float* x, int64_t count) {
  float largest = x[0];
  for (int64_t i = 1; i < count; ++i)
    largest = x[i] > largest ? x[i] : largest;
  for (int64_t i = 0; i < count; ++i)
    x[i] = machine.vectors ? vector_exp(x[i] - largest) : std::exp(x[i] - largest);
  const float scale = 1.0f / vector_sum(machine, x, count);
  for (int64_t i = 0; i < count; ++i)
    x[i] *= scale;
}

// Along another dimension; `vectors` if the element is one of a full vector of neighbours.
void softmax_inner(bool vectors, float* x, int64_t count) {
  float largest = x[0], sum = 0.0f;
  for (int64_t i = 1; i < count; ++i)
    largest = x[i] > largest ? x[i] : largest;
  for (int64_t i = 0; i < count; ++i)
    sum += x[i] = vectors ? vector_exp(x[i] - largest) : std::exp(x[i] - largest);
  for (int64_t i = 0; i < count; ++i)
    x[i] /= sum;
}

} // namespace

Error softmax_out(Tensor input, int64_t dim, int64_t input_zero_point, int64_t output_zero_point,
                  int64_t input_multiplier, int64_t input_shift, int64_t, Tensor out) {
  static const Machine machine;
  const int64_t rank = input.dim() > 0 ? input.dim() : 1; // a single value is a row of one
  CORTEX_M_REQUIRE(has_type(input, ScalarType::Char) && has_type(out, ScalarType::Char));
  CORTEX_M_REQUIRE(dim >= -rank && dim < rank && is_int32(input_zero_point) && output_zero_point == -128);
  CORTEX_M_REQUIRE(is_int32(input_multiplier) && is_exponent(input_shift));
  // The multiplier brings the input to Q5.26: undo that for its scale.
  const double scale =
      std::ldexp(static_cast<double>(input_multiplier), static_cast<int>(input_shift) - 31) / (1 << 26);
  CORTEX_M_REQUIRE(scale > 0);
  CORTEX_M_TRY(shape_output(out, input.sizes()));
  if (input.numel() == 0)
    return Error::Ok;

  float values[256];
  for (int32_t q = -128; q < 128; ++q) {
    values[q + 128] =
        static_cast<float>(neutron_sub32(q, static_cast<int32_t>(input_zero_point))) * static_cast<float>(scale);
  }
  if (dim < 0)
    dim += rank;
  Walk<2> rows = walk_of(out, input);
  const int64_t count = input.dim() > 0 ? input.size(dim) : 1;
  const int64_t out_step = input.dim() > 0 ? out.strides()[dim] : 0;
  const int64_t in_step = input.dim() > 0 ? input.strides()[dim] : 0;
  int64_t inner = 1; // elements side by side in the order of the dimensions
  for (int64_t d = dim + 1; d < rank; ++d)
    inner *= input.size(d);
  if (input.dim() > 0)
    rows.sizes[dim] = 1;

  const int8_t* in = input.const_data_ptr<int8_t>();
  int8_t* to = out.mutable_data_ptr<int8_t>();
  std::vector<float> row(static_cast<size_t>(count));
  int64_t index = 0;
  rows.rows([&](const int64_t* at, int64_t length, const int64_t* step) {
    for (int64_t i = 0; i < length; ++i, ++index) {
      const int8_t* x = in + at[1] + i * step[1];
      int8_t* y = to + at[0] + i * step[0];
      for (int64_t k = 0; k < count; ++k)
        row[k] = values[x[k * in_step] + 128];
      if (dim == rank - 1) {
        softmax_last(machine, row.data(), count);
      } else {
        const bool full = index % inner < inner / machine.lanes * machine.lanes;
        softmax_inner(machine.vectors && full, row.data(), count);
      }
      for (int64_t k = 0; k < count; ++k) {
        y[k * out_step] = static_cast<int8_t>(to_int32(round_offset_clamp(row[k] * 256.0f, -128.0f, -128.0f, 127.0f)));
      }
    }
  });
  return Error::Ok;
}

} // namespace openneutron::cortex_m
