/* SQUARED_DIFFERENCE: int8 (a - b)^2 with broadcasting; operands scaled as in add.c (7 bits to the left). */
#include "elementwise.h"

static int32_t check(const NeutronMachine *machine, const NeutronSquaredDifferenceParams *p) {
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    return neutron_check_broadcast(machine, &p->walk);
}

static int32_t element(const NeutronSquaredDifferenceParams *p, int32_t a, int32_t b) {
    int32_t d = neutron_sub32(neutron_scale_input(a, p->a_zero, p->left_shift, p->a_multiplier, p->a_shift),
                              neutron_scale_input(b, p->b_zero, p->left_shift, p->b_multiplier, p->b_shift));
    int32_t scaled = neutron_scale(neutron_mul32(d, d), p->output_multiplier, p->output_shift);
    return neutron_clamp(neutron_add32(scaled, p->output_zero), p->clamp_min, p->clamp_max);
}

NEUTRON_ROW_FUNCTION(NeutronSquaredDifferenceParams, element)

static int32_t run(const NeutronMachine *machine, const NeutronSquaredDifferenceParams *p) {
    return neutron_walk(machine, &p->walk, p, element_row);
}

NEUTRON_KERNEL(neutron_squared_difference, NeutronSquaredDifferenceParams, check, run)
