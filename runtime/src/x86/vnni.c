/* The matrix product for AVX-512 VNNI (vnni.h): tiles of sixteen or 32
 * channels. */
#include "vnni.h"

#include "vnni_tiles.h"

#define SUMS NEUTRON_TILE_SUMS
#define SHORT 12u /* groups: with fewer products nothing is gained by scaling meanwhile */

/* Sums stay below 2^30, as neutron_scale_right16 needs, if they start below
 * 2^29 and have no more terms than this. */
#define FAST_K (1u << 14)

void neutron_store_row_vnni(const NeutronGemm *g, const NeutronStrip *s, uint32_t row, int8_t *out, __m512i first,
                            __m512i second) {
    const uint32_t lanes = (uint32_t)((UINT64_C(1) << s->count) - 1u);
    if (g->raw) {
        int32_t *to = g->raw + (size_t)row * g->n + s->channel;
        _mm512_mask_storeu_epi32(to, (__mmask16)lanes, first);
        _mm512_mask_storeu_epi32(to + 16, (__mmask16)(lanes >> 16), second);
        return;
    }
    __m512i x[2] = {first, second};
    for (uint32_t h = 0; h < 2; ++h) {
        const NeutronRightScale16 *scale = &s->scale[h].short_way;
        if (s->fast) {
            x[h] = s->positive ? neutron_scale_right16(x[h], scale, 1) : neutron_scale_right16(x[h], scale, 0);
        } else { /* wrapped to 32 bits before it is clamped, as in the portable code
              */
            x[h] = _mm512_add_epi32(neutron_apply_scale16(x[h], &s->scale[h]), _mm512_set1_epi32(g->zero));
        }
        __m128i bytes = _mm_max_epi8(_mm512_cvtsepi32_epi8(x[h]), s->low);
        bytes = _mm_min_epi8(bytes, s->high);
        _mm_mask_storeu_epi8(out + row * g->out_pitch + s->channel + 16u * h, (__mmask16)(lanes >> 16u * h), bytes);
    }
}

/* A group of the blocks 2h and 2h + 1. */
NEUTRON_INLINE __m512i load_weights(const int8_t *at, size_t block, uint32_t h) {
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(at + 2u * h * block));
    const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(at + (2u * h + 1u) * block));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Four registers of sums, which are `rows` rows of results: scaled, packed, put
 * in order and stored. */
NEUTRON_INLINE void store_four(const NeutronGemm *g, const NeutronStrip *s, int8_t *to, uint32_t rows,
                               uint32_t registers, const __m512i *sums) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const size_t pitch = g->out_pitch;
    __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(sums[0], sums[1]), _mm512_packs_epi32(sums[2], sums[3]));
    bytes = _mm512_permutexvar_epi32(order, bytes);
    bytes = _mm512_max_epi8(bytes, _mm512_broadcast_i32x4(s->low));
    bytes = _mm512_min_epi8(bytes, _mm512_broadcast_i32x4(s->high));
    if (registers > 1) {
        _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(bytes));
        if (rows > 1u) _mm256_storeu_si256((__m256i *)(void *)(to + pitch), _mm512_extracti64x4_epi64(bytes, 1));
    } else {
        _mm_storeu_si128((__m128i *)(void *)to, _mm512_castsi512_si128(bytes));
        if (rows > 1u) _mm_storeu_si128((__m128i *)(void *)(to + pitch), _mm512_extracti32x4_epi32(bytes, 1));
        if (rows > 2u) _mm_storeu_si128((__m128i *)(void *)(to + 2u * pitch), _mm512_extracti32x4_epi32(bytes, 2));
        if (rows > 3u) _mm_storeu_si128((__m128i *)(void *)(to + 3u * pitch), _mm512_extracti32x4_epi32(bytes, 3));
    }
}

/* A tile's results from its sums, which take the short way. */
NEUTRON_INLINE void store_tile(const NeutronGemm *g, const NeutronStrip *s, uint32_t row, int8_t *out, uint32_t rows,
                               uint32_t registers, int positive, __m512i *sums) {
    const uint32_t each = 4u / registers;
    int8_t *to = out + row * g->out_pitch + s->channel;
    /* All are scaled before anything is stored: behind a store the constants
   * would have to be loaded again. */
#pragma GCC unroll 2
    for (uint32_t h = 0; h < registers; ++h) {
        const NeutronRightScale16 scale = s->scale[h].short_way;
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; ++r) {
            sums[registers * r + h] = neutron_scale_right16(sums[registers * r + h], &scale, positive);
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r += each) {
        store_four(g, s, to + r * g->out_pitch, rows - r < each ? rows - r : each, registers, sums + registers * r);
    }
}

