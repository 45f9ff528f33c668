/* Inner parts for AVX2: products of int16 pairs (exact: no intermediate saturation). */
#include "vector/product.h"
#include "vector/taps.h"
#include "x86.h"

/* Four rows and one block of eight channels at a time. A group of 32 weight bytes is two registers of int16, four
 * channels each; one multiply-add leaves two partial sums a channel, joined at the end. */
static inline __attribute__((always_inline)) void block_rows(const NeutronProduct *p, uint32_t row, uint32_t rows,
                                                             uint32_t channel, uint32_t lanes, const int8_t *weights,
                                                             const NeutronScale8 *scale) {
    uint32_t full = p->part_bytes / NEUTRON_GROUP, tail = p->part_bytes % NEUTRON_GROUP;
    __m256i mask = neutron_lanes8(lanes);
    __m256i low[4], high[4];
    for (uint32_t r = 0; r < rows; ++r) low[r] = high[r] = _mm256_setzero_si256();
    for (uint32_t part = 0; part < p->part_count; ++part) {
        const int8_t *a = p->parts[part] + row * p->g.a_pitch;
        for (uint32_t i = 0; i < full + (tail != 0);
             ++i, a += NEUTRON_GROUP, weights += (size_t)lanes * NEUTRON_GROUP) {
            __m256i w = lanes == 8u ? _mm256_loadu_si256((const __m256i *)(const void *)weights)
                                    : _mm256_maskload_epi32((const int *)(const void *)weights, mask);
            __m256i w_low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(w));
            __m256i w_high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1));
            for (uint32_t r = 0; r < rows; ++r) {
                const int8_t *at = a + r * p->g.a_pitch;
                int32_t word = i < full ? neutron_load4(at) : neutron_load_tail(at, tail);
                __m256i x = _mm256_cvtepi8_epi16(_mm_set1_epi32(word));
                low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(x, w_low));
                high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(x, w_high));
            }
        }
    }
    __m256i bias = _mm256_maskload_epi32((p->start ? p->start : p->g.bias) + channel, mask);
    for (uint32_t r = 0; r < rows; ++r) {
        __m256i sums = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low[r], high[r]), 0xD8);
        neutron_store8(&p->g, row + r, channel, lanes, _mm256_add_epi32(sums, bias), scale);
    }
}

static void run_line(const NeutronProduct *p) {
    const NeutronGemm *g = &p->g;
    size_t block_bytes = neutron_groups(g->k) * NEUTRON_GROUP * NEUTRON_BLOCK;
    const int8_t *weights = g->weights;
    for (uint32_t j = 0; j < g->n; j += NEUTRON_BLOCK, weights += block_bytes) {
        uint32_t lanes = g->n - j < NEUTRON_BLOCK ? g->n - j : NEUTRON_BLOCK;
        NeutronScale8 scale = neutron_channels8(g, j, neutron_lanes8(lanes));
        uint32_t i = 0;
        if (lanes == NEUTRON_BLOCK) {
            for (; i + 4u <= g->m; i += 4u) block_rows(p, i, 4, j, NEUTRON_BLOCK, weights, &scale);
            for (; i < g->m; ++i) block_rows(p, i, 1, j, NEUTRON_BLOCK, weights, &scale);
        } else {
            for (; i + 4u <= g->m; i += 4u) block_rows(p, i, 4, j, lanes, weights, &scale);
            for (; i < g->m; ++i) block_rows(p, i, 1, j, lanes, weights, &scale);
        }
    }
}

static void run(const NeutronProduct *p) {
    NeutronProduct line = *p;
    if (p->lines == NULL) {
        run_line(p);
        return;
    }
    for (uint32_t i = 0; i < p->line_count; ++i, line.parts += p->part_count) {
        line.g.out = p->lines[i];
        run_line(&line);
    }
}

static void start(const int8_t *weights, uint32_t k, uint32_t n, const int32_t *bias, int32_t *to) {
    (void)weights;
    (void)k;
    memcpy(to, bias, n * sizeof *to);
}

static void copy(int8_t *to, const int8_t *from, size_t bytes) { memcpy(to, from, bytes); }

