/* CONV_2D: int8 convolution of one group, NHWC.
 *
 * input    int8 [batch][in_h][in_w][in_c], rows and pixels at the view's pitches, rolling buffers allowed
 * weights  out_c channels of kernel_h * kernel_w * in_c values, packed (gemm.h)
 * channels int32 bias[out_c] (less input_zero times the channel's weight sum), multiplier[out_c], shift[out_c]
 * output   int8 [batch][out_h][out_w][out_c], rows y0 .. y1 - 1
 *
 * The taps under an output pixel are gathered into a patch on the stack, padding as the input's zero point; then
 * it is a matrix product. A window too large for the patch is gathered piece by piece for each block of channels.
 */
#include "arithmetic.h"
#include "convolution.h"

#ifdef NEUTRON_VECTOR
#include "vector/conv_rows.h"
#endif

/* How much stack the patch takes. More lets a host multiply many pixels at a time; a microcontroller needs one. */
#ifndef NEUTRON_PATCH_BYTES
#if defined(__x86_64__) || defined(__aarch64__)
#define NEUTRON_PATCH_BYTES 49152u
#else
#define NEUTRON_PATCH_BYTES 2048u
#endif
#endif

static int32_t check(const NeutronMachine *machine, const NeutronConv2DParams *p) {
    const NeutronWindow *w = &p->window;
    NEUTRON_TRY(neutron_check_window(machine, w, &p->input, &p->output, w->in_c));
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    NEUTRON_TRY(neutron_check_channels(machine, p->channels, w->out_c));
    return neutron_check_weights(machine, p->weights, w->out_c, (uint64_t)w->kernel_h * w->kernel_w * w->in_c);
}

typedef struct {
    const NeutronConv2DParams *p;
    const int8_t *input;
    uint32_t batch, k;
    int32_t zero;
} Source;

static inline void put(int8_t **to, const int8_t *from, int32_t zero, size_t bytes) {
    if (bytes == 0) return; /* inside the input there is nothing to pad: spare the calls */
    if (from) {
        memcpy(*to, from, bytes);
    } else {
        memset(*to, zero, bytes);
    }
    *to += bytes;
}

/* The whole patch of an output pixel; runs of taps that lie side by side in memory are copied in one go. */
static void gather(const Source *s, uint32_t oy, uint32_t ox, int8_t *patch) {
    const NeutronWindow *w = &s->p->window;
    const NeutronView *view = &s->p->input;
    int32_t y = (int32_t)(oy * w->stride_h) - w->pad_top, x = (int32_t)(ox * w->stride_w) - w->pad_left;
    bool joined = w->dilation_w == 1 && view->pixel == w->in_c;
    uint32_t first, end;
    neutron_taps(x, w->kernel_w, w->dilation_w, w->in_w, &first, &end);
    for (uint32_t ky = 0; ky < w->kernel_h; ++ky, y += (int32_t)w->dilation_h) {
        if (y < 0 || y >= (int32_t)w->in_h || first >= end) {
            put(&patch, NULL, s->zero, (size_t)w->kernel_w * w->in_c);
            continue;
        }
        const int8_t *row = s->input + neutron_row_offset(view, w->in_h, s->batch, (uint32_t)y);
        put(&patch, NULL, s->zero, (size_t)first * w->in_c);
        const int8_t *at = row + (size_t)(x + (int32_t)(first * w->dilation_w)) * view->pixel;
        if (joined) {
            put(&patch, at, 0, (size_t)(end - first) * w->in_c);
        } else {
            for (uint32_t i = 0; i < end - first; ++i) {
                put(&patch, at + (size_t)i * w->dilation_w * view->pixel, 0, w->in_c);
            }
        }
        put(&patch, NULL, s->zero, (size_t)(w->kernel_w - end) * w->in_c);
    }
}

/* Values k0 .. k0 + count - 1 of the patch of an output pixel. */
static void gather_part(const Source *s, uint32_t oy, uint32_t ox, uint32_t k0, uint32_t count, int8_t *patch) {
    const NeutronWindow *w = &s->p->window;
    const NeutronView *view = &s->p->input;
    uint32_t tap = k0 / w->in_c, c = k0 % w->in_c;
    for (uint32_t left = count; left > 0; ++tap, c = 0) {
        uint32_t run = w->in_c - c < left ? w->in_c - c : left;
        int32_t y = (int32_t)(oy * w->stride_h + tap / w->kernel_w * w->dilation_h) - w->pad_top;
        int32_t x = (int32_t)(ox * w->stride_w + tap % w->kernel_w * w->dilation_w) - w->pad_left;
        bool inside = y >= 0 && y < (int32_t)w->in_h && x >= 0 && x < (int32_t)w->in_w;
        put(&patch,
            inside ? s->input + neutron_row_offset(view, w->in_h, s->batch, (uint32_t)y) + (size_t)x * view->pixel + c
                   : NULL,
            s->zero, run);
        left -= run;
    }
}

