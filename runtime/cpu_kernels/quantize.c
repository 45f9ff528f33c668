/* Quantize and dequantize, in single precision and without the C library.
 *
 * Adding 1.5 * 2^23 to a float below 2^22 leaves its nearest integer, ties to even, in the lowest bits: what nearbyint
 * gives. Anything else (large values, infinities, NaN) ends up outside of [2^23, 2^24), is seen in the bits, and its block
 * is computed again with the replaced kernel's own expression, whose conversion of such values the target defines.
 *
 * The FPU of a Cortex-M rounds to an integer in one instruction, as nearbyint does, and keeps in its status whether one had no
 * place in an int32, infinities and NaN among them. */
#include "cpu_kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#include <arm_mve.h>
#define HELIUM 1
#else
#define HELIUM 0
#endif

#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FP) && (__ARM_FP & 4) && defined(__thumb2__) && !HELIUM
#define CONVERTS 1
#else
#define CONVERTS 0
#endif

#ifdef __ARM_FEATURE_SAT
#include <arm_acle.h>
#pragma GCC diagnostic ignored "-Wsign-conversion" /* inside __ssat */
#define SATURATE_s8(value) __ssat(value, 8)
#define SATURATE_u8(value) __usat(value, 8)
#define SATURATE_s16(value) __ssat(value, 16)
#else
#define SATURATE_s8(value) clamp(value, INT8_MIN, INT8_MAX)
#define SATURATE_u8(value) clamp(value, 0, UINT8_MAX)
#define SATURATE_s16(value) clamp(value, INT16_MIN, INT16_MAX)
#endif

#define ROUNDING 12582912.0f /* 1.5 * 2^23 */
#define ROUNDED 0x4B000000u  /* the bits of 2^23 */
#define HALF (1u << 22)
#define BLOCK 8
#define UNROLL _Pragma("GCC unroll 8")

static inline int32_t clamp(int32_t value, int32_t low, int32_t high) {
    if (value < low) value = low;
    return value > high ? high : value;
}

static inline uint32_t rounded(float value) {
    const float sum = value + ROUNDING;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return bits - ROUNDED; /* below 2^23 if the value was small enough */
}

static __attribute__((noinline)) int32_t exactly(float value, float inverse, int32_t zero, int32_t low, int32_t high,
                                                 bool narrow) {
    if (narrow) return clamp((int32_t)((uint32_t)zero + (uint32_t)(int32_t)nearbyintf(inverse * value)), low, high);
    int64_t found = (int64_t)((float)zero + nearbyintf(inverse * value));
    if (found < low) found = low;
    return found > high ? high : (int32_t)found;
}

#if HELIUM
/* Vectors flush denormals to zero. The inverse is none, and a denormal times less than 2^100 rounds to zero anyway. */
#define QUANTIZE_LANES(STORE, PLAIN, NARROW)                                                                           \
    if (fabsf(inverse) >= FLT_MIN && fabsf(inverse) < 0x1p100f) {                                                      \
        for (; at + 4 <= count; at += 4) {                                                                             \
            const float32x4_t scaled = vmulq_n_f32(vld1q_f32(in + at), inverse);                                       \
            const uint32x4_t bits = vsubq_n_u32(vreinterpretq_u32_f32(vaddq_n_f32(scaled, ROUNDING)), ROUNDED);        \
            int32x4_t value = vaddq_n_s32(vreinterpretq_s32_u32(bits), (int32_t)offset);                               \
            value = vminq_s32(vmaxq_s32(value, vdupq_n_s32(low)), vdupq_n_s32(high));                                  \
            if (vmaxvq_u32(0, bits) >> 23)                                                                             \
                for (size_t i = at; i < at + 4; ++i) out[i] = (PLAIN)exactly(in[i], inverse, zero, low, high, NARROW); \
            else STORE;                                                                                                \
        }                                                                                                              \
    }
#else
#define QUANTIZE_LANES(STORE, PLAIN, NARROW)
#endif

#if CONVERTS
#define INVALID 1u /* of the status: an operation had no result */

static inline uint32_t status(void) {
    uint32_t bits;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(bits));
    return bits;
}
static inline void set_status(uint32_t bits) { __asm__ volatile("vmsr fpscr, %0" : : "r"(bits)); }

