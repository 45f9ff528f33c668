/* REDUCE_EXTREMUM: int8 maximum or minimum over any axes; walked as in reduce_sum.c, no change of scale. */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronReduceExtremumParams *p) {
    return neutron_check_reduction(machine, p->input, p->output, p->kept, p->kept_strides, p->reduced,
                                   p->reduced_strides);
}

#define INNER (NEUTRON_MAX_RANK - 1u)

static int8_t extremum_of(const NeutronReduceExtremumParams *p, const int8_t *input) {
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    ptrdiff_t stride = p->reduced_strides[INNER];
    int8_t best = *input;
    do {
        const int8_t *in = input + neutron_offset(index, p->reduced_strides, INNER);
        for (uint32_t i = 0; i < p->reduced[INNER]; ++i) {
            int8_t value = in[(ptrdiff_t)i * stride];
            if (p->minimum ? value < best : value > best) best = value;
        }
    } while (neutron_next(index, p->reduced, INNER));
    return best;
}

static int32_t run(const NeutronMachine *machine, const NeutronReduceExtremumParams *p) {
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input);
    int8_t *out = (int8_t *)neutron_write(machine, p->output);
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    do {
        *out++ = extremum_of(p, input + neutron_offset(index, p->kept_strides, NEUTRON_MAX_RANK));
    } while (neutron_next(index, p->kept, NEUTRON_MAX_RANK));
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_reduce_extremum, NeutronReduceExtremumParams, check, run)
