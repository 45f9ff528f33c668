/* AVERAGE_POOL_2D: int8 mean over the taps inside the input, rounded half away from zero, clamped.
 *
 * Feature maps as in conv_2d.c; input and output share quantization. Sums fit 32 bits: at most 2^24 taps.
 */
#include "pool.h"

static int32_t check(const NeutronMachine *machine, const NeutronAveragePool2DParams *p) {
    return neutron_check_pool(machine, &p->window, &p->input, &p->output, p->clamp_min, p->clamp_max);
}

static void pixel(const void *parameters, const int8_t *input, uint32_t b, uint32_t oy, uint32_t ox, int8_t *out) {
    const NeutronAveragePool2DParams *p = (const NeutronAveragePool2DParams *)parameters;
    const NeutronWindow *w = &p->window;
    NeutronTaps taps = neutron_pool_taps(w, oy, ox);
    uint32_t count = (taps.y1 - taps.y0) * (taps.x1 - taps.x0);
    for (uint32_t c0 = 0; c0 < w->in_c; c0 += NEUTRON_POOL_CHUNK) {
        uint32_t channels = w->in_c - c0 < NEUTRON_POOL_CHUNK ? w->in_c - c0 : NEUTRON_POOL_CHUNK;
        int32_t sums[NEUTRON_POOL_CHUNK] = {0};
        for (uint32_t y = taps.y0; y < taps.y1; ++y) {
            const int8_t *in =
                input + neutron_row_offset(&p->input, w->in_h, b, y) + (size_t)taps.x0 * p->input.pixel + c0;
            for (uint32_t x = 0; x < taps.x1 - taps.x0; ++x) {
                const int8_t *tap = in + (size_t)x * p->input.pixel;
                for (uint32_t c = 0; c < channels; ++c) sums[c] += tap[c];
            }
        }
        for (uint32_t c = 0; c < channels; ++c) {
            /* By magnitude: 2^24 times -128 is the least int32, and half of the count would be taken from it. */
            uint32_t sum = sums[c] < 0 ? 0u - (uint32_t)sums[c] : (uint32_t)sums[c];
            int32_t mean = (int32_t)((sum + count / 2u) / count);
            if (sums[c] < 0) mean = -mean;
            out[c0 + c] = (int8_t)neutron_clamp(mean, p->clamp_min, p->clamp_max);
        }
    }
}

static int32_t run(const NeutronMachine *machine, const NeutronAveragePool2DParams *p) {
    return neutron_run_pool(machine, p, pixel);
}

NEUTRON_KERNEL(neutron_average_pool_2d, NeutronAveragePool2DParams, check, run)
