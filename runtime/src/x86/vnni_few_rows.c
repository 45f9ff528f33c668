/* Products of a few rows, for AVX-512 VNNI: weights are used once, so that all depends on how fast they are read.
 *
 * A register holds two groups of a block of eight channels, as they lie in memory. The values of a row are spread to
 * match once, for all channels. Nothing is known of the weights beforehand: 128 times their sum is found on the way.
 */
#include "vnni.h"

#define PAIRS 256u /* of groups that are spread at a time: 16 KiB */

/* Values begin .. begin + 2 * 4 * pairs - 1 of a row of k, flipped; what is behind the row is 0, as its weights are. */
static void spread(const int8_t *a, uint32_t begin, uint32_t k, uint32_t pairs, __m512i *to) {
    const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (uint32_t i = 0; i < pairs; ++i) {
        const uint32_t at = begin + 8u * i;
        uint64_t bytes = 0;
        if (k - at >= 8u) memcpy(&bytes, a + at, 8);
        else memcpy(&bytes, a + at, k - at);
        const __m512i x = _mm512_permutexvar_epi32(order, _mm512_castsi128_si512(_mm_cvtsi64_si128((int64_t)bytes)));
        to[i] = _mm512_xor_si512(x, flip);
    }
}

/* Add the products of some groups to the sums of `blocks` blocks, whose weights are `block` bytes apart. */
NEUTRON_INLINE void add_blocks(const __m512i *x, uint32_t groups, const int8_t *weights, size_t block, uint32_t blocks,
                               int32_t *sums) {
    const __m512i offset = _mm512_set1_epi8((char)0x80);
    __m512i all[4], excess[4];
#pragma GCC unroll 4
    for (uint32_t b = 0; b < blocks; ++b) all[b] = excess[b] = _mm512_setzero_si512();
    uint32_t i = 0;
    for (; i + 2u <= groups; i += 2u, ++x, weights += 2u * NEUTRON_BLOCK * NEUTRON_GROUP) {
#pragma GCC unroll 4
        for (uint32_t b = 0; b < blocks; ++b) {
            const __m512i w = _mm512_loadu_si512(weights + b * block);
            neutron_add_products(&all[b], *x, w);
            neutron_add_products(&excess[b], offset, w);
        }
    }
    if (i < groups) {
#pragma GCC unroll 4
        for (uint32_t b = 0; b < blocks; ++b) {
            const __m512i w = _mm512_maskz_loadu_epi32(0xFF, weights + b * block);
            neutron_add_products(&all[b], *x, w);
            neutron_add_products(&excess[b], offset, w);
        }
    }
#pragma GCC unroll 4
    for (uint32_t b = 0; b < blocks; ++b) {
        const __m512i sum = _mm512_sub_epi32(all[b], excess[b]);
        __m256i *to = (__m256i *)(void *)(sums + b * NEUTRON_BLOCK);
        _mm256_storeu_si256(
            to, _mm256_add_epi32(_mm256_loadu_si256(to),
                                 _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1))));
    }
}

/* The same for a last block of fewer channels, whose groups are shorter. */
static void add_last_block(const __m512i *x, uint32_t groups, const int8_t *weights, uint32_t channels, int32_t *sums) {
    const __mmask8 lanes = (__mmask8)((1u << channels) - 1u);
    const __m256i offset = _mm256_set1_epi8((char)0x80);
    __m256i all = _mm256_setzero_si256(), excess = all;
    for (uint32_t i = 0; i < groups; ++i, weights += channels * NEUTRON_GROUP) {
        const __m256i w = _mm256_maskz_loadu_epi32(lanes, weights);
        const __m256i values = i % 2u ? _mm512_extracti64x4_epi64(x[i / 2u], 1) : _mm512_castsi512_si256(x[i / 2u]);
        neutron_add_products8(&all, values, w);
        neutron_add_products8(&excess, offset, w);
    }
    all = _mm256_sub_epi32(all, excess);
    _mm256_mask_storeu_epi32(sums, lanes, _mm256_add_epi32(all, _mm256_maskz_loadu_epi32(lanes, sums)));
}

/* The sums of one row, which are there for what came before `begin`. */
static void add_row(const NeutronGemm *g, uint32_t begin, uint32_t groups, const __m512i *x, int32_t *sums) {
    const size_t block = neutron_groups(g->k) * NEUTRON_GROUP * NEUTRON_BLOCK;
    const size_t done = begin / NEUTRON_GROUP;
    uint32_t j = 0;
    const int8_t *weights = g->weights + done * NEUTRON_BLOCK * NEUTRON_GROUP;
    for (; j + 4u * NEUTRON_BLOCK <= g->n; j += 4u * NEUTRON_BLOCK, weights += 4u * block)
        add_blocks(x, groups, weights, block, 4, sums + j);
    for (; j + NEUTRON_BLOCK <= g->n; j += NEUTRON_BLOCK, weights += block)
        add_blocks(x, groups, weights, block, 1, sums + j);
    if (j < g->n) {
        const uint32_t channels = g->n - j;
        const int8_t *last = g->weights + j / NEUTRON_BLOCK * block + done * channels * NEUTRON_GROUP;
        add_last_block(x, groups, last, channels, sums + j);
    }
}

void neutron_few_rows_vnni(const NeutronProduct *p) {
    const NeutronGemm *g = &p->g;
    int32_t kept[NEUTRON_PRODUCT_CHANNELS];
    _Alignas(64) __m512i x[PAIRS];
    for (uint32_t row = 0; row < g->m; ++row) {
        int32_t *sums = g->raw ? g->raw + (size_t)row * g->n : kept;
        memcpy(sums, g->bias, g->n * sizeof *sums);
        for (uint32_t begin = 0, bytes; begin < g->k; begin += bytes) {
            bytes = g->k - begin < 8u * PAIRS ? g->k - begin : 8u * PAIRS;
            const uint32_t groups = (uint32_t)neutron_groups(bytes);
            spread(p->parts[0] + row * g->a_pitch, begin, g->k, (groups + 1u) / 2u, x);
            add_row(g, begin, groups, x, sums);
        }
        if (g->raw) continue;
        NeutronStrip s = {0};
        for (s.channel = 0; s.channel < g->n; s.channel += s.count) {
            s.count = g->n - s.channel < 32u ? g->n - s.channel : 32u;
            neutron_prepare_strip_vnni(g, sums + s.channel, &s); /* the sums start from what they are */
            neutron_store_row_vnni(g, &s, row, g->out, s.start[0], s.start[1]);
        }
    }
}
