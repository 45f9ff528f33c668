/* The matrix product for AVX-512 VNNI: four products and their sum in one instruction, sixteen channels a register.
 *
 * The instruction takes unsigned by signed bytes, so 128 is added to every a (by flipping its top bit) and 128
 * times the channel's weight sum is taken from the bias. Sums wrap like the portable ones, so this is exact.
 */
#include <string.h>

#include "avx512.h"
#include "vector/product.h"

#define INLINE static inline __attribute__((always_inline))
#define ROWS 8u /* of a tile with two registers of channels; one with a single register has twice as many */

/* Sums stay below 2^30, as neutron_scale_right16 needs, if they start below 2^29 and have no more terms than this. */
#define FAST_K (1u << 14)

/* Up to four blocks of channels: one or two registers. */
typedef struct {
    const int8_t *weights[4];
    size_t step[4]; /* bytes from one group of a block to the next */
    __mmask8 lanes[4];
    uint32_t channel, count;
    __m512i start[2];
    NeutronScale16 scale[2];
    int fast;     /* the short way of scaling, */
    int positive; /* and of that the shorter one */
} Strip;

INLINE __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

/* A group of the blocks 2h and 2h + 1; `edge`: they may have fewer than eight channels. */
INLINE __m512i load_weights(const Strip *s, const int8_t *const *at, uint32_t h, int edge) {
    if (!edge) {
        return join(_mm256_loadu_si256((const __m256i *)(const void *)at[2 * h]),
                    _mm256_loadu_si256((const __m256i *)(const void *)at[2 * h + 1]));
    }
    return join(_mm256_maskz_loadu_epi32(s->lanes[2 * h], at[2 * h]),
                _mm256_maskz_loadu_epi32(s->lanes[2 * h + 1], at[2 * h + 1]));
}

/* Four values of a, 128 added, in every lane. */
INLINE __m512i load_a(const int8_t *a, int flip) {
    int32_t word;
    memcpy(&word, a, sizeof word);
    __m512i x = _mm512_set1_epi32(word);
    return flip ? _mm512_xor_si512(x, _mm512_set1_epi8((char)0x80)) : x;
}

/* The last ones of a row; the weights of those that are absent are 0. */
INLINE __m512i load_a_tail(const int8_t *a, uint32_t count, int flip) {
    int8_t last[4] = {0, 0, 0, 0};
    memcpy(last, a, count);
    return load_a(last, flip);
}

/* _mm512_dpbusd_epi32 in place. GCC copies every sum twice in a loop of the intrinsic, and runs out of registers. */
INLINE void add_products(__m512i *sums, __m512i x, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(x), "v"(weights));
}

/* Results of one row: sums, or bytes, for up to 32 channels. */
static void store(const NeutronGemm *g, const Strip *s, uint32_t row, __m512i first, __m512i second) {
    const uint32_t lanes = (uint32_t)((UINT64_C(1) << s->count) - 1u);
    if (g->raw) {
        int32_t *to = g->raw + (size_t)row * g->n + s->channel;
        _mm512_mask_storeu_epi32(to, (__mmask16)lanes, first);
        _mm512_mask_storeu_epi32(to + 16, (__mmask16)(lanes >> 16), second);
        return;
    }
    const __m512i zero = _mm512_set1_epi32(g->zero);
    if (s->fast) {
        const NeutronRightScale16 *scale[2] = {&s->scale[0].short_way, &s->scale[1].short_way};
        first = s->positive ? neutron_scale_right16(first, scale[0], 1) : neutron_scale_right16(first, scale[0], 0);
        second = s->positive ? neutron_scale_right16(second, scale[1], 1) : neutron_scale_right16(second, scale[1], 0);
    } else {
        first = neutron_apply_scale16(first, &s->scale[0]);
        second = neutron_apply_scale16(second, &s->scale[1]);
    }
    /* Wrapped to 32 bits before it is clamped, as in the portable code. */
    __m512i words = _mm512_packs_epi32(_mm512_add_epi32(first, zero), _mm512_add_epi32(second, zero));
    /* Packing left the fours of both registers by turns. */
    __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm512_cvtsepi16_epi8(words), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8((char)g->low));
    bytes = _mm256_min_epi8(bytes, _mm256_set1_epi8((char)g->high));
    _mm256_mask_storeu_epi8(g->out + row * g->out_pitch + s->channel, lanes, bytes);
}

