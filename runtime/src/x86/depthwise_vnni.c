/* Depthwise 3x3 convolution for AVX-512 VNNI in 256-bit registers, 32 channels at a time.
 *
 * Four neighbouring pixels of a row are interleaved, so that each 32-bit lane holds four pixels of one channel; one
 * instruction then adds the three taps of a row, the fourth weight being 0. Moving on by two pixels, half of the
 * interleaving is kept. With stride 1 the same four pixels serve two outputs, the second with its weights one place
 * further. As in vnni.c, 128 is added to the input and taken back in what the sums start from.
 */
#include "depthwise_rows.h"

#include <string.h>

#include "avx512.h"
#include "x86.h"

#define CHANNELS 32u
#define INLINE static inline __attribute__((always_inline))

/* How much of the input is passed over again for the next channels: what stays in the cache. */
#define CHUNK_BYTES (192u << 10)

/* 32 channels as four registers of 8, in the order that interleaving leaves: q holds 4q.. and 16+4q... */
typedef struct {
    __m256i q[4];
} Four;

typedef struct {
    __m256i low, high; /* two pixels of 32 channels, byte by byte */
} Two;

typedef struct {
    Four even[3], odd[3]; /* weights of the window's rows for the first and the second output of a step */
    Four start;
    NeutronRightScale8 right[4];
    NeutronScale8 scale[4];
    int right_only, positive; /* as in avx512.h */
    __mmask32 lanes;
    uint32_t channel;
    __m256i zero; /* a pixel outside the input */
} Block;

INLINE Two two(__m256i first, __m256i second) {
    Two t = {_mm256_unpacklo_epi8(first, second), _mm256_unpackhi_epi8(first, second)};
    return t;
}

INLINE Four four(Two first, Two second) {
    Four f = {{_mm256_unpacklo_epi16(first.low, second.low), _mm256_unpackhi_epi16(first.low, second.low),
               _mm256_unpacklo_epi16(first.high, second.high), _mm256_unpackhi_epi16(first.high, second.high)}};
    return f;
}

static __m256i in_order(const int32_t *values, uint32_t q) {
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(values + 4u * q));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                   _mm_loadu_si128((const __m128i *)(const void *)(values + 16u + 4u * q)), 1);
}

static void set_up(Block *block, const NeutronDepthwiseConv2DParams *p, const int8_t *weights, const int32_t *channels,
                   uint32_t c) {
    const uint32_t out_c = p->window.out_c, count = out_c - c < CHANNELS ? out_c - c : CHANNELS;
    const __m256i none = _mm256_setzero_si256();
    int32_t bias[CHANNELS] = {0}, multiplier[CHANNELS] = {0}, shift[CHANNELS];
    memset(shift, 0xFF, sizeof shift); /* absent channels do not stand in the way of the short scaling */
    memcpy(bias, channels + c, count * sizeof *bias);
    memcpy(multiplier, channels + out_c + c, count * sizeof *multiplier);
    memcpy(shift, channels + 2u * out_c + c, count * sizeof *shift);
    block->channel = c;
    block->lanes = (__mmask32)((UINT64_C(1) << count) - 1u);
    block->zero = _mm256_set1_epi8((char)(p->input_zero ^ 0x80));
    Four sums = {{none, none, none, none}};
    for (uint32_t ky = 0; ky < 3; ++ky) {
        __m256i w[3];
        for (uint32_t kx = 0; kx < 3; ++kx) {
            w[kx] = _mm256_maskz_loadu_epi8(block->lanes, weights + (size_t)(3u * ky + kx) * out_c + c);
        }
        block->even[ky] = four(two(w[0], w[1]), two(w[2], none));
        block->odd[ky] = four(two(none, w[0]), two(w[1], w[2]));
        for (uint32_t q = 0; q < 4; ++q) {
            sums.q[q] = _mm256_dpbusd_epi32(sums.q[q], _mm256_set1_epi8(1), block->even[ky].q[q]);
        }
    }
    const __m256i offset = _mm256_set1_epi32(128 + p->input_zero), limit = _mm256_set1_epi32(1 << 29);
    block->right_only = 1;
    for (uint32_t q = 0; q < 4; ++q) {
        __m256i start = _mm256_sub_epi32(in_order(bias, q), _mm256_mullo_epi32(sums.q[q], offset));
        __m256i m = in_order(multiplier, q), s = in_order(shift, q);
        block->start.q[q] = start;
        block->scale[q] = neutron_scale8(m, s);
        block->right[q] = neutron_right_scale8(m, s);
        __mmask8 small = (__mmask8)(_mm256_cmplt_epi32_mask(start, limit) &
                                    _mm256_cmpgt_epi32_mask(start, _mm256_sub_epi32(_mm256_setzero_si256(), limit)));
        block->right_only &= neutron_all_right8(m, s) && small == 0xFF;
    }
    block->positive = block->right_only && p->clamp_min >= p->output_zero;
    for (uint32_t q = 0; q < 4 && block->right_only; ++q) {
        block->start.q[q] = _mm256_add_epi32(block->start.q[q], _mm256_set1_epi32(NEUTRON_RIGHT_OFFSET));
        if (block->positive) neutron_for_positive8(&block->right[q]);
    }
}

