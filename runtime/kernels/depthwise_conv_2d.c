/* DEPTHWISE_CONV_2D: int8, each input channel makes out_c / in_c output channels.
 *
 * weights  int8 [kernel_h][kernel_w][out_c]
 * channels int32 bias[out_c] (as in the model: the zero point is subtracted here), multiplier[out_c], shift[out_c]
 * Feature maps as in conv_2d.c. Taps outside the input are skipped. kernel_h is at most MOST_ROWS.
 */
#include "convolution.h"
#include "depthwise.h"

#if defined(NEUTRON_VECTOR) && defined(__x86_64__)
#define BY_ROWS 1
#include "x86/depthwise_rows.h"
#endif

static int32_t check(const NeutronMachine *machine, const NeutronDepthwiseConv2DParams *p) {
    const NeutronWindow *w = &p->window;
    NEUTRON_TRY(neutron_check_window(machine, w, &p->input, &p->output, 1));
    NEUTRON_REQUIRE(w->out_c % w->in_c == 0);
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    NEUTRON_TRY(neutron_check_channels(machine, p->channels, w->out_c));
    return neutron_check_bytes(machine, p->weights, (uint64_t)w->kernel_h * w->kernel_w * w->out_c, 1, NEUTRON_READ);
}

/* A map one pixel wide, as a 1-D network has it, is a row: its pixels then share what is set up for a row. */
static bool turn_column(const NeutronDepthwiseConv2DParams *p, NeutronDepthwiseConv2DParams *row) {
    const NeutronWindow *w = &p->window;
    const uint64_t in_bytes = (uint64_t)w->in_h * p->input.row, out_bytes = (uint64_t)w->out_h * p->output.row;
    if (w->in_w != 1 || w->out_w != 1 || w->kernel_w != 1 || w->pad_left != 0 || w->in_h == 1 || w->dilation_w != 1 ||
        p->input.ref.rows != 0 || p->output.ref.rows != 0 || in_bytes > INT32_MAX || out_bytes > INT32_MAX) {
        return false;
    }
    *row = *p;
    row->input.pixel = p->input.row;
    row->input.row = (uint32_t)in_bytes; /* from one image to the next */
    row->output.pixel = p->output.row;
    row->output.row = (uint32_t)out_bytes;
    row->output.ref.offset += w->y0 * p->output.row;
    NeutronWindow *turned = &row->window;
    turned->in_h = turned->out_h = turned->kernel_h = turned->stride_h = turned->dilation_h = turned->y1 = 1;
    turned->y0 = 0;
    turned->pad_top = 0;
    turned->in_w = w->in_h;
    turned->out_w = w->y1 - w->y0;
    turned->kernel_w = w->kernel_h;
    turned->stride_w = w->stride_h;
    turned->dilation_w = w->dilation_h;
    turned->pad_left = w->pad_top - (int32_t)(w->y0 * w->stride_h);
    return true;
}

static int32_t run(const NeutronMachine *machine, const NeutronDepthwiseConv2DParams *p) {
#ifdef BY_ROWS
    if (neutron_depthwise_rows(machine, p)) return NEUTRON_STATUS_OK;
#endif
    NeutronDepthwiseConv2DParams turned;
    if (turn_column(p, &turned)) p = &turned;
    const NeutronWindow *w = &p->window;
    const int32_t *channels = (const int32_t *)(const void *)neutron_read(machine, p->channels);
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input.ref);
    const int8_t *weights = (const int8_t *)neutron_read(machine, p->weights);
    int8_t *output = (int8_t *)neutron_write(machine, p->output.ref);
    const int8_t *rows[NEUTRON_DEPTHWISE_CONV_2D_MOST_ROWS];
    NeutronDepthwise d = {.rows = rows,
                          .row_count = w->kernel_h,
                          .tap_pitch = (size_t)w->dilation_w * p->input.pixel,
                          .weights_row = (size_t)w->kernel_w * w->out_c,
                          .out_c = w->out_c,
                          .multiplier_c = w->out_c / w->in_c,
                          .bias = channels,
                          .multiplier = channels + w->out_c,
                          .shift = channels + 2u * w->out_c,
                          .input_zero = p->input_zero,
                          .output_zero = p->output_zero,
                          .low = p->clamp_min,
                          .high = p->clamp_max,
                          .in_step = (size_t)w->stride_w * p->input.pixel,
                          .out_step = p->output.pixel};
    int32_t reach = (int32_t)((w->kernel_w - 1u) * w->dilation_w);
    for (uint32_t b = 0; b < w->batch; ++b) {
        for (uint32_t oy = w->y0; oy < w->y1; ++oy) {
            NEUTRON_TRY(neutron_check_stop(machine));
            int32_t y = (int32_t)(oy * w->stride_h) - w->pad_top;
            int8_t *out_row = output + neutron_row_offset(&p->output, w->out_h, b, oy);
            for (uint32_t ox = 0; ox < w->out_w; ox += d.count) {
                int32_t x = (int32_t)(ox * w->stride_w) - w->pad_left;
                uint32_t first, end;
                neutron_taps(x, w->kernel_w, w->dilation_w, w->in_w, &first, &end);
                /* Pixels whose whole window is inside the width are done in one go. */
                d.count = 1;
                if (x >= 0 && x + reach < (int32_t)w->in_w) {
                    uint32_t more = ((uint32_t)((int32_t)w->in_w - 1 - reach - x)) / w->stride_w;
                    d.count += more < w->out_w - 1u - ox ? more : w->out_w - 1u - ox;
                }
                d.columns = end - first;
                d.weights = weights + (size_t)first * w->out_c;
                d.out = out_row + (size_t)ox * p->output.pixel;
                for (uint32_t ky = 0; ky < w->kernel_h; ++ky) {
                    int32_t iy = y + (int32_t)(ky * w->dilation_h);
                    bool inside = iy >= 0 && iy < (int32_t)w->in_h && end > first;
                    rows[ky] = inside ? input + neutron_row_offset(&p->input, w->in_h, b, (uint32_t)iy) +
                                            (size_t)(x + (int32_t)(first * w->dilation_w)) * p->input.pixel
                                      : NULL;
                }
                neutron_depthwise(&d);
            }
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_depthwise_conv_2d, NeutronDepthwiseConv2DParams, check, run)