/* The same for all rows of a tile. A function of its own, for it is not often called. */
static __attribute__((noinline)) void store_each(const NeutronGemm *g, const Strip *s, uint32_t row, uint32_t rows,
                                                 __m512i sums[][2]) {
    for (uint32_t r = 0; r < rows; ++r) store(g, s, row + r, sums[r][0], sums[r][1]);
}

/* The same for a tile of full registers that takes the short way: four registers at a time are packed and put in order. */
INLINE void store_tile(const NeutronGemm *g, const Strip *s, uint32_t row, uint32_t rows, uint32_t registers,
                       int positive, __m512i sums[][2]) {
    const __m512i zero = _mm512_set1_epi16((int16_t)g->zero);
    const __m512i low = _mm512_set1_epi8((char)g->low), high = _mm512_set1_epi8((char)g->high);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const uint32_t each = 4u / registers;
    const size_t pitch = g->out_pitch;
    int8_t *to = g->out + row * pitch + s->channel;
    /* All are scaled before anything is stored: behind a store the constants would have to be loaded again. */
#pragma GCC unroll 2
    for (uint32_t h = 0; h < registers; ++h) {
        const NeutronRightScale16 scale = s->scale[h].short_way;
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; ++r) sums[r][h] = neutron_scale_right16(sums[r][h], &scale, positive);
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r += each, to += each * pitch) {
        __m512i x[4];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; ++i) x[i] = sums[r + i / registers][i % registers];
        __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(x[0], x[1]), zero);
        __m512i second = _mm512_adds_epi16(_mm512_packs_epi32(x[2], x[3]), zero);
        __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
        bytes = _mm512_min_epi8(_mm512_max_epi8(bytes, low), high);
        if (registers > 1) {
            _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(bytes));
            _mm256_storeu_si256((__m256i *)(void *)(to + pitch), _mm512_extracti64x4_epi64(bytes, 1));
        } else {
            _mm_storeu_si128((__m128i *)(void *)to, _mm512_castsi512_si128(bytes));
            _mm_storeu_si128((__m128i *)(void *)(to + pitch), _mm512_extracti32x4_epi32(bytes, 1));
            _mm_storeu_si128((__m128i *)(void *)(to + 2 * pitch), _mm512_extracti32x4_epi32(bytes, 2));
            _mm_storeu_si128((__m128i *)(void *)(to + 3 * pitch), _mm512_extracti32x4_epi32(bytes, 3));
        }
    }
}

/* How a tile is computed, known when it is compiled. */
typedef struct {
    uint32_t registers; /* of channels: 1 or 2 */
    int edge;           /* the last block may have fewer than eight channels, or be absent */
    int flip;           /* 128 is not yet added to a */
    int correct;        /* the sums start from the bias, and are corrected at the end */
} Variant;

/* `rows` rows times one or two registers of channels. All bounds but those of k are constants at every call, so
 * that the sums are in registers. */
