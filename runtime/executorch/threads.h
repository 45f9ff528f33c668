// The threads the delegate shares its work with; a firmware, which has one, is built without this.
#pragma once

#include "neutron.h"

namespace openneutron {

// What a run is given: null for one thread.
const NeutronThreads* backend_threads();

} // namespace openneutron