/* The bytes of one or two outputs. Both are scaled before one is stored, with constants that are loaded once. */
INLINE void store(const NeutronDepthwiseConv2DParams *p, const Block *block, Four *sums, uint32_t outputs, int full,
                  int positive, int8_t *const *out) {
    const __m256i low = _mm256_set1_epi8((char)p->clamp_min), high = _mm256_set1_epi8((char)p->clamp_max);
    __m256i bytes[2];
    if (positive || block->right_only) {
        const __m256i zero = _mm256_set1_epi16((int16_t)p->output_zero);
#pragma GCC unroll 4
        for (uint32_t q = 0; q < 4; ++q) {
            const NeutronRightScale8 right = block->right[q];
#pragma GCC unroll 2
            for (uint32_t i = 0; i < outputs; ++i) sums[i].q[q] = neutron_scale_right8(sums[i].q[q], &right, positive);
        }
#pragma GCC unroll 2
        for (uint32_t i = 0; i < outputs; ++i) {
            const __m256i *x = sums[i].q;
            bytes[i] = _mm256_packs_epi16(_mm256_adds_epi16(_mm256_packs_epi32(x[0], x[1]), zero),
                                          _mm256_adds_epi16(_mm256_packs_epi32(x[2], x[3]), zero));
        }
    } else {
        const __m256i zero = _mm256_set1_epi32(p->output_zero);
        for (uint32_t i = 0; i < outputs; ++i) {
            __m256i x[4];
            for (uint32_t q = 0; q < 4; ++q) {
                x[q] = _mm256_add_epi32(neutron_apply_scale8(sums[i].q[q], &block->scale[q]), zero);
            }
            bytes[i] = _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3]));
        }
    }
#pragma GCC unroll 2
    for (uint32_t i = 0; i < outputs; ++i) {
        bytes[i] = _mm256_min_epi8(_mm256_max_epi8(bytes[i], low), high);
        if (out[i] == NULL) continue;
        if (full) {
            _mm256_storeu_si256((__m256i *)(void *)(out[i] + block->channel), bytes[i]);
        } else {
            _mm256_mask_storeu_epi8(out[i] + block->channel, block->lanes, bytes[i]);
        }
    }
}

/* The three input rows of an output row; null for one outside. */
typedef struct {
    const int8_t *at[3];
    size_t pixel;
    int32_t width;
} Rows;

INLINE __m256i load(const Block *block, const int8_t *at, int full) {
    __m256i x =
        full ? _mm256_loadu_si256((const __m256i *)(const void *)at) : _mm256_maskz_loadu_epi8(block->lanes, at);
    return _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80));
}

/* Pixels x and x + 1 of row ky, 128 added. */
INLINE Two load_two(const Rows *rows, const Block *block, uint32_t ky, int32_t x, int inside, int full) {
    __m256i first = block->zero, second = block->zero;
    if (inside) {
        const int8_t *at = rows->at[ky] + (size_t)x * rows->pixel;
        first = load(block, at, full);
        second = load(block, at + rows->pixel, full);
    } else if (rows->at[ky] != NULL) {
        const int8_t *row = rows->at[ky];
        if (x >= 0 && x < rows->width) first = load(block, row + (size_t)x * rows->pixel, full);
        if (x + 1 >= 0 && x + 1 < rows->width) second = load(block, row + (size_t)(x + 1) * rows->pixel, full);
    }
    return two(first, second);
}