INLINE void tile(const NeutronProduct *p, const Strip *s, uint32_t row, uint32_t rows, const Variant variant) {
    const uint32_t registers = variant.registers;
    const int edge = variant.edge, flip = variant.flip;
    const NeutronGemm *g = &p->g;
    const size_t pitch = g->a_pitch;
    uint32_t groups = p->part_bytes / NEUTRON_GROUP, tail = p->part_bytes % NEUTRON_GROUP;
    const int8_t *w[4] = {s->weights[0], s->weights[1], s->weights[2], s->weights[3]};
    __m512i sums[2u * ROWS][2], excess[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    const __m512i offset = _mm512_set1_epi8((char)0x80);
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; ++r) {
        sums[r][0] = s->start[0];
        sums[r][1] = s->start[1];
    }
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a[(2u * ROWS + 2u) / 3u]; /* every third row: the two behind it are reached by an index */
#pragma GCC unroll 6
        for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] = p->parts[part] + (row + 3u * r) * pitch;
        for (uint32_t i = 0; i < groups; ++i) {
            __m512i w0 = load_weights(s, w, 0, edge), w1 = registers > 1 ? load_weights(s, w, 1, edge) : w0;
            if (variant.correct) {
                add_products(&excess[0], offset, w0);
                if (registers > 1) add_products(&excess[1], offset, w1);
            }
#pragma GCC unroll 16
            for (uint32_t r = 0; r < rows; ++r) {
                __m512i x = load_a(a[r / 3] + r % 3 * pitch, flip);
                add_products(&sums[r][0], x, w0);
                if (registers > 1) add_products(&sums[r][1], x, w1);
            }
#pragma GCC unroll 6
            for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] += NEUTRON_GROUP;
#pragma GCC unroll 4
            for (uint32_t b = 0; b < 2u * registers; ++b) w[b] += edge ? s->step[b] : NEUTRON_GROUP * NEUTRON_BLOCK;
        }
        if (tail) {
            __m512i w0 = load_weights(s, w, 0, edge), w1 = registers > 1 ? load_weights(s, w, 1, edge) : w0;
            if (variant.correct) {
                add_products(&excess[0], offset, w0);
                if (registers > 1) add_products(&excess[1], offset, w1);
            }
#pragma GCC unroll 16
            for (uint32_t r = 0; r < rows; ++r) {
                __m512i x = load_a_tail(a[r / 3] + r % 3 * pitch, tail, flip);
                add_products(&sums[r][0], x, w0);
                if (registers > 1) add_products(&sums[r][1], x, w1);
            }
        }
    }
    if (variant.correct) {
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; ++r) {
            sums[r][0] = _mm512_sub_epi32(sums[r][0], excess[0]);
            sums[r][1] = _mm512_sub_epi32(sums[r][1], excess[1]);
        }
    }
    if (!edge && rows % (4u / registers) == 0 && s->fast && g->raw == NULL) {
        if (s->positive) {
            store_tile(g, s, row, rows, registers, 1, sums);
        } else {
            store_tile(g, s, row, rows, registers, 0, sums);
        }
        return;
    }
    __m512i kept[2u * ROWS][2]; /* a copy, or else the sums would be in memory all along */
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; ++r) {
        kept[r][0] = sums[r][0];
        kept[r][1] = sums[r][1];
    }
    store_each(g, s, row, rows, kept);
}

/* --- eight channels or fewer: registers of 256 bits, of which twice as many are done at a time --- */

INLINE void add_products8(__m256i *sums, __m256i x, __m256i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(x), "v"(weights));
}

INLINE __m256i half(__m512i x) { return _mm512_castsi512_si256(x); }

/* store_tile for four rows. */
INLINE void store_four8(const NeutronGemm *g, const Strip *s, const NeutronRightScale8 *scale, uint32_t row,
                        int positive, const __m256i *sums) {
    const __m256i zero = _mm256_set1_epi16((int16_t)g->zero);
    __m256i x[4];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < 4; ++r) x[r] = neutron_scale_right8(sums[r], scale, positive);
    __m256i bytes = _mm256_packs_epi16(_mm256_adds_epi16(_mm256_packs_epi32(x[0], x[1]), zero),
                                       _mm256_adds_epi16(_mm256_packs_epi32(x[2], x[3]), zero));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8((char)g->low));
    bytes = _mm256_min_epi8(bytes, _mm256_set1_epi8((char)g->high));
    const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
    const __m128i rows[4] = {low, _mm_srli_si128(low, 8), high, _mm_srli_si128(high, 8)};
    int8_t *to = g->out + row * g->out_pitch + s->channel;
#pragma GCC unroll 4
    for (uint32_t r = 0; r < 4; ++r) _mm_mask_storeu_epi8(to + r * g->out_pitch, s->lanes[0], rows[r]);
}

