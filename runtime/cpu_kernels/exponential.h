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

#endif
