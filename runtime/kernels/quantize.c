/* QUANTIZE: float32 to int8, round(x / scale) + zero, halves away from zero, saturated. */
#include "float32.h"
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronQuantizeParams *p) {
    NEUTRON_REQUIRE(p->scale > 0.0f);
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, (uint64_t)p->count * 4u, 4, NEUTRON_READ));
    neutron_count(machine, p->count, NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, p->count, 1, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronQuantizeParams *p) {
    const float *in = (const float *)(const void *)neutron_read(machine, p->input);
    int8_t *out = (int8_t *)neutron_write(machine, p->output);
    for (uint32_t i = 0; i < p->count; ++i) out[i] = (int8_t)neutron_quantize_float(in[i], p->scale, p->zero);
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_quantize, NeutronQuantizeParams, check, run)
