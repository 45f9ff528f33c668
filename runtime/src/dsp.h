/* Inner parts for cores with Arm's DSP extension (Cortex-M33 and its like): two 16-bit products an instruction, four
 * bytes compared at once. Every function gives the same bits as its portable twin; NEUTRON_PORTABLE leaves them out. */
#ifndef NEUTRON_DSP_H
#define NEUTRON_DSP_H

#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__) && !defined(NEUTRON_PORTABLE)
#define NEUTRON_DSP 1

#include <arm_acle.h>
#include <stddef.h>
#include <string.h>

#include "arithmetic.h"

#define NEUTRON_INLINE static inline __attribute__((always_inline))

/* Four bytes from any address: one load on these cores. */
NEUTRON_INLINE uint32_t neutron_word(const void *bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Bytes 0 and 2 of a word as two signed halfwords; bytes 1 and 3. The compiler has no name for the rotated form. */
NEUTRON_INLINE int16x2_t neutron_even(uint32_t word) { return __sxtb16((int8x4_t)word); }

NEUTRON_INLINE int16x2_t neutron_odd(uint32_t word) {
    int16x2_t result;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(result) : "r"(word));
    return result;
}

/* neutron_scale (arithmetic.h) with a multiplier that is not negative and a right shift of at least 1: halves are
 * rounded away from zero by taking 1 from a negative number and rounding up. */
NEUTRON_INLINE int32_t neutron_scale_down(int32_t x, int32_t multiplier, uint32_t right_minus_1) {
    uint64_t wide = (uint64_t)((int64_t)x * multiplier + (INT64_C(1) << 30));
    int32_t high = (int32_t)((uint32_t)(wide >> 32) << 1 | (uint32_t)wide >> 31);
    return (((high + (high >> 31)) >> right_minus_1) + 1) >> 1;
}

NEUTRON_INLINE int neutron_scales_down(int32_t multiplier, int32_t shift) {
    return multiplier >= 0 && shift < 0 && shift > -32;
}

NEUTRON_INLINE int32_t neutron_requantize_one(int32_t sum, int32_t multiplier, int32_t shift, int32_t zero, int32_t low,
                                              int32_t high) {
    int32_t scaled = neutron_scales_down(multiplier, shift)
                         ? neutron_scale_down(sum, multiplier, (uint32_t)(-1 - shift))
                         : neutron_scale(sum, multiplier, shift);
    return neutron_clamp(neutron_add32(scaled, zero), low, high);
}

/* The larger of each pair of signed bytes. */
NEUTRON_INLINE uint32_t neutron_max4(uint32_t a, uint32_t b) {
    (void)__ssub8((int8x4_t)a, (int8x4_t)b); /* sets a flag for every byte of a that is not smaller */
    return (uint32_t)__sel((uint8x4_t)a, (uint8x4_t)b);
}

#endif

#endif
