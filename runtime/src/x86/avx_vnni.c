/* The matrix product for CPUs that have VNNI in 256-bit registers only (AVX-VNNI): eight channels a register.
 *
 * As in vnni.c, 128 is added to every a and 128 times the channel's weight sum is taken from the bias; sums wrap.
 * Tests build with NEUTRON_VNNI_256 for the same instruction in the encoding of AVX-512, on a CPU that has that one.
 */
#include "vector/product.h"
#include "x86.h"

#define INLINE static inline __attribute__((always_inline))
#define FLIP INT32_C(-0x7F7F7F80) /* the top bit of four bytes */
#define ROWS 6u                   /* and two registers of channels: 12 sums, as many as 16 registers allow */

INLINE __m256i add_products(__m256i sums, __m256i x, __m256i weights) {
#ifdef NEUTRON_VNNI_256
    return _mm256_dpbusd_epi32(sums, x, weights);
#else
    return _mm256_dpbusd_avx_epi32(sums, x, weights);
#endif
}

/* A group of a block; nothing behind its channels is read. */
INLINE __m256i load_weights(const int8_t *weights, uint32_t lanes) {
    return lanes == NEUTRON_BLOCK ? _mm256_loadu_si256((const __m256i *)(const void *)weights)
                                  : _mm256_maskload_epi32((const int *)(const void *)weights, neutron_lanes8(lanes));
}

/* What the sums of a block start from. */
static __m256i block_start(const int8_t *weights, uint32_t k, uint32_t lanes, const int32_t *bias) {
    __m256i sum = _mm256_setzero_si256();
    for (size_t i = 0; i < neutron_groups(k); ++i, weights += lanes * NEUTRON_GROUP) {
        sum = add_products(sum, _mm256_set1_epi32(FLIP), load_weights(weights, lanes));
    }
    return _mm256_sub_epi32(_mm256_maskload_epi32(bias, neutron_lanes8(lanes)), sum);
}

static void start(const int8_t *weights, uint32_t k, uint32_t n, const int32_t *bias, int32_t *to) {
    for (uint32_t j = 0; j < n; j += NEUTRON_BLOCK) {
        const uint32_t lanes = n - j < NEUTRON_BLOCK ? n - j : NEUTRON_BLOCK;
        const int8_t *block = weights + j * neutron_groups(k) * NEUTRON_GROUP;
        _mm256_maskstore_epi32(to + j, neutron_lanes8(lanes), block_start(block, k, lanes, bias + j));
    }
}

/* One block of channels, or two that are full. */
typedef struct {
    const int8_t *weights[2];
    uint32_t channel, lanes;
    __m256i start[2];
    NeutronScale8 scale[2];
} Strip;

INLINE void tile(const NeutronProduct *p, const Strip *s, uint32_t row, uint32_t rows, uint32_t blocks,
                 uint32_t lanes) {
    const size_t pitch = p->g.a_pitch;
    const int32_t flip = p->flipped ? 0 : FLIP;
    const int8_t *w[2] = {s->weights[0], s->weights[1]};
    __m256i sums[ROWS][2];
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; ++r) {
        sums[r][0] = s->start[0];
        sums[r][1] = s->start[1];
    }
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a = p->parts[part] + row * pitch;
        for (uint32_t left = p->part_bytes, count; left > 0; left -= count, a += count) {
            count = left < NEUTRON_GROUP ? left : NEUTRON_GROUP;
            const __m256i w0 = load_weights(w[0], lanes), w1 = blocks > 1 ? load_weights(w[1], NEUTRON_BLOCK) : w0;
            w[0] += lanes * NEUTRON_GROUP;
            w[1] += NEUTRON_BLOCK * NEUTRON_GROUP;
#pragma GCC unroll 6
            for (uint32_t r = 0; r < rows; ++r) {
                const int8_t *at = a + r * pitch;
                const int32_t word = count == NEUTRON_GROUP ? neutron_load4(at) : neutron_load_tail(at, count);
                const __m256i x = _mm256_set1_epi32(word ^ flip);
                sums[r][0] = add_products(sums[r][0], x, w0);
                if (blocks > 1) sums[r][1] = add_products(sums[r][1], x, w1);
            }
        }
    }
#pragma GCC unroll 6
    for (uint32_t r = 0; r < rows; ++r) {
        neutron_store8(&p->g, row + r, s->channel, lanes, sums[r][0], &s->scale[0]);
        if (blocks > 1) {
            neutron_store8(&p->g, row + r, s->channel + NEUTRON_BLOCK, NEUTRON_BLOCK, sums[r][1], &s->scale[1]);
        }
    }
}

INLINE void strip_rows(const NeutronProduct *p, const Strip *s, uint32_t blocks, uint32_t lanes) {
    uint32_t i = 0;
    for (; i + ROWS <= p->g.m; i += ROWS) tile(p, s, i, ROWS, blocks, lanes);
    for (; i < p->g.m; ++i) tile(p, s, i, 1, blocks, lanes);
}

/* Set up the channels from j on: two blocks if they are full. */
static uint32_t prepare(const NeutronProduct *p, uint32_t j, Strip *s) {
    const NeutronGemm *g = &p->g;
    const uint32_t left = g->n - j, blocks = left >= 2u * NEUTRON_BLOCK ? 2u : 1u;
    s->channel = j;
    s->lanes = left < NEUTRON_BLOCK ? left : NEUTRON_BLOCK;
    for (uint32_t b = 0; b < 2; ++b) {
        const uint32_t channel = b < blocks ? j + b * NEUTRON_BLOCK : j; /* an absent block is never stored */
        const __m256i mask = neutron_lanes8(s->lanes);
        s->weights[b] = g->weights + channel * neutron_groups(g->k) * NEUTRON_GROUP;
        s->start[b] = p->start ? _mm256_maskload_epi32(p->start + channel, mask)
                               : block_start(s->weights[b], g->k, s->lanes, g->bias + channel);
        s->scale[b] = neutron_channels8(g, channel, mask);
    }
    return blocks;
}

static void run(const NeutronProduct *p) {
    Strip s;
    for (uint32_t j = 0, blocks; j < p->g.n; j += blocks * NEUTRON_BLOCK) {
        blocks = prepare(p, j, &s);
        NeutronProduct line = *p;
        for (uint32_t i = 0; i < (p->lines ? p->line_count : 1u); ++i, line.parts += p->part_count) {
            if (p->lines) line.g.out = p->lines[i];
            if (blocks > 1) strip_rows(&line, &s, 2, NEUTRON_BLOCK);
            else if (s.lanes == NEUTRON_BLOCK) strip_rows(&line, &s, 1, NEUTRON_BLOCK);
            else strip_rows(&line, &s, 1, s.lanes);
        }
    }
}

static void copy(int8_t *to, const int8_t *from, size_t bytes) {
    const __m256i flip = _mm256_set1_epi32(FLIP);
    size_t i = 0;
    for (; i + 32u <= bytes; i += 32u) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        _mm256_storeu_si256((__m256i *)(void *)(to + i), _mm256_xor_si256(x, flip));
    }
    for (; i < bytes; ++i) to[i] = (int8_t)(from[i] ^ -128);
}

const NeutronProductCode neutron_product_avx_vnni = {.start = start, .run = run, .copy = copy, .flip = (int8_t)-128};
