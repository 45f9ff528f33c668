/* QUANTIZE: float32 to int8, round(x / scale) + zero, halves away from zero, saturated. */
#include "arithmetic.h"
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronQuantizeParams *p) {
    NEUTRON_REQUIRE(p->scale > 0.0f);
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, (uint64_t)p->count * 4u, 4, NEUTRON_READ));
    return neutron_check_bytes(machine, p->output, p->count, 1, NEUTRON_WRITE);
}

/* As the reference machine converts: what does not fit, NaN too, becomes INT32_MIN. */
static int32_t round_to_int(float x) {
    if (!(x >= -2147483648.0f && x < 2147483648.0f)) return INT32_MIN;
    int32_t whole = (int32_t)x;
    float rest = x - (float)whole; /* exact: a float with a fraction is below 2^23 */
    if (rest >= 0.5f) return whole + 1;
    return rest <= -0.5f ? whole - 1 : whole;
}

static int32_t run(const NeutronMachine *machine, const NeutronQuantizeParams *p) {
    const float *in = (const float *)(const void *)neutron_read(machine, p->input);
    int8_t *out = (int8_t *)neutron_write(machine, p->output);
    for (uint32_t i = 0; i < p->count; ++i) {
        out[i] = (int8_t)neutron_clamp(neutron_add32(round_to_int(in[i] / p->scale), p->zero), -128, 127);
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_quantize, NeutronQuantizeParams, check, run)
