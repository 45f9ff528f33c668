/* CONV_2D_POINTWISE: CONV_2D with a 1x1 window and no padding; the pixels of a row are the rows of a matrix.
 *
 * Layouts and ranges as in conv_2d.c. No patch is needed, so this kernel takes no stack to speak of.
 */
#include "convolution.h"

#ifdef NEUTRON_VECTOR
#include "vector/conv_rows.h"
#endif

#define MOST_PIXELS 16384u /* in one product: a run that is stopped has not long to go */

static int32_t check(const NeutronMachine *machine, const NeutronConv2DPointwiseParams *p) {
    const NeutronWindow *w = &p->window;
    NEUTRON_TRY(neutron_check_window(machine, w, &p->input, &p->output, w->in_c));
    NEUTRON_REQUIRE(w->kernel_h == 1 && w->kernel_w == 1 && w->pad_top == 0 && w->pad_left == 0);
    NEUTRON_REQUIRE((uint64_t)(w->out_h - 1u) * w->stride_h < w->in_h);
    NEUTRON_REQUIRE((uint64_t)(w->out_w - 1u) * w->stride_w < w->in_w);
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    NEUTRON_TRY(neutron_check_channels(machine, p->channels, w->out_c));
    return neutron_check_weights(machine, p->weights, w->out_c, w->in_c);
}

static int32_t run(const NeutronMachine *machine, const NeutronConv2DPointwiseParams *p) {
    const NeutronWindow *w = &p->window;
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input.ref);
    int8_t *output = (int8_t *)neutron_write(machine, p->output.ref);
    NeutronGemm g = neutron_conv_product(machine, p->weights, p->channels, w->out_c, &p->output);
    g.a_pitch = (size_t)w->stride_w * p->input.pixel;
    g.k = w->in_c;
    g.zero = p->output_zero;
    g.low = p->clamp_min;
    g.high = p->clamp_max;
    /* Rows that follow one another without a gap, in both maps, are one long row. */
    bool joined = w->stride_h == 1 && w->stride_w == 1 && p->input.row == w->in_w * p->input.pixel &&
                  p->output.row == w->out_w * p->output.pixel && w->in_w == w->out_w && p->input.ref.rows == 0 &&
                  p->output.ref.rows == 0;
#ifdef NEUTRON_VECTOR
    if (!joined) { /* several rows share what is prepared for a product; nothing needs to be copied */
        NeutronConv2DParams same;
        _Static_assert(sizeof same == sizeof *p, "the two kernels have the same parameters");
        memcpy(&same, p, sizeof same);
        const int32_t done = neutron_conv_rows(machine, &same, 1, 0, NULL, 0);
        if (done != NEUTRON_NOT_BY_ROWS) return done;
    }
#endif
    uint32_t most = joined ? MOST_PIXELS / w->out_w : 1u;
    if (most == 0) most = 1u;
    for (uint32_t b = 0; b < w->batch; ++b) {
        for (uint32_t oy = w->y0, step; oy < w->y1; oy += step) {
            NEUTRON_TRY(neutron_check_stop(machine));
            step = w->y1 - oy < most ? w->y1 - oy : most;
            g.m = step * w->out_w;
            g.a = input + neutron_row_offset(&p->input, w->in_h, b, oy * w->stride_h);
            g.out = output + neutron_row_offset(&p->output, w->out_h, b, oy);
            neutron_gemm(&g);
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_conv_2d_pointwise, NeutronConv2DPointwiseParams, check, run)
