/* PRELU: int8 a, or a times the slope b where a is negative, with broadcasting. Shifts in -31 .. 30. */
#include "elementwise.h"

static int32_t check(const NeutronMachine *machine, const NeutronPreluParams *p) {
    return neutron_check_broadcast(machine, &p->walk);
}

static int32_t element(const NeutronPreluParams *p, int32_t a, int32_t b) {
    int32_t value = a - p->a_zero;
    int32_t scaled = value >= 0 ? neutron_scale(value, p->positive_multiplier, p->positive_shift)
                                : neutron_scale(value * (b - p->b_zero), p->negative_multiplier, p->negative_shift);
    return neutron_clamp(neutron_add32(scaled, p->output_zero), -128, 127);
}

NEUTRON_ROW_FUNCTION(NeutronPreluParams, element)

static int32_t run(const NeutronMachine *machine, const NeutronPreluParams *p) {
    return neutron_walk(machine, &p->walk, p, element_row);
}

NEUTRON_KERNEL(neutron_prelu, NeutronPreluParams, check, run)
