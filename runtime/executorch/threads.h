// What a host has: threads that the delegate shares its work with, a limit of work, Ctrl-C. A firmware, whose application
// says these things by hooks, is built without this.
#pragma once

#include "neutron.h"

namespace openneutron {

// What a run is given: null for one thread.
const NeutronThreads* backend_threads();

// The work a delegate may ask for; 0: the runtime's own limit.
uint64_t backend_most_work();

// The word that ends the runs of this thread, or null.
const volatile uint32_t* backend_stop();

} // namespace openneutron
