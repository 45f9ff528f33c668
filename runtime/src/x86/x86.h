/* The vectorised inner parts for x86-64 and the arithmetic they share. Every function here gives the same bits
 * as its portable twin (tests run both on every case). */
#ifndef NEUTRON_X86_H
#define NEUTRON_X86_H

#include <immintrin.h>
#include <string.h>

#include "add.h"
#include "depthwise.h"
#include "gemm.h"

void neutron_depthwise_avx2(const NeutronDepthwise *d);
void neutron_add_row_avx2(const void *parameters, const NeutronRow *row);
void neutron_add_row_avx512(const void *parameters, const NeutronRow *row);

#ifdef __AVX2__

/* Multipliers and shifts of eight channels, ready for use. */
typedef struct {
    __m256i even, odd;     /* multipliers of the even and of the odd lanes, in the low half of 64 bits */
    __m256i left, right;   /* shifts */
    __m256i mask, half;    /* 2^right - 1, and half of it */
    __m256i right_minus_1; /* right - 1 */
    int right_only;        /* every lane shifts right: neutron_apply_right8 may be used */
} NeutronScale8;

static inline NeutronScale8 neutron_scale8(__m256i multiplier, __m256i shift) {
    const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi32(1);
    NeutronScale8 s;
    s.even = multiplier;
    s.odd = _mm256_srli_epi64(multiplier, 32);
    s.left = _mm256_max_epi32(shift, zero);
    s.right = _mm256_max_epi32(_mm256_sub_epi32(zero, shift), zero);
    s.mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, s.right), one);
    s.half = _mm256_srli_epi32(s.mask, 1);
    s.right_minus_1 = _mm256_sub_epi32(s.right, one);
    s.right_only = _mm256_movemask_epi8(_mm256_cmpgt_epi32(s.right, zero)) == -1;
    return s;
}

/* neutron_high_mul of eight values. */
static inline __m256i neutron_high_mul8(__m256i x, const NeutronScale8 *s) {
    const __m256i round = _mm256_set1_epi64x(INT64_C(1) << 30);
    __m256i even = _mm256_add_epi64(_mm256_mul_epi32(x, s->even), round);
    __m256i odd = _mm256_add_epi64(_mm256_mul_epi32(_mm256_srli_epi64(x, 32), s->odd), round);
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 31), _mm256_slli_epi64(odd, 1), 0xAA);
}

/* neutron_scale (arithmetic.h) of eight values. */
static inline __m256i neutron_apply_scale8(__m256i x, const NeutronScale8 *s) {
    __m256i high = neutron_high_mul8(_mm256_sllv_epi32(x, s->left), s);
    __m256i remainder = _mm256_and_si256(high, s->mask);
    __m256i threshold = _mm256_add_epi32(s->half, _mm256_srli_epi32(high, 31));
    return _mm256_sub_epi32(_mm256_srav_epi32(high, s->right), _mm256_cmpgt_epi32(remainder, threshold));
}

/* The same where every lane shifts right by at least 1, which all but odd models do: halves are rounded away from
 * zero by taking 1 from a negative number and rounding up. Results are below 2^30, so that int16 can saturate. */
static inline __m256i neutron_apply_right8(__m256i x, const NeutronScale8 *s) {
    __m256i high = neutron_high_mul8(x, s);
    high = _mm256_srav_epi32(_mm256_add_epi32(high, _mm256_srai_epi32(high, 31)), s->right_minus_1);
    return _mm256_srai_epi32(_mm256_sub_epi32(high, _mm256_set1_epi32(-1)), 1);
}

/* Two times eight scaled values (a.0-3, a.4-7 in the halves of `a`, `b` likewise) to sixteen bytes, in the order
 * a.0-3, b.0-3, a.4-7, b.4-7. */
static inline __m128i neutron_bytes16(__m256i a, __m256i b, int32_t zero, int32_t low, int32_t high) {
    __m256i words = _mm256_adds_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16((int16_t)zero));
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    return _mm_min_epi8(_mm_max_epi8(bytes, _mm_set1_epi8((char)low)), _mm_set1_epi8((char)high));
}

/* The low bytes of eight int32 that are known to be int8. */
static inline uint64_t neutron_narrow8(__m256i x) {
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_packs_epi16(words, words));
}

static inline __m256i neutron_clamp8(__m256i x, int32_t zero, int32_t low, int32_t high) {
    x = _mm256_add_epi32(x, _mm256_set1_epi32(zero));
    return _mm256_min_epi32(_mm256_max_epi32(x, _mm256_set1_epi32(low)), _mm256_set1_epi32(high));
}

/* All ones in the first `lanes` of eight. */
static inline __m256i neutron_lanes8(uint32_t lanes) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline int32_t neutron_load4(const int8_t *a) {
    int32_t word;
    memcpy(&word, a, sizeof word);
    return word;
}

/* The last k % 4 values of a row, then zeros. */
static inline int32_t neutron_load_tail(const int8_t *a, uint32_t count) {
    int32_t word = 0;
    memcpy(&word, a, count);
    return word;
}

/* Store one row of a block: sums to `raw`, or scaled bytes to `out`. */
static inline void neutron_store8(const NeutronGemm *g, uint32_t row, uint32_t channel, uint32_t lanes, __m256i sums,
                                  const NeutronScale8 *scale) {
    if (g->raw) {
        int32_t *to = g->raw + (size_t)row * g->n + channel;
        _mm256_maskstore_epi32(to, neutron_lanes8(lanes), sums);
        return;
    }
    uint64_t bytes = neutron_narrow8(neutron_clamp8(neutron_apply_scale8(sums, scale), g->zero, g->low, g->high));
    int8_t *to = g->out + row * g->out_pitch + channel;
    if (lanes == 8u) {
        memcpy(to, &bytes, 8);
    } else {
        memcpy(to, &bytes, lanes);
    }
}

static inline NeutronScale8 neutron_channels8(const NeutronGemm *g, uint32_t channel, __m256i lanes) {
    if (g->raw) return neutron_scale8(_mm256_setzero_si256(), _mm256_setzero_si256());
    return neutron_scale8(_mm256_maskload_epi32(g->multiplier + channel, lanes),
                          _mm256_maskload_epi32(g->shift + channel, lanes));
}

#endif

#endif