/* Every row of a tile that cannot take the short way. A function of its own,
 * for it is not often called. */
static __attribute__((noinline)) void store_each(const NeutronGemm *g, const NeutronStrip *s, uint32_t row, int8_t *out,
                                                 uint32_t rows, const __m512i *sums) {
    const uint32_t registers = s->count / 16u;
    for (uint32_t r = 0; r < rows; ++r, sums += registers) {
        neutron_store_row_vnni(g, s, row + r, out, sums[0], sums[registers - 1u]);
    }
}

/* A tile that waits for nothing: of few products, or of the last rows of a
 * line. The numbers are constants at every call, so that the sums are in
 * registers. */
NEUTRON_INLINE void short_tile(const NeutronProduct *p, const NeutronStrip *s, const int8_t *const *parts, int8_t *out,
                               uint32_t row, uint32_t rows, uint32_t registers) {
    const NeutronGemm *g = &p->g;
    const size_t pitch = g->a_pitch, block = s->block;
    const int8_t *w = s->weights;
    __m512i sums[SUMS];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < SUMS; ++i) {
        sums[i] = i < rows * registers ? s->start[i % registers] : _mm512_setzero_si512();
    }
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a[(SUMS + 2u) / 3u]; /* every third row: the two behind it are
                                          reached by an index */
#pragma GCC unroll 6
        for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] = parts[part] + (row + 3u * r) * pitch;
        for (size_t i = 0; i < neutron_groups(p->part_bytes); ++i, w += NEUTRON_GROUP * NEUTRON_BLOCK) {
            const __m512i w0 = load_weights(w, block, 0), w1 = registers > 1 ? load_weights(w, block, 1) : w0;
#pragma GCC unroll 16
            for (uint32_t r = 0; r < rows; ++r) {
                int32_t word;
                memcpy(&word, a[r / 3] + r % 3 * pitch, sizeof word);
                const __m512i x = _mm512_set1_epi32(word);
                neutron_add_products(&sums[registers * r], x, w0);
                if (registers > 1) neutron_add_products(&sums[registers * r + 1u], x, w1);
            }
#pragma GCC unroll 6
            for (uint32_t r = 0; r < (rows + 2u) / 3u; ++r) a[r] += NEUTRON_GROUP;
        }
    }
    if (g->raw == NULL && s->fast) {
        if (s->positive) store_tile(g, s, row, out, rows, registers, 1, sums);
        else store_tile(g, s, row, out, rows, registers, 0, sums);
        return;
    }
    __m512i kept[SUMS]; /* a copy, or else the sums would be in memory all along */
#pragma GCC unroll 16
    for (uint32_t i = 0; i < rows * registers; ++i) kept[i] = sums[i];
    store_each(g, s, row, out, rows, kept);
}

#define CASE(n, registers) \
    case n: short_tile(p, s, parts, out, row, n, registers); return;

/* Each a function of its own: the compiler does better on several small ones.
 */
static __attribute__((noinline)) void short_16(const NeutronProduct *p, const NeutronStrip *s,
                                               const int8_t *const *parts, int8_t *out, uint32_t row, uint32_t rows) {
    switch (rows) {
        CASE(1, 1)
        CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1) CASE(7, 1) CASE(8, 1) CASE(16, 1)
    }
}

static __attribute__((noinline)) void short_32(const NeutronProduct *p, const NeutronStrip *s,
                                               const int8_t *const *parts, int8_t *out, uint32_t row, uint32_t rows) {
    switch (rows) {
        CASE(1, 2)
        CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2) CASE(7, 2) CASE(8, 2)
    }
}

#define TILES_AT_ONCE 64u

