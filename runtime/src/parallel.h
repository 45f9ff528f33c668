/* Splitting a kernel call between threads. */
#ifndef NEUTRON_PARALLEL_H
#define NEUTRON_PARALLEL_H

#include "kernel.h"

/* Run a call, in parts on the threads the run was given where the kernel's rows, channels or elements can be shared
 * out. The parts write to different places and read what none of them writes: the result is the same. */
int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters);

#endif
