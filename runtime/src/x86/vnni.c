/* The matrix product for AVX-512 VNNI in 256-bit registers: four products and their sum in one instruction.
 *
 * The instruction takes unsigned by signed bytes, so 128 is added to every a (by flipping its top bit) and 128
 * times the channel's weight sum is taken from the bias. Sums wrap like the portable ones, so this is exact.
 */
#include "x86.h"

#define ROWS 8u

typedef struct {
    const int8_t *weights[2]; /* of two blocks, or twice the same */
    __m256i start[2]; /* bias less the correction */
    NeutronScale8 scale[2];
    int plain; /* both blocks may take the short way from sums to bytes */
} Pair;

static inline __attribute__((always_inline)) __m256i load_weights(const int8_t *at, uint32_t lanes) {
    if (lanes == 8u) return _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm256_maskload_epi32((const int *)(const void *)at, neutron_lanes8(lanes));
}

static inline __attribute__((always_inline)) __m256i flipped(int32_t word) {
    return _mm256_xor_si256(_mm256_set1_epi32(word), _mm256_set1_epi8((char)0x80));
}

/* `rows` rows times `blocks` blocks; the bounds are constants at every call, so that all sums are in registers. */
static inline __attribute__((always_inline)) void tile(const NeutronGemm *g, uint32_t row, uint32_t rows,
                                                       uint32_t channel, uint32_t blocks, const Pair *p, uint32_t lanes) {
    uint32_t full = g->k / NEUTRON_GROUP, tail = g->k % NEUTRON_GROUP;
    size_t step = (size_t)lanes * NEUTRON_GROUP;
    const int8_t *first = p->weights[0], *second = p->weights[1];
    __m256i sums[ROWS][2];
    for (uint32_t r = 0; r < rows; ++r) {
        sums[r][0] = p->start[0];
        sums[r][1] = p->start[1];
    }
    const int8_t *a = g->a + row * g->a_pitch;
    for (uint32_t i = 0; i < full; ++i, a += 4, first += step, second += step) {
        __m256i w0 = load_weights(first, lanes), w1 = blocks > 1 ? load_weights(second, lanes) : w0;
        for (uint32_t r = 0; r < rows; ++r) {
            __m256i x = flipped(neutron_load4(a + r * g->a_pitch));
            sums[r][0] = _mm256_dpbusd_epi32(sums[r][0], x, w0);
            if (blocks > 1) sums[r][1] = _mm256_dpbusd_epi32(sums[r][1], x, w1);
        }
    }
    if (tail) {
        __m256i w0 = load_weights(first, lanes), w1 = blocks > 1 ? load_weights(second, lanes) : w0;
        for (uint32_t r = 0; r < rows; ++r) {
            __m256i x = flipped(neutron_load_tail(a + r * g->a_pitch, tail));
            sums[r][0] = _mm256_dpbusd_epi32(sums[r][0], x, w0);
            if (blocks > 1) sums[r][1] = _mm256_dpbusd_epi32(sums[r][1], x, w1);
        }
    }
    if (blocks > 1 && p->plain) {
        for (uint32_t r = 0; r < rows; ++r) {
            __m128i bytes = neutron_bytes16(neutron_apply_plain8(sums[r][0], &p->scale[0]),
                                            neutron_apply_plain8(sums[r][1], &p->scale[1]), g->zero, g->low, g->high);
            bytes = _mm_shuffle_epi32(bytes, 0xD8);
            _mm_storeu_si128((__m128i *)(void *)(g->out + (row + r) * g->out_pitch + channel), bytes);
        }
        return;
    }
    for (uint32_t r = 0; r < rows; ++r) {
        neutron_store8(g, row + r, channel, lanes, sums[r][0], &p->scale[0]);
        if (blocks > 1) neutron_store8(g, row + r, channel + NEUTRON_BLOCK, lanes, sums[r][1], &p->scale[1]);
    }
}

/* Set up one block of a pair: bias less 128 times the sum of its weights (padding bytes are 0 and add nothing). */
static void prepare(const NeutronGemm *g, Pair *p, uint32_t which, uint32_t channel, uint32_t lanes) {
    size_t groups = neutron_groups(g->k);
    const int8_t *weights = g->weights + (size_t)channel * groups * NEUTRON_GROUP;
    __m256i mask = neutron_lanes8(lanes), sum = _mm256_setzero_si256();
    for (size_t i = 0; i < groups; ++i) {
        __m256i w = load_weights(weights + i * lanes * NEUTRON_GROUP, lanes);
        sum = _mm256_dpbusd_epi32(sum, _mm256_set1_epi8((char)0x80), w);
    }
    p->weights[which] = weights;
    p->start[which] = _mm256_sub_epi32(_mm256_maskload_epi32(g->bias + channel, mask), sum);
    p->scale[which] = neutron_channels8(g, channel, mask);
}

void neutron_gemm_vnni(const NeutronGemm *g) {
    uint32_t j = 0;
    Pair p = {.plain = 0};
    for (; j + 2u * NEUTRON_BLOCK <= g->n; j += 2u * NEUTRON_BLOCK) {
        prepare(g, &p, 0, j, NEUTRON_BLOCK);
        prepare(g, &p, 1, j + NEUTRON_BLOCK, NEUTRON_BLOCK);
        p.plain = g->raw == NULL && p.scale[0].plain && p.scale[1].plain;
        uint32_t i = 0;
        for (; i + ROWS <= g->m; i += ROWS) tile(g, i, ROWS, j, 2, &p, NEUTRON_BLOCK);
        for (; i + 2u <= g->m; i += 2u) tile(g, i, 2, j, 2, &p, NEUTRON_BLOCK);
        for (; i < g->m; ++i) tile(g, i, 1, j, 2, &p, NEUTRON_BLOCK);
    }
    for (; j < g->n; j += NEUTRON_BLOCK) {
        uint32_t lanes = g->n - j < NEUTRON_BLOCK ? g->n - j : NEUTRON_BLOCK;
        prepare(g, &p, 0, j, lanes);
        prepare(g, &p, 1, j, lanes);
        uint32_t i = 0;
        if (lanes == NEUTRON_BLOCK) {
            for (; i + ROWS <= g->m; i += ROWS) tile(g, i, ROWS, j, 1, &p, NEUTRON_BLOCK);
            for (; i < g->m; ++i) tile(g, i, 1, j, 1, &p, NEUTRON_BLOCK);
        } else {
            for (; i + ROWS <= g->m; i += ROWS) tile(g, i, ROWS, j, 1, &p, lanes);
            for (; i < g->m; ++i) tile(g, i, 1, j, 1, &p, lanes);
        }
    }
}
