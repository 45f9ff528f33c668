/* EXTREMUM: int8 maximum or minimum of two operands of one quantization, with broadcasting. */
#include "elementwise.h"

static int32_t check(const NeutronMachine *machine, const NeutronExtremumParams *p) {
    return neutron_check_broadcast(machine, &p->walk);
}

static int32_t element(const NeutronExtremumParams *p, int32_t a, int32_t b) {
    return (p->minimum ? a < b : a > b) ? a : b;
}

NEUTRON_ROW_FUNCTION(NeutronExtremumParams, element)

static int32_t run(const NeutronMachine *machine, const NeutronExtremumParams *p) {
    return neutron_walk(machine, &p->walk, p, element_row);
}

NEUTRON_KERNEL(neutron_extremum, NeutronExtremumParams, check, run)