INLINE void tile8(const NeutronProduct *p, const Strip *s, uint32_t row, uint32_t rows, int flip) {
    const size_t pitch = p->g.a_pitch;
    const uint32_t groups = p->part_bytes / NEUTRON_GROUP, tail = p->part_bytes % NEUTRON_GROUP;
    const int8_t *w = s->weights[0];
    __m256i sums[2u * ROWS];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; ++r) sums[r] = half(s->start[0]);
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a[(2u * ROWS + 2u) / 3u];
#pragma GCC unroll 6
        for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] = p->parts[part] + (row + 3u * r) * pitch;
        for (uint32_t i = 0; i < groups; ++i, w += s->step[0]) {
            const __m256i weights = _mm256_maskz_loadu_epi32(s->lanes[0], w);
#pragma GCC unroll 16
            for (uint32_t r = 0; r < rows; ++r) {
                add_products8(&sums[r], half(load_a(a[r / 3] + r % 3 * pitch, flip)), weights);
            }
#pragma GCC unroll 6
            for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] += NEUTRON_GROUP;
        }
        if (tail) {
            const __m256i weights = _mm256_maskz_loadu_epi32(s->lanes[0], w);
#pragma GCC unroll 16
            for (uint32_t r = 0; r < rows; ++r) {
                add_products8(&sums[r], half(load_a_tail(a[r / 3] + r % 3 * pitch, tail, flip)), weights);
            }
            w += s->step[0];
        }
    }
    if (rows % 4u == 0 && s->fast && p->g.raw == NULL) {
        const NeutronRightScale16 *of = &s->scale[0].short_way;
        const NeutronRightScale8 scale = {half(of->even), half(of->odd), half(of->even_add), half(of->odd_add),
                                          half(of->right)};
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r += 4u) {
            if (s->positive) store_four8(&p->g, s, &scale, row + r, 1, sums + r);
            else store_four8(&p->g, s, &scale, row + r, 0, sums + r);
        }
        return;
    }
    __m512i kept[2u * ROWS][2];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; ++r) {
        kept[r][0] = _mm512_castsi256_si512(sums[r]);
        kept[r][1] = _mm512_setzero_si512();
    }
    store_each(&p->g, s, row, rows, kept);
}

/* --- rows, in tiles --- */

#define CASE(n, call) \
    case n: call(n); break;

/* One tile of the rows that are left, fewer than eight. */
#define REST(count, call) \
    switch (count) { CASE(1, call) CASE(2, call) CASE(3, call) CASE(4, call) CASE(5, call) CASE(6, call) CASE(7, call) }

INLINE void rows_of(const NeutronProduct *p, const Strip *s, uint32_t begin, uint32_t end, const Variant variant) {
    uint32_t i = begin;
    if (variant.correct) {
        for (; i < end; ++i) tile(p, s, i, 1, variant);
        return;
    }
    if (variant.registers == 1) {
        for (; i + 2u * ROWS <= end; i += 2u * ROWS) tile(p, s, i, 2u * ROWS, variant);
    }
    for (; i + ROWS <= end; i += ROWS) tile(p, s, i, ROWS, variant);
#define TILE(n) tile(p, s, i, n, variant)
    REST(end - i, TILE)
#undef TILE
}

INLINE void rows_of_8(const NeutronProduct *p, const Strip *s, uint32_t begin, uint32_t end, int flip) {
    uint32_t i = begin;
    for (; i + 2u * ROWS <= end; i += 2u * ROWS) tile8(p, s, i, 2u * ROWS, flip);
    for (; i + ROWS <= end; i += ROWS) tile8(p, s, i, ROWS, flip);
#define TILE(n) tile8(p, s, i, n, flip)
    REST(end - i, TILE)
#undef TILE
}

