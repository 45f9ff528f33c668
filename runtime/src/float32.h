/* float32 to the last bit as IEEE 754 says, on every machine and without the C library. */
#ifndef NEUTRON_FLOAT32_H
#define NEUTRON_FLOAT32_H

#include <stdint.h>
#include <string.h>

#include "arithmetic.h"

#if defined(__SSE__)
#include <xmmintrin.h>
static inline float neutron_sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
#elif defined(__aarch64__)
static inline float neutron_sqrt(float x) {
    float root;
    __asm__("fsqrt %s0, %s1" : "=w"(root) : "w"(x));
    return root;
}
#elif defined(__arm__) && defined(__ARM_FP) && (__ARM_FP & 4)
static inline float neutron_sqrt(float x) {
    float root;
    __asm__("vsqrt.f32 %0, %1" : "=t"(root) : "t"(x));
    return root;
}
#else
/* Bit by bit on the integer mantissa: 26 bits of the root, the last of them for rounding; a remainder says that the
 * root lies above them, so that it is never half way. */
static inline float neutron_sqrt(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t exponent = bits >> 23 & 0xFFu, mantissa = bits & 0x7FFFFFu;
    if (x == 0.0f || bits == 0x7F800000u || x != x) return x;
    if (bits >> 31) return (x - x) / (x - x);
    if (exponent == 0) {
        for (exponent = 1; !(mantissa & 0x800000u); --exponent) mantissa <<= 1;
    } else {
        mantissa |= 0x800000u;
    }
    int32_t power = (int32_t)exponent - 127;
    uint64_t rest = (uint64_t)mantissa << 27; /* 2^50 <= rest < 2^51 */
    if (power & 1) {
        rest <<= 1;
        power -= 1;
    }
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 25; bit != 0; bit >>= 1) {
        uint64_t trial = root + bit;
        if (trial * trial <= rest) root = trial;
    }
    uint32_t low = (uint32_t)(root & 3u) << 1 | (root * root < rest ? 1u : 0u);
    uint32_t kept = (uint32_t)(root >> 2);
    if (low > 4u || (low == 4u && (kept & 1u))) kept += 1u;
    bits = (uint32_t)(power / 2 + 127 - 1) * 0x800000u + kept; /* the leading bit of the mantissa is one exponent */
    memcpy(&x, &bits, sizeof x);
    return x;
}
#endif

/* The nearest integer, halves away from zero; as the reference machine converts, what does not fit, NaN too, becomes
 * INT32_MIN. */
static inline int32_t neutron_round_to_int(float x) {
    if (!(x >= -2147483648.0f && x < 2147483648.0f)) return INT32_MIN;
    int32_t whole = (int32_t)x;
    float rest = x - (float)whole; /* exact: a float with a fraction is below 2^23 */
    if (rest >= 0.5f) return whole + 1;
    return rest <= -0.5f ? whole - 1 : whole;
}

static inline int32_t neutron_quantize_float(float x, float scale, int32_t zero) {
    return neutron_clamp(neutron_add32(neutron_round_to_int(x / scale), zero), -128, 127);
}

static inline float neutron_floor(float x) {
    if (!(x > -8388608.0f && x < 8388608.0f) || x == 0.0f) return x; /* whole already, or no number */
    float whole = (float)(int32_t)x;
    return whole > x ? whole - 1.0f : whole;
}

#endif