/* What the tiles of a strip have in common. */
static void prepare_work(const NeutronProduct *p, const NeutronStrip *s, NeutronTileWork *work) {
    const uint32_t registers = s->count / 16u, full = SUMS / registers;
    const uint32_t groups = (uint32_t)neutron_groups(p->part_bytes), all = groups * p->part_count;
    work->pitch = p->g.a_pitch;
    work->weights = s->weights;
    work->block = s->block;
    work->part_count = p->part_count;
    work->groups = groups;
    work->chunk = all < full ? 1u : all / full;
    work->each = all < full ? (full + all - 1u) / all : 1u;
    work->out_pitch = p->g.out_pitch;
    work->low = _mm512_set1_epi32(p->g.low);
    work->high = _mm512_set1_epi32(p->g.high);
    for (uint32_t h = 0; h < registers; ++h) {
        const NeutronRightScale16 *scale = &s->scale[h].short_way;
        work->start[h] = s->start[h];
        work->even[h] = scale->even;
        work->odd[h] = scale->odd;
        work->even_add[h] = scale->even_add;
        work->odd_add[h] = scale->odd_add;
        work->right[h] = scale->right;
    }
}

static void run_tiles(NeutronTileWork *work, const NeutronStrip *s, const NeutronTile *tiles, uint32_t count) {
    if (count == 0) return;
    work->tiles = tiles;
    work->tile_count = count;
    (s->count > 16u ? neutron_tiles_32_vnni : neutron_tiles_16_vnni)(work, s->positive);
}

/* All lines of a strip of 16 or 32 channels. */
static void strip_rows(const NeutronProduct *p, const NeutronStrip *s, int8_t *const *lines, uint32_t line_count) {
    const uint32_t full = SUMS / (s->count / 16u);
    const int long_enough = s->fast && p->g.raw == NULL && neutron_groups(p->part_bytes) * p->part_count >= SHORT;
    const int8_t *const *parts = p->parts;
    NeutronTileWork work;
    NeutronTile tiles[TILES_AT_ONCE];
    uint32_t count = 0;
    if (long_enough && p->g.m >= full) prepare_work(p, s, &work);
    for (uint32_t l = 0; l < line_count; ++l, parts += p->part_count) {
        for (uint32_t i = 0, rows; i < p->g.m; i += rows) {
            rows = p->g.m - i >= full ? full : p->g.m - i < 8u ? p->g.m - i : 8u;
            if (rows < full || !long_enough) {
                (s->count > 16u ? short_32 : short_16)(p, s, parts, lines[l], i, rows);
                continue;
            }
            if (count == TILES_AT_ONCE) {
                run_tiles(&work, s, tiles, count);
                count = 0;
            }
            tiles[count].parts = parts;
            tiles[count].offset = i * p->g.a_pitch;
            tiles[count++].to = lines[l] + i * p->g.out_pitch + s->channel;
        }
    }
    run_tiles(&work, s, tiles, count);
}

void neutron_prepare_strip_vnni(const NeutronGemm *g, const int32_t *start, NeutronStrip *s) {
    const uint32_t lanes = (uint32_t)((UINT64_C(1) << s->count) - 1u);
    s->start[0] = _mm512_maskz_loadu_epi32((__mmask16)lanes, start);
    s->start[1] = _mm512_maskz_loadu_epi32((__mmask16)(lanes >> 16), start + (lanes >> 16 ? 16 : 0));
    s->fast = g->k <= FAST_K;
    s->low = _mm_set1_epi8((char)g->low);
    s->high = _mm_set1_epi8((char)g->high);
    s->positive = 0;
    if (g->raw) return; /* nothing is scaled */
    for (uint32_t h = 0; h < 2; ++h) {
        const __mmask16 mask = (__mmask16)(lanes >> 16u * h);
        const uint32_t first = mask ? s->channel + 16u * h : s->channel;
        /* Lanes without a channel have a multiplier of 0 and shift by 1: they do
     * not stand in the way. */
        s->scale[h] = neutron_scale16(_mm512_maskz_loadu_epi32(mask, g->multiplier + first),
                                      _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), mask, g->shift + first));
        __mmask16 small = _mm512_cmplt_epi32_mask(_mm512_abs_epi32(s->start[h]), _mm512_set1_epi32(1 << 29));
        /* The absolute value of INT32_MIN is itself, and below everything. */
        small &= _mm512_cmpge_epi32_mask(_mm512_abs_epi32(s->start[h]), _mm512_setzero_si512());
        /* The zero point is to be added before the shift. */
        small &= _mm512_cmple_epi32_mask(s->scale[h].right, _mm512_set1_epi32(22));
        s->fast = s->fast && s->scale[h].right_only && small == 0xFFFF;
    }
    if (!s->fast) return;
    s->positive = g->low >= g->zero;
    for (uint32_t h = 0; h < 2; ++h) {
        s->start[h] = _mm512_add_epi32(s->start[h], _mm512_set1_epi32(NEUTRON_RIGHT_OFFSET));
        if (s->positive) neutron_for_positive16(&s->scale[h].short_way);
        neutron_add_before16(&s->scale[h].short_way, g->zero);
    }
}

