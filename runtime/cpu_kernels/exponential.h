/* expf, in line. On a core whose FPU has single precision alone, newlib's is the one of Sun's fdlibm behind a wrapper that
 * sets errno, some 60 instructions; its arithmetic, with the products that GCC fuses there, is 33. Of its four cases the one
 * for large numbers gives the others' bits too. Compared with newlib's for every float: tests/exponential.c. */
#ifndef CPU_EXPONENTIAL_H
#define CPU_EXPONENTIAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__NEWLIB__) && !defined(__PICOLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    defined(__ARM_FEATURE_FMA) && defined(__ARM_FP) && (__ARM_FP & 4) && !(__ARM_FP & 8)
#define CPU_OWN_EXPONENTIAL 1
#else
#define CPU_OWN_EXPONENTIAL 0
#endif

/* `half` has the sign of x; 0 may have either. What is never above 0, or of no importance then, is `below`. */
static inline __attribute__((always_inline)) float cpu_expf(float x, float half, const bool below) {
#if CPU_OWN_EXPONENTIAL
    if (x > -86.0f && (below || x < 86.0f)) {
        const int32_t k = (int32_t)__builtin_fmaf(x, 1.4426950216e+00f, half); /* x = k * ln 2 + rest */
        const float t = (float)k;
        const float high = __builtin_fmaf(-t, 6.9313812256e-01f, x), low = t * 9.0580006145e-06f;
        const float rest = high - low, square = rest * rest;
        float series = __builtin_fmaf(square, 4.1381369442e-08f, -1.6533901999e-06f);
        series = __builtin_fmaf(series, square, 6.6137559770e-05f);
        series = __builtin_fmaf(series, square, -2.7777778450e-03f);
        series = __builtin_fmaf(series, square, 1.6666667163e-01f);
        const float c = __builtin_fmaf(-series, square, rest);
        const float y = 1.0f - ((low - rest * c / (2.0f - c)) - high);
        uint32_t bits;
        memcpy(&bits, &y, sizeof bits);
        bits += (uint32_t)k << 23;
        float result;
        memcpy(&result, &bits, sizeof result);
        return result;
    }
#else
    (void)half, (void)below;
#endif
    return expf(x);
}

/* tanhf likewise: of e^y - 1 for y = 2|x|, or -2|x| where that is above -2. From 9.5 on it is 1. */
static inline __attribute__((always_inline)) float cpu_tanhf(float x) {
#if CPU_OWN_EXPONENTIAL
    const float size = fabsf(x);
    if (size >= 0x1p-12f && size < 22.0f) {
        if (size >= 9.5f) return copysignf(1.0f, x);
        const bool large = size >= 1.0f;
        const float y = large ? size + size : -2.0f * size;
        const int32_t k = (int32_t)(y * 1.4426950216e+00f + (large ? 0.5f : -0.5f)); /* y = k * ln 2 + rest */
        const float high = __builtin_fmaf(-(float)k, 6.9313812256e-01f, y), low = (float)k * 9.0580006145e-06f;
        const float rest = high - low, lost = high - rest - low, half = 0.5f * rest, square = rest * half;
        float series = __builtin_fmaf(square, -2.0109921195e-07f, 4.0082177293e-06f);
        series = __builtin_fmaf(series, square, -7.9365076090e-05f);
        series = __builtin_fmaf(series, square, 1.5873016091e-03f);
        series = __builtin_fmaf(series, square, -3.3333335072e-02f);
        series = __builtin_fmaf(series, square, 1.0f);
        const float part = __builtin_fmaf(-half, series, 3.0f);
        const float error = (series - part) / __builtin_fmaf(-rest, part, 6.0f) * square;
        float less; /* e^y - 1 */
        if (k == 0) less = rest - __builtin_fmaf(rest, error, -square);
        else {
            const float e = __builtin_fmaf(error - lost, rest, -lost) - square;
            if (k == -1) less = __builtin_fmaf(rest - e, 0.5f, -0.5f);
            else {
                const float one = large ? 1.0f - 1.0f / (float)(1u << k) : 1.0f, sum = one - (e - rest);
                uint32_t bits;
                memcpy(&bits, &sum, sizeof bits);
                bits += (uint32_t)k << 23;
                memcpy(&less, &bits, sizeof bits);
                less -= large ? 0.0f : 1.0f;
            }
        }
        return copysignf(large ? 1.0f - 2.0f / (less + 2.0f) : -less / (less + 2.0f), x);
    }
#endif
    return tanhf(x);
}

#endif