/* Each a function of its own: the compiler does better on several small ones. */
#define ROWS_FUNCTION(name, ...)                                                                        \
    static __attribute__((noinline)) void name(const NeutronProduct *p, const Strip *s, uint32_t begin, \
                                               uint32_t end) {                                          \
        const Variant variant = {__VA_ARGS__};                                                          \
        rows_of(p, s, begin, end, variant);                                                             \
    }
ROWS_FUNCTION(rows_16, .registers = 1, .flip = 1)
ROWS_FUNCTION(rows_32, .registers = 2, .flip = 1)
ROWS_FUNCTION(rows_16_flipped, .registers = 1)
ROWS_FUNCTION(rows_32_flipped, .registers = 2)
ROWS_FUNCTION(rows_few, .registers = 2, .edge = 1, .flip = 1, .correct = 1)
ROWS_FUNCTION(rows_few_32, .registers = 2, .flip = 1, .correct = 1)

static __attribute__((noinline)) void rows_8(const NeutronProduct *p, const Strip *s, uint32_t begin, uint32_t end) {
    rows_of_8(p, s, begin, end, 1);
}

static __attribute__((noinline)) void rows_8_flipped(const NeutronProduct *p, const Strip *s, uint32_t begin,
                                                     uint32_t end) {
    rows_of_8(p, s, begin, end, 0);
}

static void strip_rows(const NeutronProduct *p, const Strip *s, uint32_t begin, uint32_t end) {
    if (p->start == NULL) {
        (s->count == 32u ? rows_few_32 : rows_few)(p, s, begin, end);
    } else if (p->flipped) {
        (s->count == 32u ? rows_32_flipped : s->count == 16u ? rows_16_flipped : rows_8_flipped)(p, s, begin, end);
    } else {
        (s->count == 32u ? rows_32 : s->count == 16u ? rows_16 : rows_8)(p, s, begin, end);
    }
}

/* Channels of the next strip: what fills registers, if there are rows enough for it to matter. */
static uint32_t strip_width(const NeutronProduct *p, uint32_t left) {
    if (left >= 32u) return 32u;
    if (p->start == NULL) return left;
    return left >= 16u ? 16u : left < NEUTRON_BLOCK ? left : NEUTRON_BLOCK;
}

/* Set up the strip of channels from `channel` on. */
static Strip prepare(const NeutronProduct *p, uint32_t channel) {
    Strip strip, *s = &strip;
    const NeutronGemm *g = &p->g;
    size_t channel_bytes = neutron_groups(g->k) * NEUTRON_GROUP;
    s->channel = channel;
    s->count = strip_width(p, g->n - channel);
    for (uint32_t b = 0; b < 4; ++b) {
        uint32_t before = b * NEUTRON_BLOCK;
        uint32_t lanes = before >= s->count                  ? 0u
                         : s->count - before < NEUTRON_BLOCK ? s->count - before
                                                             : NEUTRON_BLOCK;
        s->weights[b] = g->weights + (lanes ? channel + before : channel) * channel_bytes;
        s->step[b] = (size_t)lanes * NEUTRON_GROUP;
        s->lanes[b] = (__mmask8)((1u << lanes) - 1u);
    }
    const int32_t *from = p->start ? p->start : g->bias;
    s->fast = p->start && g->k <= FAST_K;
    for (uint32_t h = 0; h < 2; ++h) {
        __mmask16 lanes = (__mmask16)(s->lanes[2 * h] | (uint32_t)s->lanes[2 * h + 1] << 8);
        uint32_t first = lanes ? channel + 16u * h : channel;
        s->start[h] = _mm512_maskz_loadu_epi32(lanes, from + first);
        if (g->raw) continue; /* nothing is scaled */
        /* Lanes without a channel have a multiplier of 0 and shift by 1: they do not stand in the way. */
        s->scale[h] = neutron_scale16(_mm512_maskz_loadu_epi32(lanes, g->multiplier + first),
                                      _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), lanes, g->shift + first));
        __mmask16 small = _mm512_cmplt_epi32_mask(_mm512_abs_epi32(s->start[h]), _mm512_set1_epi32(1 << 29));
        /* The absolute value of INT32_MIN is itself, and below everything. */
        small &= _mm512_cmpge_epi32_mask(_mm512_abs_epi32(s->start[h]), _mm512_setzero_si512());
        s->fast = s->fast && s->scale[h].right_only && small == 0xFFFF;
    }
    s->positive = s->fast && g->low >= g->zero;
    for (uint32_t h = 0; h < 2 && s->fast && g->raw == NULL; ++h) {
        s->start[h] = _mm512_add_epi32(s->start[h], _mm512_set1_epi32(NEUTRON_RIGHT_OFFSET));
        if (s->positive) neutron_for_positive16(&s->scale[h].short_way);
    }
    return strip;
}

