// The fixed-point arithmetic of the cortex_m dialect's Python reference.
//
// It is wider than the runtime's (arithmetic.h): intermediate values have 64 bits and wrap there, where LiteRT's have
// 32. Both agree wherever nothing overflows.
#ifndef NEUTRON_CORTEX_M_FIXED_POINT_H
#define NEUTRON_CORTEX_M_FIXED_POINT_H

#include <cmath>
#include <cstdint>
#include <limits>

#include "arithmetic.h"

namespace openneutron::cortex_m {

// x * multiplier * 2^(shift - 31): a product rounded half up, then a shift rounded half away from zero.
struct Requantize {
  int32_t multiplier;
  int32_t shift; // -63 to 63

  int32_t operator()(int64_t x) const {
    uint64_t value = static_cast<uint64_t>(x) << (shift > 0 ? shift : 0);
    uint64_t product = value * static_cast<uint64_t>(static_cast<int64_t>(multiplier)) + (UINT64_C(1) << 30);
    int64_t result = static_cast<int64_t>(product) >> 31;
    if (shift < 0) {
      int64_t mask = static_cast<int64_t>((UINT64_C(1) << -shift) - 1);
      int64_t remainder = result & mask;
      int64_t threshold = (mask >> 1) + (result < 0 ? 1 : 0);
      result = (result >> -shift) + (remainder > threshold ? 1 : 0);
    }
    return static_cast<int32_t>(result);
  }

  static bool valid(int64_t multiplier, int64_t shift) {
    return multiplier >= std::numeric_limits<int32_t>::min() && multiplier <= std::numeric_limits<int32_t>::max() &&
           shift >= -63 && shift <= 63;
  }
};

// The last steps of most operators: the output's zero point, then bounds. An int8 of what is left, as torch casts.
struct Output {
  int32_t offset, low, high;

  int8_t operator()(int32_t x) const {
    x = neutron_add32(x, offset);
    x = x < low ? low : x; // not neutron_clamp: with crossed bounds the upper one wins
    return static_cast<int8_t>(x > high ? high : x);
  }
};

// What a float becomes when cast to int32: x86's answer for what does not fit, which torch gives too.
inline int32_t to_int32(float x) {
  return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(x) : std::numeric_limits<int32_t>::min();
}

// A rounded value plus an offset, between bounds; all in float. NaN stays NaN.
inline float offset_clamp(float x, float offset, float low, float high) {
  x += offset;
  x = x < low ? low : x;
  return x > high ? high : x;
}

} // namespace openneutron::cortex_m

#endif
