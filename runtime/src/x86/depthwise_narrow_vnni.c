/* Depthwise 3x3 convolution of 8 or 16 channels for AVX-512 VNNI.
 *
 * Pixels of so few channels lie close together: one load of 64 bytes has all a row of the window needs, and two
 * shuffles put four neighbouring pixels of a channel into each 32-bit lane. With 8 channels a register holds two
 * windows, two pixels apart. As in depthwise_vnni.c, one instruction then adds the three taps of a row, and with
 * stride 1 the same lanes serve the next output too, with the weights one place further.
 *
 * Input rows are copied with their padding, 128 added, into a ring of three.
 */
#include <string.h>

#include "avx512.h"
#include "depthwise_rows.h"

#define INLINE static inline __attribute__((always_inline))
#define RING_BYTES 32768u
#define BEYOND 128u /* the last load of a row may reach so far behind it */

typedef struct {
    __m512i even[3], odd[3]; /* weights of the window's rows for the first and the second output */
    __m512i start;
    NeutronRightScale16 scale;
    int positive;          /* as in avx512.h */
    __m512i pixels, order; /* how a load is put in order, and the results of four registers */
} Constants;

/* The position of each 4 bytes of the result among those of four packed registers: lane l of register r is at 4l + r.
 */
static __m512i result_order(uint32_t channels, uint32_t stride) {
    int32_t order[16];
    for (uint32_t i = 0; i < 16; ++i) {
        uint32_t pixel = i * 4u / channels, quad = i * 4u % channels / 4u, lane = quad, reg = pixel;
        if (channels == 8u && stride == 1u) { /* registers of pixels 0 and 2, 1 and 3, 4 and 6, 5 and 7 */
            lane += pixel % 4u / 2u * 2u;
            reg = pixel / 4u * 2u + pixel % 2u;
        } else if (channels == 8u) {
            lane += pixel % 2u * 2u;
            reg = pixel / 2u;
        }
        order[i] = (int32_t)(4u * lane + reg);
    }
    return _mm512_loadu_si512(order);
}

/* Which 4 bytes of a load each 4 bytes are: pixels of the window side by side for every four channels. */
static __m512i pixel_order(uint32_t channels) {
    int32_t order[16];
    for (uint32_t i = 0; i < 16; ++i) {
        uint32_t lane = i / 4u, quads = channels / 4u;
        order[i] = (int32_t)((i % 4u + lane / quads * 2u) * quads + lane % quads);
    }
    return _mm512_loadu_si512(order);
}

/* False if a channel cannot take the short way of scaling. */
static int set_up(Constants *k, const NeutronDepthwiseConv2DParams *p, const int8_t *weights, const int32_t *channels) {
    const uint32_t out_c = p->window.out_c;
    int32_t start[16], multiplier[16], shift[16];
    int8_t even[3][64], odd[3][64];
    memset(even, 0, sizeof even);
    memset(odd, 0, sizeof odd);
    for (uint32_t lane = 0; lane < 16; ++lane) {
        const uint32_t c = lane % out_c;
        int32_t sum = 0;
        for (uint32_t ky = 0; ky < 3; ++ky) {
            for (uint32_t kx = 0; kx < 3; ++kx) {
                int8_t w = weights[(3u * ky + kx) * out_c + c];
                even[ky][4u * lane + kx] = odd[ky][4u * lane + kx + 1u] = w;
                sum += w;
            }
        }
        const int32_t bias = channels[c];
        if (bias <= -(1 << 28) || bias >= (1 << 28)) return 0;
        start[lane] = bias - sum * (128 + p->input_zero);
        multiplier[lane] = channels[out_c + c];
        shift[lane] = channels[2u * out_c + c];
    }
    for (uint32_t ky = 0; ky < 3; ++ky) {
        k->even[ky] = _mm512_loadu_si512(even[ky]);
        k->odd[ky] = _mm512_loadu_si512(odd[ky]);
    }
    const NeutronScale16 scale = neutron_scale16(_mm512_loadu_si512(multiplier), _mm512_loadu_si512(shift));
    k->scale = scale.short_way;
    k->positive = p->clamp_min >= p->output_zero;
    if (k->positive) neutron_for_positive16(&k->scale);
    k->start = _mm512_add_epi32(_mm512_loadu_si512(start), _mm512_set1_epi32(NEUTRON_RIGHT_OFFSET));
    k->pixels = pixel_order(out_c);
    k->order = result_order(out_c, p->window.stride_w);
    return scale.right_only;
}

/* Row y into the ring, whose ends are padding already. */
static void fill(const NeutronDepthwiseConv2DParams *p, const int8_t *from, int8_t *to) {
    const NeutronWindow *w = &p->window;
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    if (p->input.pixel == w->in_c) {
        const size_t bytes = (size_t)w->in_w * w->in_c;
        size_t i = 0;
        for (; i + 64u <= bytes; i += 64u) {
            _mm512_storeu_si512(to + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), flip));
        }
        const __mmask64 rest = (UINT64_C(1) << (bytes - i)) - 1u;
        _mm512_mask_storeu_epi8(to + i, rest, _mm512_xor_si512(_mm512_maskz_loadu_epi8(rest, from + i), flip));
        return;
    }
    const __mmask64 pixel = (UINT64_C(1) << w->in_c) - 1u;
    for (uint32_t x = 0; x < w->in_w; ++x, to += w->in_c) {
        const __m512i bytes = _mm512_maskz_loadu_epi8(pixel, from + (size_t)x * p->input.pixel);
        _mm512_mask_storeu_epi8(to, pixel, _mm512_xor_si512(bytes, flip));
    }
}