const NeutronProductCode neutron_product_avx2 = {.start = start, .run = run, .copy = copy};

static __m256i load16(const int8_t *p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Eight int32 in the order that interleaving of 16-bit halves leaves: 0-3 and 8-11, then 4-7 and 12-15. */
static __m256i load_halves(const int32_t *p) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)),
                                   _mm_loadu_si128((const __m128i *)(const void *)(p + 8)), 1);
}

/* Sixteen channels of every pixel. Taps go in pairs, so that one multiply-add takes two; the zero point times the
 * weights of the taps is taken from the bias once. */
static void depthwise16(const NeutronDepthwise *d, const Taps *taps, uint32_t c) {
    __m256i w_low[(NEUTRON_MAX_TAPS + 1) / 2], w_high[(NEUTRON_MAX_TAPS + 1) / 2];
    const __m256i zero = _mm256_set1_epi16((int16_t)d->input_zero);
    __m256i bias_low = load_halves(d->bias + c), bias_high = load_halves(d->bias + c + 4);
    uint32_t pairs = (taps->count + 1u) / 2u;
    for (uint32_t t = 0; t < pairs; ++t) {
        __m256i first = load16(taps->weights[2 * t] + c);
        __m256i second = 2 * t + 1 < taps->count ? load16(taps->weights[2 * t + 1] + c) : _mm256_setzero_si256();
        w_low[t] = _mm256_unpacklo_epi16(first, second);
        w_high[t] = _mm256_unpackhi_epi16(first, second);
        bias_low = _mm256_sub_epi32(bias_low, _mm256_madd_epi16(w_low[t], zero));
        bias_high = _mm256_sub_epi32(bias_high, _mm256_madd_epi16(w_high[t], zero));
    }
    NeutronScale8 scale_low = neutron_scale8(load_halves(d->multiplier + c), load_halves(d->shift + c));
    NeutronScale8 scale_high = neutron_scale8(load_halves(d->multiplier + c + 4), load_halves(d->shift + c + 4));
    int right_only = scale_low.right_only && scale_high.right_only;
    for (uint32_t i = 0; i < d->count; ++i) {
        __m256i low = bias_low, high = bias_high;
        size_t at = i * d->in_step + c;
        for (uint32_t t = 0; t < pairs; ++t) {
            /* An odd last tap is paired with itself; its second weight is 0. */
            __m256i first = load16(taps->in[2 * t] + at), second = load16(taps->in[2 * t + 1] + at);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(first, second), w_low[t]));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(first, second), w_high[t]));
        }
        __m128i bytes;
        if (right_only) {
            bytes = neutron_bytes16(neutron_apply_right8(low, &scale_low), neutron_apply_right8(high, &scale_high),
                                    d->output_zero, d->low, d->high);
        } else {
            low = neutron_clamp8(neutron_apply_scale8(low, &scale_low), d->output_zero, d->low, d->high);
            high = neutron_clamp8(neutron_apply_scale8(high, &scale_high), d->output_zero, d->low, d->high);
            bytes = neutron_bytes16(low, high, 0, -128, 127);
        }
        _mm_storeu_si128((__m128i *)(void *)(d->out + i * d->out_step + c), bytes);
    }
}

/* Two taps of eight channels, interleaved, in channel order. */
static __m256i interleave8(const int8_t *first, const int8_t *second) {
    __m128i a = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)first));
    __m128i b = _mm_setzero_si128();
    if (second) b = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)second));
    return _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
}

