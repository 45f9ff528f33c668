/* Scaling in double precision for AVX-512, sixteen values at a time. */
#include "scale_doubles.h"

#include <immintrin.h>

/* round(x), halves away from zero; what does not fit an int32 becomes INT32_MIN. The largest number below 1/2 is added
 * and the rest cut off: with 1/2 itself the sum would be rounded up for some numbers just below a half. */
static inline __m256i round_to_int(__m512d x) {
    const __m512i half = _mm512_set1_epi64(INT64_C(0x3FDFFFFFFFFFFFFF)), sign = _mm512_set1_epi64(INT64_MIN);
    const __m512i signed_half = _mm512_or_si512(_mm512_and_si512(_mm512_castpd_si512(x), sign), half);
    return _mm512_cvttpd_epi32(_mm512_add_pd(x, _mm512_castsi512_pd(signed_half)));
}

uint32_t neutron_scale_doubles_avx512(const int32_t *sums, const double *scales, uint32_t count, int32_t zero,
                                      int32_t low, int32_t high, int8_t *out) {
    uint32_t i = 0;
    for (; i + 16u <= count; i += 16u) {
        const __m512i x = _mm512_loadu_si512(sums + i);
        __m512d first = _mm512_cvtepi32_pd(_mm512_castsi512_si256(x));
        __m512d second = _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(x, 1));
        __m512i y =
            _mm512_inserti64x4(_mm512_castsi256_si512(round_to_int(_mm512_mul_pd(first, _mm512_loadu_pd(scales + i)))),
                               round_to_int(_mm512_mul_pd(second, _mm512_loadu_pd(scales + i + 8))), 1);
        y = _mm512_add_epi32(y, _mm512_set1_epi32(zero));
        y = _mm512_min_epi32(_mm512_max_epi32(y, _mm512_set1_epi32(low)), _mm512_set1_epi32(high));
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm512_cvtepi32_epi8(y));
    }
    return i;
}
