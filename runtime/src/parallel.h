/* Splitting a kernel call between threads. */
#ifndef NEUTRON_PARALLEL_H
#define NEUTRON_PARALLEL_H

#include "kernel.h"

/* Run a call, in parts on the threads the run was given where the kernel's rows, channels or elements can be shared
 * out. The parts write to different places and read what none of them writes: the result is the same. */
#if defined(__x86_64__) || defined(__aarch64__)
#define NEUTRON_THREADED 1
int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters);
#else /* a microcontroller has one core */
static inline int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters) {
    return neutronKernels[kind](machine, parameters);
}
#endif

#endif