/* All lines of flipped rows. */
static void run_flipped(const NeutronProduct *p, int8_t *const *lines, uint32_t line_count) {
    const NeutronGemm *g = &p->g;
    NeutronStrip s = {.block = neutron_groups(g->k) * NEUTRON_GROUP * NEUTRON_BLOCK};
    for (s.channel = 0; s.channel < g->n; s.channel += s.count) {
        const uint32_t left = g->n - s.channel;
        s.count = left >= 32u ? 32u : left >= 16u ? 16u : left < NEUTRON_BLOCK ? left : NEUTRON_BLOCK;
        s.weights = g->weights + s.channel / NEUTRON_BLOCK * s.block;
        s.weights += (size_t)p->skipped * NEUTRON_GROUP * (s.count < NEUTRON_BLOCK ? s.count : NEUTRON_BLOCK);
        neutron_prepare_strip_vnni(g, p->start + s.channel, &s);
        if (s.count >= 16u) strip_rows(p, &s, lines, line_count);
        else neutron_narrow_vnni(p, &s, lines, line_count);
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

#define COPY_BYTES 24576u
#define COPY_LINES 16u

/* Rows i .. i + count - 1 of a line, flipped, one after the other. */
static void flip_rows(const NeutronProduct *p, const int8_t *const *parts, uint32_t i, uint32_t count, size_t pitch,
                      int8_t *to) {
    if (p->part_count == 1 && p->g.a_pitch == pitch && p->part_bytes == pitch) {
        copy(to, parts[0] + i * pitch, count * pitch);
        return;
    }
    if (p->part_count == 1 && p->part_bytes <= 64u) {
        const int8_t *from = parts[0] + i * p->g.a_pitch;
        const __mmask64 mask = ~UINT64_C(0) >> (64u - p->part_bytes);
        for (uint32_t r = 0; r < count; ++r, to += pitch, from += p->g.a_pitch) {
            const __m512i x = _mm512_maskz_loadu_epi8(mask, from);
            _mm512_mask_storeu_epi8(to, mask, _mm512_xor_si512(x, _mm512_set1_epi8((char)0x80)));
        }
        return;
    }
    for (uint32_t r = 0; r < count; ++r, to += pitch) {
        for (uint32_t part = 0; part < p->part_count; ++part) {
            copy(to + part * p->part_bytes, parts[part] + (i + r) * p->g.a_pitch, p->part_bytes);
        }
    }
}

static void run(const NeutronProduct *p) {
    const NeutronGemm *g = &p->g;
    int8_t *const *lines = p->lines ? p->lines : &g->out;
    const uint32_t line_count = p->lines ? p->line_count : 1u;
    _Alignas(64) int8_t rows[COPY_BYTES];
    /* Rows a multiple of 1 KiB apart would all compete for the same few places of
   * the cache. */
    const size_t pitch = neutron_groups(g->k) * NEUTRON_GROUP + (g->k % 1024u ? 0u : 64u);
    if (p->flipped) {
        run_flipped(p, lines, line_count);
        return;
    }
    if (p->start == NULL || (pitch > COPY_BYTES && p->part_count == 1)) {
        NeutronProduct line = *p;
        for (uint32_t l = 0; l < line_count; ++l, ++line.parts) {
            line.g.out = lines[l];
            neutron_few_rows_vnni(&line);
        }
        return;
    }
    /* Flipped once, not for every strip of channels: as many rows at a time as
   * stay in the cache. */
    const uint32_t fit = (uint32_t)(COPY_BYTES / pitch), at_once = fit < g->m ? fit : g->m;
    const uint32_t more = fit / at_once < COPY_LINES ? fit / at_once : COPY_LINES;
    NeutronProduct part = *p;
    const int8_t *parts[COPY_LINES];
    int8_t *to[COPY_LINES];
    part.parts = parts;
    part.part_count = 1;
    part.part_bytes = g->k;
    part.g.a_pitch = pitch;
    for (uint32_t l = 0, count; l < line_count; l += count) {
        count = line_count - l < more ? line_count - l : more;
        for (uint32_t i = 0; i < g->m; i += part.g.m) {
            part.g.m = g->m - i < at_once ? g->m - i : at_once;
            if (g->raw) part.g.raw = g->raw + (size_t)i * g->n;
            for (uint32_t n = 0; n < count; ++n) {
                parts[n] = rows + n * part.g.m * pitch;
                if (g->raw == NULL) to[n] = lines[l + n] + i * g->out_pitch;
                flip_rows(p, p->parts + (l + n) * p->part_count, i, part.g.m, pitch, rows + n * part.g.m * pitch);
            }
            run_flipped(&part, to, count);
        }
    }
}

/* What `groups` groups of a block add to its sums if all values are the same.
 */
static __m256i times(const int8_t *weights, size_t groups, uint32_t lanes, __m512i value) {
    const __mmask8 mask = (__mmask8)((1u << lanes) - 1u);
    __m512i sums[4];
    for (uint32_t i = 0; i < 4; ++i) sums[i] = _mm512_setzero_si512();
    size_t i = 0;
    if (lanes == NEUTRON_BLOCK) { /* eight groups, two a register */
        for (; i + 8u <= groups; i += 8u, weights += 8u * NEUTRON_BLOCK * NEUTRON_GROUP) {
#pragma GCC unroll 4
            for (uint32_t r = 0; r < 4; ++r)
                neutron_add_products(&sums[r], value, _mm512_loadu_si512(weights + 64u * r));
        }
    }
    const __m512i all = _mm512_add_epi32(_mm512_add_epi32(sums[0], sums[1]), _mm512_add_epi32(sums[2], sums[3]));
    __m256i sum = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    for (; i < groups; ++i, weights += lanes * NEUTRON_GROUP) {
        neutron_add_products8(&sum, _mm512_castsi512_si256(value), _mm256_maskz_loadu_epi32(mask, weights));
    }
    return sum;
}

/* The bias less 128 times the sum of the weights (padding bytes are 0 and add
 * nothing). */
static void start(const int8_t *weights, uint32_t k, uint32_t n, const int32_t *bias, int32_t *to) {
    const size_t groups = neutron_groups(k);
    for (uint32_t j = 0; j < n; j += NEUTRON_BLOCK, weights += groups * NEUTRON_BLOCK * NEUTRON_GROUP) {
        const uint32_t lanes = n - j < NEUTRON_BLOCK ? n - j : NEUTRON_BLOCK;
        const __mmask8 mask = (__mmask8)((1u << lanes) - 1u);
        const __m256i sum = times(weights, groups, lanes, _mm512_set1_epi8((char)0x80));
        _mm256_mask_storeu_epi32(to + j, mask, _mm256_sub_epi32(_mm256_maskz_loadu_epi32(mask, bias + j), sum));
    }
}

static void skip(const int8_t *weights, uint32_t k, uint32_t n, uint32_t first, uint32_t end, int8_t value,
                 const int32_t *from, int32_t *to) {
    const size_t groups = neutron_groups(k);
    for (uint32_t j = 0; j < n; j += NEUTRON_BLOCK, weights += groups * NEUTRON_BLOCK * NEUTRON_GROUP) {
        const uint32_t lanes = n - j < NEUTRON_BLOCK ? n - j : NEUTRON_BLOCK;
        const __mmask8 mask = (__mmask8)((1u << lanes) - 1u);
        const int8_t *at = weights + (size_t)first * lanes * NEUTRON_GROUP;
        const __m256i sum = times(at, end - first, lanes, _mm512_set1_epi8(value));
        _mm256_mask_storeu_epi32(to + j, mask, _mm256_add_epi32(_mm256_maskz_loadu_epi32(mask, from + j), sum));
    }
}

const NeutronProductCode neutron_product_vnni = {
    .start = start, .skip = skip, .run = run, .copy = copy, .flip = (int8_t)-128};
