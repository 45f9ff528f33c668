/* Scaling of sums to bytes, sixteen channels at a time. Every function gives the bits of arithmetic.h. */
#ifndef NEUTRON_AVX512_H
#define NEUTRON_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* What the short way, below, needs of a multiplier and a shift, for the even and the odd lanes of a register. */
typedef struct {
    __m512i even, odd;         /* twice the multipliers, each in the low half of 64 bits */
    __m512i even_add, odd_add; /* both roundings, less what NEUTRON_RIGHT_OFFSET adds */
    __m512i right;             /* shifts */
} NeutronRightScale16;

/* Multipliers and shifts of sixteen channels, ready for use. */
typedef struct {
    NeutronRightScale16 short_way;
    __m512i even, odd;   /* multipliers, each in the low half of 64 bits */
    __m512i left, right; /* shifts */
    int right_only;      /* every lane may take the short way, provided that its sum is below 2^30 */
} NeutronScale16;

/* Added to a value that takes the short way. */
#define NEUTRON_RIGHT_OFFSET (INT32_C(1) << 30)

/* 2^31 + (2^(s-1) - 1) * 2^32 - 2^31 * m, for m and s in the low halves of 64 bits. */
static inline __m512i neutron_right_rounding16(__m512i m, __m512i s) {
    const __m512i one = _mm512_set1_epi64(1), low = _mm512_set1_epi64(UINT32_MAX);
    __m512i half =
        _mm512_sllv_epi64(one, _mm512_add_epi64(_mm512_and_si512(s, _mm512_set1_epi64(31)), _mm512_set1_epi64(31)));
    __m512i lower = _mm512_slli_epi64(_mm512_and_si512(m, low), 31);
    return _mm512_sub_epi64(_mm512_sub_epi64(half, _mm512_set1_epi64(INT64_C(1) << 31)), lower);
}

static inline NeutronScale16 neutron_scale16(__m512i multiplier, __m512i shift) {
    const __m512i zero = _mm512_setzero_si512();
    NeutronScale16 s;
    s.even = multiplier;
    s.odd = _mm512_srli_epi64(multiplier, 32);
    s.left = _mm512_and_si512(_mm512_max_epi32(shift, zero), _mm512_set1_epi32(31));
    s.right = _mm512_max_epi32(_mm512_sub_epi32(zero, shift), zero);
    s.right_only = _mm512_cmpge_epi32_mask(multiplier, zero) == 0xFFFF &&
                   _mm512_cmpge_epi32_mask(s.right, _mm512_set1_epi32(1)) == 0xFFFF &&
                   _mm512_cmple_epi32_mask(s.right, _mm512_set1_epi32(30)) == 0xFFFF;
    s.short_way.even = _mm512_slli_epi32(s.even, 1);
    s.short_way.odd = _mm512_slli_epi32(s.odd, 1);
    s.short_way.even_add = neutron_right_rounding16(s.even, s.right);
    s.short_way.odd_add = neutron_right_rounding16(s.odd, _mm512_srli_epi64(s.right, 32));
    s.short_way.right = s.right;
    return s;
}

/* neutron_scale of sixteen values. */
static inline __m512i neutron_apply_scale16(__m512i x, const NeutronScale16 *s) {
    const __m512i round = _mm512_set1_epi64(INT64_C(1) << 30), bits = _mm512_and_si512(s->right, _mm512_set1_epi32(31));
    __m512i shifted = _mm512_sllv_epi32(x, s->left);
    __m512i even = _mm512_add_epi64(_mm512_mul_epi32(shifted, s->even), round);
    __m512i odd = _mm512_add_epi64(_mm512_mul_epi32(_mm512_srli_epi64(shifted, 32), s->odd), round);
    __m512i high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 31), _mm512_slli_epi64(odd, 1));
    __m512i mask = _mm512_sub_epi32(_mm512_sllv_epi32(_mm512_set1_epi32(1), bits), _mm512_set1_epi32(1));
    __m512i threshold = _mm512_add_epi32(_mm512_srli_epi32(mask, 1), _mm512_srli_epi32(high, 31));
    __mmask16 up = _mm512_cmpgt_epi32_mask(_mm512_and_si512(high, mask), threshold);
    __m512i result = _mm512_srav_epi32(high, bits);
    return _mm512_mask_add_epi32(result, up, result, _mm512_set1_epi32(1));
}

/* The same for |x| < 2^30, a multiplier that is not negative and a shift to the right by 1 to 30; `x` comes with
 * NEUTRON_RIGHT_OFFSET added, which is free wherever a constant is added anyway.
 *
 * With h = floor((x m + 2^30) / 2^31), the first rounding, the second one is floor((h + 2^(s-1) - (h < 0)) / 2^s).
 * All constants go into the 64-bit product, of x and 2m, so that its upper half is h + 2^(s-1) - 1. x < 0 stands
 * for h < 0: they differ only where x < 0 and h = 0, and then the result is 0 either way. The offset makes x
 * unsigned, so that twice the multiplier still fits, and the 1 that is to be added for x >= 0 is its bit 30.
 *
 * `positive`: the result of a negative x does not matter, so long as it is not above 0 (behind a ReLU it is clamped).
 * That 1 is then among the constants: see neutron_for_positive16. */
