/* CONV_2D_PLANAR: CONV_2D of one image whose channels are planes, as an image comes from PyTorch.
 *
 * input    int8 [in_c][in_h][in_w]: planes at `plane` bytes, rows and pixels at the view's pitches, no rolling buffer
 * weights  out_c channels of in_c * kernel_h * kernel_w values in this order, packed (gemm.h)
 * Everything else as in conv_2d.c. For a few channels only: taps are gathered byte by byte.
 */
#include "convolution.h"

#ifdef NEUTRON_VECTOR
#include "vector/conv_rows.h"

#define RING_BYTES 32768u

/* The vectorised way: every plane is an image of one channel. */
static int32_t run_rows(const NeutronMachine *machine, const NeutronConv2DPlanarParams *p) {
    _Alignas(64) int8_t ring[RING_BYTES];
    NeutronConv2DParams plane = {.input = p->input,
                                 .output = p->output,
                                 .window = p->window,
                                 .weights = p->weights,
                                 .channels = p->channels,
                                 .input_zero = p->input_zero,
                                 .output_zero = p->output_zero,
                                 .clamp_min = p->clamp_min,
                                 .clamp_max = p->clamp_max};
    plane.window.in_c = 1;
    return neutron_conv_rows(machine, &plane, p->window.in_c, p->plane, ring, sizeof ring);
}
#endif

#define PATCH_BYTES NEUTRON_CONV_2D_PLANAR_PATCH_BYTES /* several pixels of the usual windows */

static int32_t check(const NeutronMachine *machine, const NeutronConv2DPlanarParams *p) {
    const NeutronWindow *w = &p->window;
    NeutronWindow plane = *w;
    plane.in_c = 1;
    NEUTRON_TRY(neutron_check_window(machine, &plane, &p->input, &p->output, w->in_c));
    NEUTRON_REQUIRE(w->batch == 1 && p->input.ref.rows == 0);
    uint64_t bytes = (uint64_t)(w->in_c - 1u) * p->plane + (uint64_t)(w->in_h - 1u) * p->input.row +
                     (uint64_t)(w->in_w - 1u) * p->input.pixel + 1u;
    NEUTRON_TRY(neutron_check_bytes(machine, p->input.ref, bytes, 1, NEUTRON_READ));
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    NEUTRON_TRY(neutron_check_channels(machine, p->channels, w->out_c));
    return neutron_check_weights(machine, p->weights, w->out_c, (uint64_t)w->kernel_h * w->kernel_w * w->in_c);
}

/* The taps under output pixel (oy, ox), padding as the zero point. */
static void gather(const NeutronConv2DPlanarParams *p, const int8_t *input, uint32_t oy, uint32_t ox, int8_t *patch) {
    const NeutronWindow *w = &p->window;
    int32_t top = (int32_t)(oy * w->stride_h) - w->pad_top, x = (int32_t)(ox * w->stride_w) - w->pad_left;
    uint32_t first, end;
    neutron_taps(x, w->kernel_w, w->dilation_w, w->in_w, &first, &end);
    for (uint32_t c = 0; c < w->in_c; ++c) {
        int32_t y = top;
        for (uint32_t ky = 0; ky < w->kernel_h; ++ky, y += (int32_t)w->dilation_h, patch += w->kernel_w) {
            uint32_t kx = 0;
            if (y >= 0 && y < (int32_t)w->in_h && first < end) {
                const int8_t *row = input + (size_t)c * p->plane + (size_t)y * p->input.row;
                for (; kx < first; ++kx) patch[kx] = (int8_t)p->input_zero;
                for (; kx < end; ++kx) patch[kx] = row[(size_t)(x + (int32_t)(kx * w->dilation_w)) * p->input.pixel];
            }
            for (; kx < w->kernel_w; ++kx) patch[kx] = (int8_t)p->input_zero;
        }
    }
}

static int32_t run(const NeutronMachine *machine, const NeutronConv2DPlanarParams *p) {
#ifdef NEUTRON_VECTOR
    const int32_t done = run_rows(machine, p);
    if (done != NEUTRON_NOT_BY_ROWS) return done;
#endif
    const NeutronWindow *w = &p->window;
    _Alignas(64) int8_t patch[PATCH_BYTES];
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input.ref);
    int8_t *output = (int8_t *)neutron_write(machine, p->output.ref);
    uint32_t k = w->kernel_h * w->kernel_w * w->in_c, at_once = PATCH_BYTES / k;
    NeutronGemm g = neutron_conv_product(machine, p->weights, p->channels, w->out_c, &p->output);
    g.a = patch;
    g.a_pitch = k;
    g.k = k;
    g.zero = p->output_zero;
    g.low = p->clamp_min;
    g.high = p->clamp_max;
    for (uint32_t oy = w->y0; oy < w->y1; ++oy) {
        NEUTRON_TRY(neutron_check_stop(machine));
        int8_t *row = output + neutron_row_offset(&p->output, w->out_h, 0, oy);
        for (uint32_t ox = 0; ox < w->out_w; ox += g.m) {
            g.m = w->out_w - ox < at_once ? w->out_w - ox : at_once;
            g.out = row + (size_t)ox * p->output.pixel;
            for (uint32_t n = 0; n < g.m; ++n) gather(p, input, oy, ox + n, patch + (size_t)n * k);
            neutron_gemm(&g);
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_conv_2d_planar, NeutronConv2DPlanarParams, check, run)
