/* Sharing the calls of a run between threads. */
#ifndef NEUTRON_PARALLEL_H
#define NEUTRON_PARALLEL_H

#include "kernel.h"

#ifdef NEUTRON_THREADED
/* Go through a program's calls; whoever does uses neutron_call for each. */
typedef int32_t NeutronWalk(NeutronMachine *machine);

/* Let all threads of the machine walk through the same program at the same time, each doing its parts of the calls. The
 * parts of a call write to different places and read what none of them writes, and none begins before those of
 * the call before are done: the result is the same. */
int32_t neutron_walk_together(const NeutronMachine *machine, NeutronWalk *walk);

/* Run a call, unless the caller wants the run to end: all of it, or, in a walk together, what this thread finds to do. */
int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters);
#else
static inline int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters) {
    NEUTRON_TRY(neutron_check_stop(machine));
    return neutronKernels[kind](machine, parameters);
}
#endif

#endif
