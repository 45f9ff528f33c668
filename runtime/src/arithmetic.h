/* The fixed-point arithmetic of LiteRT's reference kernels, total: no input, however wrong, is undefined.
 * Where the reference would overflow a signed integer, these wrap, as it does on every machine in use. */
#ifndef NEUTRON_ARITHMETIC_H
#define NEUTRON_ARITHMETIC_H

#include <stdint.h>

static inline int32_t neutron_add32(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); }

static inline int32_t neutron_sub32(int32_t a, int32_t b) { return (int32_t)((uint32_t)a - (uint32_t)b); }

static inline int32_t neutron_mul32(int32_t a, int32_t b) { return (int32_t)((uint32_t)a * (uint32_t)b); }

static inline int32_t neutron_shl32(int32_t a, uint32_t bits) { return (int32_t)((uint32_t)a << (bits & 31u)); }

static inline int32_t neutron_clamp(int32_t x, int32_t low, int32_t high) {
    return x < low ? low : x > high ? high : x;
}

/* High half of 2ab, rounded half up; saturates in the one case that overflows. The reference's rounding (away
 * from zero, then a division that truncates) is the same function. */
static inline int32_t neutron_high_mul(int32_t a, int32_t b) {
    if (a == INT32_MIN && b == INT32_MIN) return INT32_MAX;
    return (int32_t)(((int64_t)a * b + (INT64_C(1) << 30)) >> 31);
}

/* x / 2^bits, rounded half away from zero. */
static inline int32_t neutron_shift_right(int32_t x, uint32_t bits) {
    bits &= 31u;
    int32_t mask = (int32_t)((UINT32_C(1) << bits) - 1u);
    int32_t remainder = x & mask;
    int32_t threshold = (mask >> 1) + (x < 0 ? 1 : 0);
    return (x >> bits) + (remainder > threshold ? 1 : 0);
}

/* x * multiplier * 2^(shift - 31): the two roundings of the reference. */
static inline int32_t neutron_scale(int32_t x, int32_t multiplier, int32_t shift) {
    uint32_t left = shift > 0 ? (uint32_t)shift : 0u;
    uint32_t right = shift > 0 ? 0u : 0u - (uint32_t)shift;
    return neutron_shift_right(neutron_high_mul(neutron_shl32(x, left), multiplier), right);
}

#endif
