/* REDUCE_ROWS: sum, average or extremum of each channel over a feature map, taken in stripes of its rows.
 *
 * Sums are kept in `sums` from stripe to stripe, an extremum in the output. The first row begins, the last one scales
 * as REDUCE_SUM does or divides as AVERAGE_POOL_2D does, or clamps: the same as in one go.
 */
#include "arithmetic.h"
#include "kernel.h"

static bool is_sum(const NeutronReduceRowsParams *p) { return p->reduction <= NEUTRON_ROWS_AVERAGE; }

static int32_t check(const NeutronMachine *machine, const NeutronReduceRowsParams *p) {
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max && p->channels <= p->pixel);
    uint64_t used = (uint64_t)(p->width - 1u) * p->pixel + p->channels;
    NEUTRON_TRY(neutron_check_rows(machine, p->input, p->height, p->row, used, p->y0, p->y1));
    neutron_count(machine, p->channels, neutron_times(p->y1 - p->y0, p->width) + NEUTRON_ELEMENT_WORK);
    if (is_sum(p)) {
        NEUTRON_TRY(neutron_check_bytes(machine, p->sums, (uint64_t)p->channels * 4u, 4, NEUTRON_WRITE));
    }
    return neutron_check_bytes(machine, p->output, p->channels, 1, NEUTRON_WRITE);
}

static void add_pixel(int32_t *sums, const int8_t *in, uint32_t channels) {
    for (uint32_t c = 0; c < channels; ++c) sums[c] = neutron_add32(sums[c], in[c]);
}

static void take_pixel(int8_t *best, const int8_t *in, uint32_t channels, bool minimum) {
    for (uint32_t c = 0; c < channels; ++c) best[c] = (minimum ? in[c] < best[c] : in[c] > best[c]) ? in[c] : best[c];
}

/* The mean of `count` values, rounded half away from zero: by magnitude, as 2^24 times -128 is the least int32. */
static int32_t mean_of(int32_t sum, uint32_t count) {
    uint32_t size = sum < 0 ? 0u - (uint32_t)sum : (uint32_t)sum;
    int32_t mean = (int32_t)((size + count / 2u) / count);
    return sum < 0 ? -mean : mean;
}

static void finish(const NeutronReduceRowsParams *p, const int32_t *sums, int8_t *out) {
    const uint32_t count = p->height * p->width;
    for (uint32_t c = 0; c < p->channels; ++c) {
        int32_t value = out[c];
        if (p->reduction == NEUTRON_ROWS_AVERAGE) {
            value = mean_of(sums[c], count);
        } else if (p->reduction == NEUTRON_ROWS_SUM) {
            int32_t sum = neutron_sub32(sums[c], neutron_mul32((int32_t)count, p->input_zero));
            value = neutron_add32(neutron_scale(sum, p->multiplier, p->shift), p->output_zero);
        }
        out[c] = (int8_t)neutron_clamp(value, p->clamp_min, p->clamp_max);
    }
}

static int32_t run(const NeutronMachine *machine, const NeutronReduceRowsParams *p) {
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input);
    int8_t *out = (int8_t *)neutron_write(machine, p->output);
    int32_t *sums = is_sum(p) ? (int32_t *)(void *)neutron_write(machine, p->sums) : NULL;
    const uint32_t rows = p->input.rows ? p->input.rows : p->height;
    if (p->y0 == 0) {
        if (sums != NULL) {
            memset(sums, 0, (size_t)p->channels * sizeof *sums);
        } else {
            memmove(out, input, p->channels); /* hostile microcode may lay one over the other */
        }
    }
    for (uint32_t y = p->y0; y < p->y1; ++y) {
        const int8_t *in = input + (size_t)(y % rows) * p->row;
        for (uint32_t x = 0; x < p->width; ++x, in += p->pixel) {
            if (sums != NULL) {
                add_pixel(sums, in, p->channels);
            } else {
                take_pixel(out, in, p->channels, p->reduction == NEUTRON_ROWS_MINIMUM);
            }
        }
    }
    if (p->y1 == p->height) finish(p, sums, out);
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_reduce_rows, NeutronReduceRowsParams, check, run)