/* One step: two new columns, then the sums of one output (stride 2) or two. */
INLINE void step(const Rows *rows, const Block *block, int32_t x, int inside, uint32_t outputs, int full, Two kept[3],
                 Four *sums) {
    sums[0] = sums[1] = block->start;
#pragma GCC unroll 3
    for (uint32_t ky = 0; ky < 3; ++ky) {
        Two next = load_two(rows, block, ky, x + 2, inside, full);
        Four pixels = four(kept[ky], next);
        kept[ky] = next;
#pragma GCC unroll 4
        for (uint32_t q = 0; q < 4; ++q) {
            sums[0].q[q] = _mm256_dpbusd_epi32(sums[0].q[q], pixels.q[q], block->even[ky].q[q]);
            if (outputs > 1) sums[1].q[q] = _mm256_dpbusd_epi32(sums[1].q[q], pixels.q[q], block->odd[ky].q[q]);
        }
    }
}

INLINE void output_row(const NeutronDepthwiseConv2DParams *p, const Block *block, const Rows *rows, int8_t *out,
                       uint32_t outputs, int full, int positive) {
    const NeutronWindow *w = &p->window;
    const size_t pixel = p->output.pixel;
    int32_t x = -w->pad_left;
    const int whole = rows->at[0] && rows->at[1] && rows->at[2];
    Two kept[3];
    Four sums[2];
    for (uint32_t ky = 0; ky < 3; ++ky) kept[ky] = load_two(rows, block, ky, x, 0, full);
    for (uint32_t ox = 0; ox < w->out_w; ox += outputs, x += 2, out += outputs * pixel) {
        int8_t *const to[2] = {out, ox + 1u < w->out_w ? out + pixel : NULL};
        if (whole && x + 2 >= 0 && x + 3 < rows->width) {
            step(rows, block, x, 1, outputs, full, kept, sums);
        } else {
            step(rows, block, x, 0, outputs, full, kept, sums);
        }
        store(p, block, sums, outputs, full, positive, to);
    }
}

void neutron_depthwise_rows_vnni(const NeutronDepthwiseConv2DParams *p, const int8_t *input, const int8_t *weights,
                                 const int32_t *channels, int8_t *output) {
    const NeutronWindow *w = &p->window;
    size_t row_bytes = (size_t)w->stride_h * w->in_w * w->in_c;
    uint32_t at_once = CHUNK_BYTES / row_bytes > 8u ? (uint32_t)(CHUNK_BYTES / row_bytes) : 8u;
    for (uint32_t b = 0; b < w->batch; ++b) {
        for (uint32_t begin = w->y0; begin < w->y1; begin += at_once) {
            uint32_t end = w->y1 - begin < at_once ? w->y1 : begin + at_once;
            for (uint32_t c = 0; c < w->out_c; c += CHANNELS) {
                Block block;
                set_up(&block, p, weights, channels, c);
                for (uint32_t oy = begin; oy < end; ++oy) {
                    Rows rows = {.pixel = p->input.pixel, .width = (int32_t)w->in_w};
                    for (uint32_t ky = 0; ky < 3; ++ky) {
                        int32_t y = (int32_t)(oy * w->stride_h + ky) - w->pad_top;
                        rows.at[ky] = y >= 0 && y < (int32_t)w->in_h
                                          ? input + neutron_row_offset(&p->input, w->in_h, b, (uint32_t)y) + c
                                          : NULL;
                    }
                    int8_t *out = output + neutron_row_offset(&p->output, w->out_h, b, oy);
                    const int full = block.lanes == UINT32_MAX;
                    if (w->stride_w == 1) {
                        if (full && block.positive) output_row(p, &block, &rows, out, 2, 1, 1);
                        else if (full) output_row(p, &block, &rows, out, 2, 1, 0);
                        else if (block.positive) output_row(p, &block, &rows, out, 2, 0, 1);
                        else output_row(p, &block, &rows, out, 2, 0, 0);
                    } else {
                        if (full && block.positive) output_row(p, &block, &rows, out, 1, 1, 1);
                        else if (full) output_row(p, &block, &rows, out, 1, 1, 0);
                        else if (block.positive) output_row(p, &block, &rows, out, 1, 0, 1);
                        else output_row(p, &block, &rows, out, 1, 0, 0);
                    }
                }
            }
        }
    }
}
