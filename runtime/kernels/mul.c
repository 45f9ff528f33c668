/* MUL: int8 (a - a_zero) * (b - b_zero) with broadcasting, scaled and clamped. Shift in -31 .. 30. */
#include "elementwise.h"

static int32_t check(const NeutronMachine *machine, const NeutronMulParams *p) {
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    return neutron_check_broadcast(machine, &p->walk);
}

static int32_t element(const NeutronMulParams *p, int32_t a, int32_t b) {
    int32_t scaled = neutron_scale((a - p->a_zero) * (b - p->b_zero), p->multiplier, p->shift);
    return neutron_clamp(neutron_add32(scaled, p->output_zero), p->clamp_min, p->clamp_max);
}

NEUTRON_ROW_FUNCTION(NeutronMulParams, element)

static int32_t run(const NeutronMachine *machine, const NeutronMulParams *p) {
    return neutron_walk(machine, &p->walk, p, element_row);
}

NEUTRON_KERNEL(neutron_mul, NeutronMulParams, check, run)