/* Volatile: it stays between two looks at the status. */
static inline int32_t nearest(float value) {
    __asm__ volatile("vcvtr.s32.f32 %0, %0" : "+t"(value));
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The sum with the zero point saturates, as its bounds do, but wraps around in a narrow one. */
static inline int32_t shifted(int32_t value, int32_t zero, bool narrow) {
    return narrow ? (int32_t)((uint32_t)value + (uint32_t)zero) : __qadd(value, zero);
}

#define BLOCKS(SATURATE, TYPE, NARROW)                                                                                \
    const uint32_t before = status();                                                                                 \
    set_status(before & ~INVALID);                                                                                    \
    for (; at + BLOCK <= count; at += BLOCK) {                                                                        \
        UNROLL for (size_t i = at; i < at + BLOCK; ++i) out[i] =                                                      \
            (TYPE)SATURATE(shifted(nearest(in[i] * inverse), zero, NARROW));                                          \
        if (status() & INVALID) {                                                                                     \
            for (size_t i = at; i < at + BLOCK; ++i) out[i] = (TYPE)exactly(in[i], inverse, zero, low, high, NARROW); \
            set_status(status() & ~INVALID);                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    set_status(status() | (before & INVALID));
#else
#define BLOCKS(SATURATE, TYPE, NARROW)                                                                                \
    for (; at + BLOCK <= count; at += BLOCK) {                                                                        \
        uint32_t all = 0;                                                                                             \
        UNROLL for (size_t i = at; i < at + BLOCK; ++i) {                                                             \
            const uint32_t bits = rounded(in[i] * inverse);                                                           \
            all |= bits;                                                                                              \
            out[i] = (TYPE)SATURATE((int32_t)(bits + offset));                                                        \
        }                                                                                                             \
        if (all >> 23)                                                                                                \
            for (size_t i = at; i < at + BLOCK; ++i) out[i] = (TYPE)exactly(in[i], inverse, zero, low, high, NARROW); \
    }
#endif

/* The bounds of the type itself take one instruction. */
#define QUANTIZE(NAME, TYPE, SATURATE, LOW, HIGH, NARROW, STORE)                                                 \
    void cpu_quantize_##NAME(const float *in, TYPE *out, size_t count, float inverse, int32_t zero, int32_t low, \
                             int32_t high) {                                                                     \
        const uint32_t offset = (uint32_t)zero - HALF;                                                           \
        size_t at = 0;                                                                                           \
        QUANTIZE_LANES(STORE, TYPE, NARROW)                                                                      \
        if (!HELIUM && low == (LOW) && high == (HIGH)) {                                                         \
            BLOCKS(SATURATE, TYPE, NARROW)                                                                       \
        }                                                                                                        \
        for (; at < count; ++at) {                                                                               \
            const uint32_t bits = rounded(in[at] * inverse);                                                     \
            out[at] = (TYPE)(bits >> 23 ? exactly(in[at], inverse, zero, low, high, NARROW)                      \
                                        : clamp((int32_t)(bits + offset), low, high));                           \
        }                                                                                                        \
    }

#define STORE_S8 vstrbq_s32(out + at, value)
#define STORE_S16 vstrhq_s32(out + at, value)
QUANTIZE(s8, int8_t, SATURATE_s8, INT8_MIN, INT8_MAX, false, STORE_S8)
QUANTIZE(u8, uint8_t, SATURATE_u8, 0, UINT8_MAX, false, vstrbq_u32(out + at, vreinterpretq_u32_s32(value)))
QUANTIZE(s16, int16_t, SATURATE_s16, INT16_MIN, INT16_MAX, false, STORE_S16)
QUANTIZE(narrow_s8, int8_t, SATURATE_s8, INT8_MIN, INT8_MAX, true, STORE_S8)
QUANTIZE(narrow_s16, int16_t, SATURATE_s16, INT16_MIN, INT16_MAX, true, STORE_S16)

#if HELIUM
/* Only a scale below the normal numbers gives results below them. */
#define DEQUANTIZE_LANES(LOAD)           \
    if (scale >= FLT_MIN)                \
        for (; at + 4 <= count; at += 4) \
            vst1q_f32(out + at, vmulq_n_f32(vcvtq_f32_s32(vsubq_n_s32((LOAD), zero)), scale));
#else
#define DEQUANTIZE_LANES(LOAD)
#endif

#define DEQUANTIZE(NAME, TYPE, LOAD)                                                                  \
    void cpu_dequantize_##NAME(const TYPE *in, float *out, size_t count, float scale, int32_t zero) { \
        size_t at = 0;                                                                                \
        DEQUANTIZE_LANES(LOAD)                                                                        \
        for (; at + 4 <= count; at += 4)                                                              \
            UNROLL for (size_t i = 0; i < 4; ++i) out[at + i] = (float)(in[at + i] - zero) * scale;   \
        for (; at < count; ++at) out[at] = (float)(in[at] - zero) * scale;                            \
    }

DEQUANTIZE(s8, int8_t, vldrbq_s32(in + at))
DEQUANTIZE(u8, uint8_t, vreinterpretq_s32_u32(vldrbq_u32(in + at)))
DEQUANTIZE(s16, int16_t, vldrhq_s32(in + at))
