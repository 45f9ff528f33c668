/* ADD: int8 a + b with broadcasting; subtraction has b_multiplier negated.
 *
 * Each operand is shifted left (20 bits) and scaled to twice the larger input scale, so that the sum loses
 * nothing; the sum is scaled to the output and clamped. Shifts in -31 .. 30.
 */
#include "add.h"

static int32_t check(const NeutronMachine *machine, const NeutronAddParams *p) {
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    return neutron_check_broadcast(machine, &p->walk);
}

static int32_t element(const NeutronAddParams *p, int32_t a, int32_t b) {
    int32_t sum = neutron_add32(neutron_scale_input(a, p->a_zero, p->left_shift, p->a_multiplier, p->a_shift),
                                neutron_scale_input(b, p->b_zero, p->left_shift, p->b_multiplier, p->b_shift));
    int32_t scaled = neutron_add32(neutron_scale(sum, p->output_multiplier, p->output_shift), p->output_zero);
    return neutron_clamp(scaled, p->clamp_min, p->clamp_max);
}

NEUTRON_ROW_FUNCTION(NeutronAddParams, element)

void neutron_add_row_portable(const void *parameters, const NeutronRow *row) { element_row(parameters, row); }

#ifndef NEUTRON_VECTOR
void neutron_add_row(const void *parameters, const NeutronRow *row) { element_row(parameters, row); }
#endif

static int32_t run(const NeutronMachine *machine, const NeutronAddParams *p) {
    return neutron_walk(machine, &p->walk, p, neutron_add_row);
}

NEUTRON_KERNEL(neutron_add, NeutronAddParams, check, run)