/* One load of each row: one register of sums (stride 2) or two. */
INLINE void step(const int8_t *const rows[3], size_t at, const Constants *k, uint32_t stride, __m512i *sums) {
    const __m512i turn = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    sums[0] = k->start;
    if (stride == 1u) sums[1] = k->start;
#pragma GCC unroll 3
    for (uint32_t ky = 0; ky < 3; ++ky) {
        __m512i x = _mm512_permutexvar_epi32(k->pixels, _mm512_loadu_si512(rows[ky] + at));
        x = _mm512_shuffle_epi8(x, turn);
        sums[0] = _mm512_dpbusd_epi32(sums[0], x, k->even[ky]);
        if (stride == 1u) sums[1] = _mm512_dpbusd_epi32(sums[1], x, k->odd[ky]);
    }
}

/* A row of `bytes` bytes, 64 at a time. */
INLINE void output_row(const NeutronDepthwiseConv2DParams *p, const Constants *constants, const int8_t *const rows[3],
                       uint32_t channels, uint32_t stride, int positive, int8_t *out, size_t bytes) {
    const Constants k = *constants; /* a copy, which no store can change */
    const __m512i zero = _mm512_set1_epi16((int16_t)p->output_zero);
    const __m512i low = _mm512_set1_epi8((char)p->clamp_min), high = _mm512_set1_epi8((char)p->clamp_max);
    const size_t move = (channels == 16u ? 2u : 4u) * channels; /* from one load to the next */
    size_t at = 0;
    for (size_t i = 0; i < bytes; i += 64u) {
        __m512i x[4];
        const uint32_t each = stride == 1u ? 2u : 1u;
#pragma GCC unroll 4
        for (uint32_t r = 0; r < 4; r += each, at += move) step(rows, at, &k, stride, x + r);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < 4; ++r) x[r] = neutron_scale_right16(x[r], &k.scale, positive);
        __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(x[0], x[1]), zero);
        __m512i second = _mm512_adds_epi16(_mm512_packs_epi32(x[2], x[3]), zero);
        __m512i result = _mm512_permutexvar_epi32(k.order, _mm512_packs_epi16(first, second));
        result = _mm512_min_epi8(_mm512_max_epi8(result, low), high);
        if (bytes - i >= 64u) {
            _mm512_storeu_si512(out + i, result);
        } else {
            _mm512_mask_storeu_epi8(out + i, (UINT64_C(1) << (bytes - i)) - 1u, result);
        }
    }
}

int neutron_depthwise_narrow_vnni(const NeutronDepthwiseConv2DParams *p, const int8_t *input, const int8_t *weights,
                                  const int32_t *channels, int8_t *output) {
    const NeutronWindow *w = &p->window;
    const uint32_t c = w->out_c;
    if ((c != 8u && c != 16u) || p->output.pixel != c || w->pad_left < 0 || w->pad_left > 2) return 0;
    const size_t bytes = (size_t)w->out_w * c;
    /* What the outputs read, those behind the last of the row included; no less than what is copied. */
    uint64_t columns = ((uint64_t)w->out_w + 64u / c) * w->stride_w + 3u;
    if (columns < (uint64_t)w->in_w + (uint32_t)w->pad_left) columns = (uint64_t)w->in_w + (uint32_t)w->pad_left;
    if (columns > RING_BYTES / 4u / c) return 0;
    const size_t row_bytes = (size_t)columns * c;
    if (row_bytes * 4u + BEYOND > RING_BYTES) return 0;
    Constants k;
    if (!set_up(&k, p, weights, channels)) return 0;
    _Alignas(64) int8_t ring[RING_BYTES]; /* three rows, then one of nothing but padding */
    memset(ring, p->input_zero ^ -128, row_bytes * 4u + BEYOND);
    for (uint32_t b = 0; b < w->batch; ++b) {
        int32_t next = INT32_MIN; /* the first row that was never in the ring */
        for (uint32_t oy = w->y0; oy < w->y1; ++oy) {
            const int32_t top = (int32_t)(oy * w->stride_h) - w->pad_top;
            const int8_t *rows[3];
            if (next < top) next = top;
            for (uint32_t ky = 0; ky < 3; ++ky) {
                const int32_t y = top + (int32_t)ky;
                const int inside = y >= 0 && y < (int32_t)w->in_h;
                int8_t *slot = ring + (inside ? (uint32_t)y % 3u : 3u) * row_bytes;
                rows[ky] = slot;
                if (y < next) continue;
                if (inside) {
                    fill(p, input + neutron_row_offset(&p->input, w->in_h, b, (uint32_t)y),
                         slot + (size_t)w->pad_left * c);
                }
                next = y + 1;
            }
            int8_t *out = output + neutron_row_offset(&p->output, w->out_h, b, oy);
            if (c == 8u && w->stride_w == 1) {
                if (k.positive) output_row(p, &k, rows, 8, 1, 1, out, bytes);
                else output_row(p, &k, rows, 8, 1, 0, out, bytes);
            } else if (c == 8u) {
                if (k.positive) output_row(p, &k, rows, 8, 2, 1, out, bytes);
                else output_row(p, &k, rows, 8, 2, 0, out, bytes);
            } else if (w->stride_w == 1) {
                if (k.positive) output_row(p, &k, rows, 16, 1, 1, out, bytes);
                else output_row(p, &k, rows, 16, 1, 0, out, bytes);
            } else {
                if (k.positive) output_row(p, &k, rows, 16, 2, 1, out, bytes);
                else output_row(p, &k, rows, 16, 2, 0, out, bytes);
            }
        }
    }
    return 1;
}