static inline __attribute__((always_inline)) __m512i neutron_scale_right16(__m512i x, const NeutronRightScale16 *s,
                                                                           int positive) {
    __m512i even = _mm512_add_epi64(_mm512_mul_epu32(x, s->even), s->even_add);
    __m512i odd = _mm512_add_epi64(_mm512_mul_epu32(_mm512_srli_epi64(x, 32), s->odd), s->odd_add);
    __m512i high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, (_MM_PERM_ENUM)0xF5);
    if (!positive) high = _mm512_add_epi32(high, _mm512_srli_epi32(x, 30));
    return _mm512_srav_epi32(high, s->right);
}

static inline void neutron_for_positive16(NeutronRightScale16 *s) {
    const __m512i one = _mm512_set1_epi64(INT64_C(1) << 32);
    s->even_add = _mm512_add_epi64(s->even_add, one);
    s->odd_add = _mm512_add_epi64(s->odd_add, one);
}

/* Let the short way add a number to its results, for |number| < 2^8 and a shift of at most 22. */
static inline void neutron_add_before16(NeutronRightScale16 *s, int32_t number) {
    const __m512i bits = _mm512_set1_epi64(63), wide = _mm512_set1_epi64(number);
    const __m512i even = _mm512_add_epi64(_mm512_and_si512(s->right, bits), _mm512_set1_epi64(32));
    const __m512i odd = _mm512_add_epi64(_mm512_srli_epi64(s->right, 32), _mm512_set1_epi64(32));
    s->even_add = _mm512_add_epi64(s->even_add, _mm512_sllv_epi64(wide, even));
    s->odd_add = _mm512_add_epi64(s->odd_add, _mm512_sllv_epi64(wide, odd));
}

/* What the short way needs for eight channels, in 256-bit registers. */
typedef struct {
    __m256i even, odd, even_add, odd_add, right;
} NeutronRightScale8;

static inline int neutron_all_right8(__m256i multiplier, __m256i shift) {
    return _mm256_cmpge_epi32_mask(multiplier, _mm256_setzero_si256()) == 0xFF &&
           _mm256_cmple_epi32_mask(shift, _mm256_set1_epi32(-1)) == 0xFF &&
           _mm256_cmpge_epi32_mask(shift, _mm256_set1_epi32(-30)) == 0xFF;
}

static inline __m256i neutron_right_rounding8(__m256i m, __m256i s) {
    const __m256i one = _mm256_set1_epi64x(1), low = _mm256_set1_epi64x(UINT32_MAX), bits = _mm256_set1_epi64x(31);
    __m256i half = _mm256_sllv_epi64(one, _mm256_add_epi64(_mm256_and_si256(s, bits), bits));
    __m256i lower = _mm256_slli_epi64(_mm256_and_si256(m, low), 31);
    return _mm256_sub_epi64(_mm256_sub_epi64(half, _mm256_set1_epi64x(INT64_C(1) << 31)), lower);
}

static inline NeutronRightScale8 neutron_right_scale8(__m256i multiplier, __m256i shift) {
    NeutronRightScale8 s;
    s.even = _mm256_slli_epi32(multiplier, 1);
    s.odd = _mm256_srli_epi64(s.even, 32);
    s.right = _mm256_sub_epi32(_mm256_setzero_si256(), shift);
    s.even_add = neutron_right_rounding8(multiplier, s.right);
    s.odd_add = neutron_right_rounding8(_mm256_srli_epi64(multiplier, 32), _mm256_srli_epi64(s.right, 32));
    return s;
}

/* neutron_scale_right16 of eight values. */
static inline __attribute__((always_inline)) __m256i neutron_scale_right8(__m256i x, const NeutronRightScale8 *s,
                                                                          int positive) {
    __m256i even = _mm256_add_epi64(_mm256_mul_epu32(x, s->even), s->even_add);
    __m256i odd = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), s->odd), s->odd_add);
    __m256i high = _mm256_mask_shuffle_epi32(odd, 0x55, even, (_MM_PERM_ENUM)0xF5);
    if (!positive) high = _mm256_add_epi32(high, _mm256_srli_epi32(x, 30));
    return _mm256_srav_epi32(high, s->right);
}

static inline void neutron_for_positive8(NeutronRightScale8 *s) {
    const __m256i one = _mm256_set1_epi64x(INT64_C(1) << 32);
    s->even_add = _mm256_add_epi64(s->even_add, one);
    s->odd_add = _mm256_add_epi64(s->odd_add, one);
}

#endif
