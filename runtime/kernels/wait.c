/* WAIT: block until the prefetches of a channel are done, through the application's callback. */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronWaitParams *p) {
    NEUTRON_REQUIRE(p->channel < machine->header->channels);
    return NEUTRON_STATUS_OK;
}

static int32_t run(const NeutronMachine *machine, const NeutronWaitParams *p) {
    const NeutronHooks *hooks = machine->hooks;
    if (hooks == NULL || hooks->wait == NULL) return NEUTRON_STATUS_OK;
    return hooks->wait(hooks->context, p->channel) == 0 ? NEUTRON_STATUS_OK : NEUTRON_STATUS_COPY_FAILED;
}

NEUTRON_KERNEL(neutron_wait, NeutronWaitParams, check, run)
