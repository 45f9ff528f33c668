/* REDUCE_SUM: int8 sum or mean over any axes; a mean has 1 / count folded into the multiplier.
 *
 * The input is walked over `kept` (outer) and `reduced` (inner) dims with byte strides; the output is dense over
 * `kept`. out = saturate(scale(sum of (value - input_zero)) + output_zero).
 */
#include "arithmetic.h"
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronReduceSumParams *p) {
    return neutron_check_reduction(machine, p->input, p->output, p->kept, p->kept_strides, p->reduced,
                                   p->reduced_strides);
}

#define INNER (NEUTRON_MAX_RANK - 1u)

static uint32_t sum_of(const NeutronReduceSumParams *p, const int8_t *input) {
    uint32_t index[NEUTRON_MAX_RANK] = {0}, sum = 0;
    ptrdiff_t stride = p->reduced_strides[INNER];
    do {
        const int8_t *in = input + neutron_offset(index, p->reduced_strides, INNER);
        for (uint32_t i = 0; i < p->reduced[INNER]; ++i) sum += (uint32_t)(in[(ptrdiff_t)i * stride] - p->input_zero);
    } while (neutron_next(index, p->reduced, INNER));
    return sum;
}

static int32_t run(const NeutronMachine *machine, const NeutronReduceSumParams *p) {
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input);
    int8_t *out = (int8_t *)neutron_write(machine, p->output);
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    do {
        uint32_t sum = sum_of(p, input + neutron_offset(index, p->kept_strides, NEUTRON_MAX_RANK));
        int32_t scaled = neutron_scale((int32_t)sum, p->multiplier, p->shift);
        *out++ = (int8_t)neutron_clamp(neutron_add32(scaled, p->output_zero), -128, 127);
    } while (neutron_next(index, p->kept, NEUTRON_MAX_RANK));
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_reduce_sum, NeutronReduceSumParams, check, run)
