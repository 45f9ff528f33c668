/* Sums of products to int8, scaled in double precision: what fully connected layers end with. */
#ifndef NEUTRON_SCALE_SUMS_H
#define NEUTRON_SCALE_SUMS_H

#include "arithmetic.h"

#if defined(NEUTRON_VECTOR) && defined(__x86_64__)
#define VECTOR_SCALES 1
#include "x86/scale_doubles.h"
#endif

typedef struct {
    int32_t zero, low, high;
} NeutronSumRange;

/* round(x), halves away from zero, as an int32; what does not fit becomes INT32_MIN, as on the reference machine. */
static inline int32_t neutron_round_to_int(double x) {
    if (!(x > -2147483648.5 && x < 2147483647.5)) return INT32_MIN;
    int64_t whole = (int64_t)x;
    double rest = x - (double)whole; /* exact */
    if (rest >= 0.5) ++whole;
    if (rest <= -0.5) --whole;
    return (int32_t)whole;
}

static inline void neutron_scale_sums(const int32_t *sums, const double *scales, uint32_t count,
                                      const NeutronSumRange *range, int8_t *out) {
    uint32_t i = 0;
#ifdef VECTOR_SCALES
    i = neutron_scale_doubles(sums, scales, count, range->zero, range->low, range->high, out);
#endif
    for (; i < count; ++i) {
        int32_t scaled = neutron_round_to_int((double)sums[i] * scales[i]);
        out[i] = (int8_t)neutron_clamp(neutron_add32(scaled, range->zero), range->low, range->high);
    }
}

#endif
