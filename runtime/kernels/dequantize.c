/* DEQUANTIZE: int8 to float32, scale * (x - zero). */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronDequantizeParams *p) {
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, p->count, 1, NEUTRON_READ));
    neutron_count(machine, p->count, NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, (uint64_t)p->count * 4u, 4, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronDequantizeParams *p) {
    const int8_t *in = (const int8_t *)neutron_read(machine, p->input);
    float *out = (float *)(void *)neutron_write(machine, p->output);
    for (uint32_t i = 0; i < p->count; ++i) out[i] = p->scale * (float)(in[i] - p->zero);
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_dequantize, NeutronDequantizeParams, check, run)