static void run(const NeutronProduct *p) {
    const NeutronGemm *g = &p->g;
    /* Rows of a and of the result that stay in the cache while all channels pass. */
    size_t at_once = 65536u / ((size_t)g->k + g->n) / ROWS * ROWS;
    if (at_once < 4u * ROWS) at_once = 4u * ROWS;
    for (uint32_t begin = 0, end; begin < g->m; begin = end) {
        end = g->m - begin < 2u * at_once ? g->m : begin + (uint32_t)at_once;
        for (uint32_t j = 0; j < g->n; j += strip_width(p, g->n - j)) {
            Strip s = prepare(p, j);
            if (p->lines == NULL) {
                strip_rows(p, &s, begin, end);
                continue;
            }
            NeutronProduct line = *p;
            for (uint32_t i = 0; i < p->line_count; ++i, line.parts += p->part_count) {
                line.g.out = p->lines[i];
                strip_rows(&line, &s, begin, end);
            }
        }
    }
}

/* The bias less 128 times the sum of the weights (padding bytes are 0 and add nothing). */
static void start(const int8_t *weights, uint32_t k, uint32_t n, const int32_t *bias, int32_t *to) {
    const size_t groups = neutron_groups(k);
    const __m512i offset = _mm512_set1_epi8((char)0x80);
    for (uint32_t j = 0; j < n; j += NEUTRON_BLOCK) {
        uint32_t lanes = n - j < NEUTRON_BLOCK ? n - j : NEUTRON_BLOCK;
        __mmask8 mask = (__mmask8)((1u << lanes) - 1u);
        __m512i sums[4];
        for (uint32_t i = 0; i < 4; ++i) sums[i] = _mm512_setzero_si512();
        size_t i = 0;
        if (lanes == NEUTRON_BLOCK) { /* eight groups, two a register */
            for (; i + 8u <= groups; i += 8u, weights += 8u * NEUTRON_BLOCK * NEUTRON_GROUP) {
#pragma GCC unroll 4
                for (uint32_t r = 0; r < 4; ++r) add_products(&sums[r], offset, _mm512_loadu_si512(weights + 64u * r));
            }
        }
        __m512i all = _mm512_add_epi32(_mm512_add_epi32(sums[0], sums[1]), _mm512_add_epi32(sums[2], sums[3]));
        __m256i sum = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
        for (; i < groups; ++i, weights += lanes * NEUTRON_GROUP) {
            sum = _mm256_dpbusd_epi32(sum, _mm512_castsi512_si256(offset), _mm256_maskz_loadu_epi32(mask, weights));
        }
        _mm256_mask_storeu_epi32(to + j, mask, _mm256_sub_epi32(_mm256_maskz_loadu_epi32(mask, bias + j), sum));
    }
}

static void copy(int8_t *to, const int8_t *from, size_t bytes) {
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    size_t i = 0;
    for (; i + 64u <= bytes; i += 64u)
        _mm512_storeu_si512(to + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), flip));
    __mmask64 rest = (UINT64_C(1) << (bytes - i)) - 1u;
    _mm512_mask_storeu_epi8(to + i, rest, _mm512_xor_si512(_mm512_maskz_loadu_epi8(rest, from + i), flip));
}

const NeutronProductCode neutron_product_vnni = {.start = start, .run = run, .copy = copy, .flip = (int8_t)-128};
