/* What the two pools share. */
#ifndef NEUTRON_POOL_H
#define NEUTRON_POOL_H

#include "arithmetic.h"
#include "kernel.h"

#define NEUTRON_POOL_CHUNK 32u
#define NEUTRON_TAP_WORK 2u /* a tap takes as long as so many multiplications */

/* The taps of one window that lie inside the input: rows y0 .. y1 - 1, columns x0 .. x1 - 1. */
typedef struct {
    uint32_t y0, y1, x0, x1;
} NeutronTaps;

static inline NeutronTaps neutron_pool_taps(const NeutronWindow *w, uint32_t oy, uint32_t ox) {
    int32_t y = (int32_t)(oy * w->stride_h) - w->pad_top, x = (int32_t)(ox * w->stride_w) - w->pad_left;
    uint32_t ky0, ky1, kx0, kx1;
    neutron_taps(y, w->kernel_h, 1, w->in_h, &ky0, &ky1);
    neutron_taps(x, w->kernel_w, 1, w->in_w, &kx0, &kx1);
    NeutronTaps taps = {(uint32_t)(y + (int32_t)ky0), (uint32_t)(y + (int32_t)ky1), (uint32_t)(x + (int32_t)kx0),
                        (uint32_t)(x + (int32_t)kx1)};
    return taps;
}

/* Call `pixel` for every output pixel of a pool's rows y0 .. y1 - 1, with where its result goes. */
typedef void NeutronPoolPixel(const void *parameters, const int8_t *input, uint32_t b, uint32_t oy, uint32_t ox,
                              int8_t *out);

static inline int32_t neutron_run_pool(const NeutronMachine *machine, const void *parameters, NeutronPoolPixel *pixel) {
    const NeutronWindowForm *p = (const NeutronWindowForm *)parameters;
    const NeutronWindow *w = &p->window;
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input.ref);
    int8_t *output = (int8_t *)neutron_write(machine, p->output.ref);
    for (uint32_t b = 0; b < w->batch; ++b) {
        for (uint32_t oy = w->y0; oy < w->y1; ++oy) {
            NEUTRON_TRY(neutron_check_stop(machine));
            int8_t *row = output + neutron_row_offset(&p->output, w->out_h, b, oy);
            for (uint32_t ox = 0; ox < w->out_w; ++ox) {
                pixel(p, input, b, oy, ox, row + (size_t)ox * p->output.pixel);
            }
        }
    }
    return NEUTRON_STATUS_OK;
}

static inline int32_t neutron_check_pool(const NeutronMachine *machine, const NeutronWindow *w,
                                         const NeutronView *input, const NeutronView *output, int32_t low,
                                         int32_t high) {
    NEUTRON_TRY(neutron_check_window(machine, w, input, output, NEUTRON_TAP_WORK));
    NEUTRON_REQUIRE(w->in_c == w->out_c && w->dilation_h == 1 && w->dilation_w == 1);
    NEUTRON_REQUIRE(low <= high);
    /* Every window covers part of the input: the last one starts inside, the first one ends inside. */
    NEUTRON_REQUIRE(w->pad_top >= 0 && (uint32_t)w->pad_top < w->kernel_h);
    NEUTRON_REQUIRE(w->pad_left >= 0 && (uint32_t)w->pad_left < w->kernel_w);
    NEUTRON_REQUIRE((int64_t)(w->out_h - 1u) * w->stride_h - w->pad_top < (int64_t)w->in_h);
    NEUTRON_REQUIRE((int64_t)(w->out_w - 1u) * w->stride_w - w->pad_left < (int64_t)w->in_w);
    return NEUTRON_STATUS_OK;
}

#endif
