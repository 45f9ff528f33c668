/* Softmax of int8 rows, output scale 1/256 and zero point -128, as LiteRT's reference and CMSIS-NN have it.
 *
 * The difference to the row's maximum is scaled to Q5.26, its exponential taken in Q0.31, summed in Q12.19, and
 * divided through a reciprocal found by Newton's method. Q m.n below means m integer and n fraction bits of an
 * int32; a product of Qa and Qb is Q(a+b). Where the sum reaches 512 the reference aborts (a shift by 32); here
 * every share is then below half a step, and 0.
 */
#ifndef NEUTRON_SOFTMAX_H
#define NEUTRON_SOFTMAX_H

#include "arithmetic.h"

typedef struct {
    uint32_t depth;
    int32_t multiplier, shift; /* of a difference, to Q5.26 */
    int32_t diff_min;          /* what lies further below the maximum has no share */
} NeutronSoftmax;

static inline int32_t neutron_saturating_left(int32_t x, uint32_t bits) {
    int64_t wide = (int64_t)x * (INT64_C(1) << bits);
    return wide > INT32_MAX ? INT32_MAX : wide < INT32_MIN ? INT32_MIN : (int32_t)wide;
}

/* e^a for -1/4 <= a < 0, Q0.31: a Taylor polynomial around -1/8. */
static inline int32_t neutron_exp_small(int32_t a) {
    const int32_t exp_minus_eighth = 1895147668, third = 715827883;
    int32_t x = neutron_add32(a, INT32_C(1) << 28);
    int32_t x2 = neutron_high_mul(x, x), x3 = neutron_high_mul(x2, x), x4 = neutron_high_mul(x2, x2);
    int32_t x4_quarter = neutron_shift_right(x4, 2);
    int32_t tail = neutron_add32(neutron_high_mul(neutron_add32(x4_quarter, x3), third), x2);
    int32_t sum = neutron_add32(x, neutron_shift_right(tail, 1));
    return neutron_add32(exp_minus_eighth, neutron_high_mul(exp_minus_eighth, sum));
}

/* e^a for a <= 0 in Q5.26, result in Q0.31: the fraction below 1/4 by polynomial, the rest bit by bit. */
static inline int32_t neutron_exp_negative(int32_t a) {
    /* e^(-1/4), e^(-1/2), e^-1, ... e^-16 in Q0.31 */
    static const int32_t powers[7] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
    const int32_t quarter = INT32_C(1) << 24;
    if (a == 0) return INT32_MAX;
    int32_t low = (a & (quarter - 1)) - quarter;
    int32_t result = neutron_exp_small(neutron_saturating_left(low, 5));
    uint32_t remainder = (uint32_t)neutron_sub32(low, a);
    for (uint32_t i = 0; i < 7; ++i) {
        if (remainder >> (24u + i) & 1u) result = neutron_high_mul(result, powers[i]);
    }
    return result;
}

/* 1 / (1 + a) for 0 <= a < 1, Q0.31: Newton's method on half the denominator, started at 48/17 - 32/17 d. */
static inline int32_t neutron_reciprocal(int32_t a) {
    int64_t sum = (int64_t)a + INT32_MAX;
    int32_t half = (int32_t)((sum + (sum >= 0 ? 1 : -1)) / 2);
    int32_t x = neutron_add32(1515870810, neutron_high_mul(half, -1010580540)); /* Q2.29 */
    for (int i = 0; i < 3; ++i) {
        int32_t error = neutron_sub32(INT32_C(1) << 29, neutron_high_mul(half, x));
        x = neutron_add32(x, neutron_saturating_left(neutron_high_mul(x, error), 2));
    }
    return neutron_saturating_left(x, 1);
}

static inline uint32_t neutron_leading_zeros(uint32_t x) {
    uint32_t n = 0;
    for (; n < 31 && !(x & 0x80000000u); ++n) x <<= 1;
    return n;
}

static inline int32_t neutron_scaled_difference(const NeutronSoftmax *p, int32_t difference) {
    return neutron_high_mul(neutron_shl32(difference, (uint32_t)p->shift), p->multiplier);
}

/* Differences of two int8. */
#define NEUTRON_DIFFERENCES 256u

/* The exponentials of all differences, for many rows or a long one: exponentials[below the maximum]. */
static inline void neutron_softmax_table(const NeutronSoftmax *p, int32_t exponentials[NEUTRON_DIFFERENCES]) {
    for (int32_t below = 0; below < (int32_t)NEUTRON_DIFFERENCES; ++below) {
        exponentials[below] = -below < p->diff_min ? 0 : neutron_exp_negative(neutron_scaled_difference(p, -below));
    }
}

/* A row whose output lies over other values of it (no compiler makes that) may find one above its maximum: the
 * place in the table is a byte. */
static inline int32_t neutron_exponential(const NeutronSoftmax *p, const int32_t *exponentials, int32_t difference) {
    return exponentials ? exponentials[(uint8_t)-difference]
                        : neutron_exp_negative(neutron_scaled_difference(p, difference));
}

/* What a value with this exponential has of a row: `scale` is one over the sum, in Q0.31 with `bits` to drop. */
static inline int8_t neutron_softmax_share(int32_t exponential, int32_t scale, uint32_t bits) {
    int32_t share = neutron_high_mul(scale, exponential);
    return (int8_t)neutron_clamp((bits < 32u ? neutron_shift_right(share, bits) : 0) - 128, -128, 127);
}

/* The results of a row with more values than there are differences: each is computed once. */
static inline void neutron_softmax_long(const NeutronSoftmax *p, const int32_t *exponentials, int32_t largest,
                                        int32_t scale, uint32_t bits, const int8_t *in, int8_t *out) {
    int8_t shares[NEUTRON_DIFFERENCES];
    for (uint32_t i = 0; i < NEUTRON_DIFFERENCES; ++i) {
        shares[i] = neutron_softmax_share(exponentials[i], scale, bits);
    }
    for (uint32_t i = 0; i < p->depth; ++i) out[i] = shares[(uint8_t)(largest - in[i])];
}

/* One row; `exponentials` from neutron_softmax_table, or null. */
static inline void neutron_softmax_row(const NeutronSoftmax *p, const int32_t *exponentials, const int8_t *in,
                                       int8_t *out) {
    int32_t largest = -128;
    for (uint32_t i = 0; i < p->depth; ++i) largest = in[i] > largest ? in[i] : largest;
    uint32_t sum = 0; /* Q12.19 */
    for (uint32_t i = 0; i < p->depth; ++i) {
        int32_t difference = in[i] - largest;
        if (exponentials == NULL && difference < p->diff_min) continue; /* in the table it is 0 */
        sum += (uint32_t)neutron_shift_right(neutron_exponential(p, exponentials, difference), 12);
    }
    uint32_t headroom = neutron_leading_zeros(sum);
    int32_t scale = neutron_reciprocal((int32_t)((sum << headroom) - (UINT32_C(1) << 31)));
    uint32_t bits = 12u - headroom + 31u - 8u;
    if (exponentials != NULL && p->depth >= NEUTRON_DIFFERENCES) {
        neutron_softmax_long(p, exponentials, largest, scale, bits, in, out);
        return;
    }
    for (uint32_t i = 0; i < p->depth; ++i) {
        int32_t difference = in[i] - largest;
        out[i] = difference < p->diff_min
                     ? -128
                     : neutron_softmax_share(neutron_exponential(p, exponentials, difference), scale, bits);
    }
}

#endif
