/* SOFTMAX: int8 along dense rows, output scale 1/256 and zero point -128 (any other is the converter's error). */
#include "kernel.h"
#include "softmax.h"

static int32_t check(const NeutronMachine *machine, const NeutronSoftmaxParams *p) {
    uint64_t bytes = (uint64_t)p->rows * p->depth;
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, bytes, 1, NEUTRON_READ));
    neutron_count(machine, bytes, 2u * NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, bytes, 1, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronSoftmaxParams *p) {
    const int8_t *in = (const int8_t *)neutron_read(machine, p->input);
    int8_t *out = (int8_t *)neutron_write(machine, p->output);
    const NeutronSoftmax softmax = {p->depth, p->multiplier, p->shift, p->diff_min};
    int32_t exponentials[NEUTRON_DIFFERENCES];
    const int32_t *table = NULL;
    if ((uint64_t)p->rows * p->depth >= NEUTRON_DIFFERENCES) { /* each value takes two */
        neutron_softmax_table(&softmax, exponentials);
        table = exponentials;
    }
    for (uint32_t r = 0; r < p->rows; ++r, in += p->depth, out += p->depth) {
        NEUTRON_TRY(neutron_check_stop(machine));
        neutron_softmax_row(&softmax, table, in, out);
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_softmax, NeutronSoftmaxParams, check, run)
