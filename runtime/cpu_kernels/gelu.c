/* GELU by its formula, 0.5 * x * (1 + erf(x / sqrt(2))), which the portable kernel computes in double precision: some 2,700
 * instructions without an FPU for that. Here it is a polynomial in integers, off by less than 2^-48 (the portable
 * one by 2^-51), and the result is taken only where every number so near rounds to the same float. */
#include "cpu_kernels.h"
#include "gelu_table.h"

#include <string.h>

#define ERROR (1u << 15) /* of 1 + erf, in 2^-62: theirs, ours and the rounding of their product */

/* a * b / 2^63, less at most a few units. */
static inline int64_t product(int64_t a, int64_t b) {
    const int32_t a_high = (int32_t)(a >> 32), b_high = (int32_t)(b >> 32);
    const int32_t a_low = (int32_t)((uint32_t)a >> 1), b_low = (int32_t)((uint32_t)b >> 1);
    const int64_t middle = ((int64_t)a_high * b_low + (int64_t)b_high * a_low) >> 30;
    return 2 * (int64_t)a_high * b_high + middle;
}

/* 1 + erf(x / sqrt(2)) in 2^-62; `place` is |x| in 2^-58, below 6. */
static uint64_t weight_of(uint64_t place, bool negative) {
    const int64_t *low = cpu_gelu_table[place >> 56].low;
    const int32_t *high = cpu_gelu_table[place >> 56].high;
    const int64_t within = (int64_t)((place << 8) - (UINT64_C(1) << 63)); /* from -1 to 1, in 2^-63 */
    const int32_t roughly = (int32_t)(within >> 32);
    int32_t small = high[CPU_GELU_DEGREE - CPU_GELU_HIGH];
    for (int k = CPU_GELU_DEGREE - CPU_GELU_HIGH; k-- > 0;) small = high[k] + (int32_t)((int64_t)small * roughly >> 31);
    int64_t sum = (int64_t)small * (1 << 11);
    for (int k = CPU_GELU_HIGH; k-- > 0;) sum = low[k] + product(sum, within);
    const uint64_t one = UINT64_C(1) << 62;
    return negative ? one - (uint64_t)sum : one + (uint64_t)sum;
}

/* False where it cannot tell. */
static bool gelu(float x, float *result) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 23 & 255) - 127;
    const bool negative = bits >> 31;
    if (!(x < 6.0f) || x == 0.0f) { /* the factor is 1 as nearly as a float can tell */
        *result = x;
        return true;
    }
    if (x < -8.7f) { /* the error function is -1 in double precision too */
        *result = exponent < 128 ? -0.0f : 0.0f;
        return true;
    }
    if (x <= -6.0f || exponent < -110) return false;
    const uint64_t mantissa = (bits & 0x7FFFFF) | 0x800000;
    const int shift = exponent + 35;
    const uint64_t place = shift >= 0 ? mantissa << shift : shift > -64 ? mantissa >> -shift : 0;
    const uint64_t weight = weight_of(place, negative);
    if (weight >> 32 == 0) return false;
    const int headroom = __builtin_clzll(weight);
    const uint64_t scaled = weight << headroom;
    const uint64_t high = (scaled >> 32) * (mantissa << 8), low = (uint64_t)(uint32_t)scaled * (mantissa << 8) >> 32;
    uint64_t value = high + low; /* from 2^62 to 2^64 */
    const int small = value >> 63 == 0;
    value <<= small;
    const uint64_t half = UINT64_C(1) << 39, rest = value & (2 * half - 1);
    const uint64_t near = ((uint64_t)ERROR << (headroom + small)) + 4;
    if (rest + near >= half && rest <= half + near) return false;
    const uint32_t rounded = (uint32_t)(value >> 40) + (rest > half); /* 2^24 adds 1 to the exponent */
    /* |x| * weight / 2: 2^(exponent + 1) for a value of 2^64 without headroom. */
    bits = (bits & 0x80000000) | ((uint32_t)(exponent + 127 + 1 - headroom - small) << 23);
    bits += rounded - 0x800000;
    memcpy(result, &bits, sizeof bits);
    return true;
}

size_t cpu_gelu(const float *in, float *out, size_t count) {
    size_t at = 0;
    while (at < count && gelu(in[at], &out[at])) ++at;
    return at;
}