/* One pixel whose window is larger than the patch. */
static void long_pixel(const Source *s, NeutronGemm *g, uint32_t oy, uint32_t ox, int8_t *patch) {
    size_t block_bytes = neutron_groups(s->k) * NEUTRON_GROUP * NEUTRON_BLOCK;
    for (uint32_t j = 0; j < g->n; j += NEUTRON_BLOCK) {
        uint32_t channels = g->n - j < NEUTRON_BLOCK ? g->n - j : NEUTRON_BLOCK;
        const int8_t *weights = g->weights + j / NEUTRON_BLOCK * block_bytes;
        uint32_t sums[NEUTRON_BLOCK] = {0};
        int32_t result[NEUTRON_BLOCK];
        memcpy(sums, g->bias + j, channels * sizeof *sums);
        for (uint32_t k0 = 0; k0 < s->k; k0 += NEUTRON_PATCH_BYTES) {
            uint32_t count = s->k - k0 < NEUTRON_PATCH_BYTES ? s->k - k0 : NEUTRON_PATCH_BYTES;
            gather_part(s, oy, ox, k0, count, patch);
            uint32_t groups = (uint32_t)neutron_groups(count);
            memset(patch + count, 0, groups * NEUTRON_GROUP - count);
            neutron_dot(patch, weights + (size_t)k0 * channels, groups, channels, sums);
        }
        memcpy(result, sums, sizeof result);
        neutron_requantize(result, g->multiplier + j, g->shift + j, channels, g->zero, g->low, g->high, g->out + j);
    }
}

static int32_t run(const NeutronMachine *machine, const NeutronConv2DParams *p) {
    const NeutronWindow *w = &p->window;
    _Alignas(64) int8_t patch[NEUTRON_PATCH_BYTES];
#ifdef NEUTRON_VECTOR
    const int32_t done = neutron_conv_rows(machine, p, 1, 0, patch, sizeof patch);
    if (done != NEUTRON_NOT_BY_ROWS) return done;
#endif
    Source s = {.p = p,
                .input = (const int8_t *)neutron_read(machine, p->input.ref),
                .k = w->kernel_h * w->kernel_w * w->in_c,
                .zero = p->input_zero};
    int8_t *output = (int8_t *)neutron_write(machine, p->output.ref);
    NeutronGemm g = neutron_conv_product(machine, p->weights, p->channels, w->out_c, &p->output);
    g.a = patch;
    g.a_pitch = s.k;
    g.k = s.k;
    g.zero = p->output_zero;
    g.low = p->clamp_min;
    g.high = p->clamp_max;
    uint32_t at_once = NEUTRON_PATCH_BYTES / s.k;
    /* Output rows that follow one another without a gap are one long row: more pixels for each product. */
    bool joined = p->output.row == w->out_w * p->output.pixel && p->output.ref.rows == 0;
    uint32_t step = joined ? w->y1 - w->y0 : 1u;
    for (s.batch = 0; s.batch < w->batch; ++s.batch) {
        for (uint32_t oy = w->y0; oy < w->y1; oy += step) {
            int8_t *row = output + neutron_row_offset(&p->output, w->out_h, s.batch, oy);
            uint32_t pixels = step * w->out_w;
            for (uint32_t i = 0; i < pixels; i += g.m) {
                NEUTRON_TRY(neutron_check_stop(machine));
                g.out = row + (size_t)i * p->output.pixel;
                g.m = 1;
                if (at_once == 0) {
                    long_pixel(&s, &g, oy + i / w->out_w, i % w->out_w, patch);
                    continue;
                }
                g.m = pixels - i < at_once ? pixels - i : at_once;
                uint32_t y = oy + i / w->out_w, x = i % w->out_w;
                for (uint32_t n = 0; n < g.m; ++n) {
                    gather(&s, y, x, patch + (size_t)n * s.k);
                    if (++x == w->out_w) {
                        x = 0;
                        ++y;
                    }
                }
                neutron_gemm(&g);
            }
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_conv_2d, NeutronConv2DParams, check, run)
