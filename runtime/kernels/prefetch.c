/* PREFETCH: start copying constants from WEIGHTS (flash) to PREFETCH (SRAM) on a channel, through the
 * application's callback, or with the CPU if it gave none. */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronPrefetchParams *p) {
    NEUTRON_REQUIRE(p->source.region == NEUTRON_REGION_WEIGHTS && p->destination.region == NEUTRON_REGION_PREFETCH);
    NEUTRON_REQUIRE(p->channel < machine->header->channels);
    neutron_count(machine, p->size, NEUTRON_ELEMENT_WORK);
    NEUTRON_TRY(neutron_check_bytes(machine, p->source, p->size, NEUTRON_ALIGNMENT, NEUTRON_READ));
    return neutron_check_bytes(machine, p->destination, p->size, NEUTRON_ALIGNMENT, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronPrefetchParams *p) {
    const void *source = neutron_read(machine, p->source);
    void *destination = neutron_write(machine, p->destination);
    const NeutronHooks *hooks = machine->hooks;
    if (hooks == NULL || hooks->copy == NULL) {
        memmove(destination, source, p->size); /* the application may have put the weights anywhere */
        return NEUTRON_STATUS_OK;
    }
    int32_t result = hooks->copy(hooks->context, destination, source, p->size, p->channel);
    return result == 0 ? NEUTRON_STATUS_OK : NEUTRON_STATUS_COPY_FAILED;
}

NEUTRON_KERNEL(neutron_prefetch, NeutronPrefetchParams, check, run)
