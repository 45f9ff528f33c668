/* TABLE for AVX2, 32 values at a time.
 *
 * A shuffle looks up 16 entries and gives 0 where the top bit of the index is set. So the index is made smaller by 16
 * with every 16 entries, stops at -128, and what is looked up is how an entry differs from the one 16 before: the
 * differences up to the index make the entry. Both halves of the table are done so, each with the other's indices
 * negative. */
#include <immintrin.h>
#include <string.h>

#include "table_rows.h"

#define STEPS 8u

static void lookup(const __m128i *differences, const uint8_t *from, uint8_t *to) {
    const __m256i step = _mm256_set1_epi8(16);
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i high = _mm256_xor_si256(low, _mm256_set1_epi8((char)0x80));
    __m256i first = _mm256_setzero_si256(), second = first;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < STEPS; ++i) {
        first = _mm256_xor_si256(first, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(differences[i]), low));
        second =
            _mm256_xor_si256(second, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(differences[i + STEPS]), high));
        low = _mm256_subs_epi8(low, step);
        high = _mm256_subs_epi8(high, step);
    }
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_or_si256(first, second));
}

void neutron_table_rows_avx2(const NeutronTableRows *t) {
    __m128i differences[2u * STEPS];
    for (uint32_t i = 0; i < 2u * STEPS; ++i) {
        const __m128i *at = (const __m128i *)(const void *)(t->table + 16u * i);
        differences[i] = _mm_loadu_si128(at);
        if (i % STEPS) differences[i] = _mm_xor_si128(differences[i], _mm_loadu_si128(at - 1));
    }
    for (uint32_t r = 0; r < t->rows; ++r) {
        const uint8_t *from = t->in + r * t->in_pitch;
        uint8_t *to = t->out + r * t->out_pitch;
        uint32_t i = 0;
        for (; i + 32u <= t->length; i += 32u) lookup(differences, from + i, to + i);
        if (i < t->length) {
            uint8_t last[32] = {0};
            memcpy(last, from + i, t->length - i);
            lookup(differences, last, last);
            memcpy(to + i, last, t->length - i);
        }
    }
}
