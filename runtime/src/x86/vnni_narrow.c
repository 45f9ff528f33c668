/* Eight channels or fewer, for AVX-512 VNNI: registers of 256 bits, of which twice as many are done at a time. */
#include "vnni.h"

#define ROWS 16u

NEUTRON_INLINE __m256i half(__m512i x) { return _mm512_castsi512_si256(x); }

NEUTRON_INLINE __m256i load_a(const int8_t *a) {
    int32_t word;
    memcpy(&word, a, sizeof word);
    return _mm256_set1_epi32(word);
}

/* Rows `row` and on of a line; nothing behind the strip's weights is read. */
NEUTRON_INLINE void tile(const NeutronProduct *p, const NeutronStrip *s, const int8_t *const *parts, int8_t *out,
                         uint32_t row, uint32_t rows) {
    const size_t pitch = p->g.a_pitch, step = (size_t)s->count * NEUTRON_GROUP;
    const uint32_t groups = (uint32_t)neutron_groups(p->part_bytes);
    const __mmask8 lanes = (__mmask8)((1u << s->count) - 1u);
    const int8_t *w = s->weights;
    __m256i sums[ROWS];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; ++r) sums[r] = half(s->start[0]);
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a[(ROWS + 2u) / 3u]; /* every third row: the two behind it are reached by an index */
#pragma GCC unroll 6
        for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] = parts[part] + (row + 3u * r) * pitch;
        for (uint32_t i = 0; i < groups; ++i, w += step) {
            const __m256i weights = _mm256_maskz_loadu_epi32(lanes, w);
#pragma GCC unroll 16
            for (uint32_t r = 0; r < rows; ++r) {
                neutron_add_products8(&sums[r], load_a(a[r / 3] + r % 3 * pitch), weights);
            }
#pragma GCC unroll 6
            for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] += NEUTRON_GROUP;
        }
    }
    if (s->fast && p->g.raw == NULL) {
        const NeutronRightScale16 *of = &s->scale[0].short_way;
        const NeutronRightScale8 scale = {half(of->even), half(of->odd), half(of->even_add), half(of->odd_add),
                                          half(of->right)};
        int8_t *to = out + row * p->g.out_pitch + s->channel;
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; ++r) {
            __m256i x =
                s->positive ? neutron_scale_right8(sums[r], &scale, 1) : neutron_scale_right8(sums[r], &scale, 0);
            __m128i bytes = _mm_max_epi8(_mm256_cvtsepi32_epi8(x), s->low);
            _mm_mask_storeu_epi8(to + r * p->g.out_pitch, lanes, _mm_min_epi8(bytes, s->high));
        }
        return;
    }
    __m512i kept[ROWS]; /* a copy, or else the sums would be in memory all along */
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; ++r) kept[r] = _mm512_castsi256_si512(sums[r]);
    for (uint32_t r = 0; r < rows; ++r) {
        neutron_store_row_vnni(&p->g, s, row + r, out, kept[r], _mm512_setzero_si512());
    }
}

#define CASE(n) \
    case n: tile(p, s, parts, lines[l], i, n); break;

void neutron_narrow_vnni(const NeutronProduct *p, const NeutronStrip *s, int8_t *const *lines, uint32_t line_count) {
    const int8_t *const *parts = p->parts;
    for (uint32_t l = 0; l < line_count; ++l, parts += p->part_count) {
        uint32_t i = 0;
        for (; i + ROWS <= p->g.m; i += ROWS) tile(p, s, parts, lines[l], i, ROWS);
        for (; i + 8u <= p->g.m; i += 8u) tile(p, s, parts, lines[l], i, 8);
        switch (p->g.m - i) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) }
    }
}