/* Eight channels of every pixel, for maps of 8 to 15: as depthwise16. */
static void depthwise8(const NeutronDepthwise *d, const Taps *taps, uint32_t c) {
    __m256i weights[(NEUTRON_MAX_TAPS + 1) / 2];
    const __m256i zero = _mm256_set1_epi16((int16_t)d->input_zero);
    __m256i bias = _mm256_loadu_si256((const __m256i *)(const void *)(d->bias + c));
    uint32_t pairs = (taps->count + 1u) / 2u;
    for (uint32_t t = 0; t < pairs; ++t) {
        const int8_t *second = 2 * t + 1 < taps->count ? taps->weights[2 * t + 1] + c : NULL;
        weights[t] = interleave8(taps->weights[2 * t] + c, second);
        bias = _mm256_sub_epi32(bias, _mm256_madd_epi16(weights[t], zero));
    }
    NeutronScale8 scale = neutron_scale8(_mm256_loadu_si256((const __m256i *)(const void *)(d->multiplier + c)),
                                         _mm256_loadu_si256((const __m256i *)(const void *)(d->shift + c)));
    for (uint32_t i = 0; i < d->count; ++i) {
        __m256i sums = bias;
        size_t at = i * d->in_step + c;
        for (uint32_t t = 0; t < pairs; ++t) {
            __m256i x = interleave8(taps->in[2 * t] + at, taps->in[2 * t + 1] + at);
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(x, weights[t]));
        }
        sums = neutron_clamp8(neutron_apply_scale8(sums, &scale), d->output_zero, d->low, d->high);
        uint64_t bytes = neutron_narrow8(sums);
        memcpy(d->out + i * d->out_step + c, &bytes, 8);
    }
}

void neutron_depthwise_avx2(const NeutronDepthwise *d) {
    Taps taps;
    if (!neutron_list_taps(d, 8u, &taps)) {
        neutron_depthwise_portable(d);
        return;
    }
    if (taps.count > 0) taps.in[taps.count] = taps.in[taps.count - 1];
    /* The last channels may overlap those before: they are computed twice, to the same result. */
    if (d->out_c < 16u) {
        depthwise8(d, &taps, 0);
        if (d->out_c > 8u) depthwise8(d, &taps, d->out_c - 8u);
        return;
    }
    for (uint32_t c = 0; c < d->out_c; c += 16u) depthwise16(d, &taps, c + 16u <= d->out_c ? c : d->out_c - 16u);
}

void neutron_add_row_avx2(const void *parameters, const NeutronRow *row) {
    const NeutronAddParams *p = (const NeutronAddParams *)parameters;
    if (row->a_stride != 1 || row->out_stride != 1 || (row->b_stride != 1 && row->b_stride != 0) || row->count < 8u) {
        neutron_add_row_portable(parameters, row);
        return;
    }
    NeutronScale8 a_scale = neutron_scale8(_mm256_set1_epi32(p->a_multiplier), _mm256_set1_epi32(p->a_shift));
    NeutronScale8 b_scale = neutron_scale8(_mm256_set1_epi32(p->b_multiplier), _mm256_set1_epi32(p->b_shift));
    NeutronScale8 scale = neutron_scale8(_mm256_set1_epi32(p->output_multiplier), _mm256_set1_epi32(p->output_shift));
    const __m256i a_zero = _mm256_set1_epi32(p->a_zero), b_zero = _mm256_set1_epi32(p->b_zero);
    const __m128i bits = _mm_cvtsi32_si128((int)p->left_shift);
    uint32_t i = 0;
    for (; i + 8u <= row->count; i += 8u) {
        __m256i a = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(row->a + i)));
        __m256i b = row->b_stride ? _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(row->b + i)))
                                  : _mm256_set1_epi32(*row->b);
        a = neutron_apply_scale8(_mm256_sll_epi32(_mm256_sub_epi32(a, a_zero), bits), &a_scale);
        b = neutron_apply_scale8(_mm256_sll_epi32(_mm256_sub_epi32(b, b_zero), bits), &b_scale);
        __m256i sum = neutron_apply_scale8(_mm256_add_epi32(a, b), &scale);
        uint64_t bytes = neutron_narrow8(neutron_clamp8(sum, p->output_zero, p->clamp_min, p->clamp_max));
        memcpy(row->out + i, &bytes, 8);
    }
    NeutronRow rest = {.a = row->a + i,
                       .b = row->b + (row->b_stride ? i : 0),
                       .out = row->out + i,
                       .a_stride = 1,
                       .b_stride = row->b_stride,
                       .out_stride = 1,
                       .count = row->count - i};
    neutron_add_row_portable(parameters, &rest);
}
