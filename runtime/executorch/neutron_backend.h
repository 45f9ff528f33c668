/* What the application around ExecuTorch may tell the delegate. On a host nothing of it is needed. */
#ifndef NEUTRON_BACKEND_H
#define NEUTRON_BACKEND_H

#include "neutron.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Callbacks; all may be null. `copy` and `wait` are those of NeutronHooks: they fetch prefetched weights by DMA, where
 * the delegate would copy with the CPU. `enter` and `leave` are called around every run of a delegate, for its power,
 * its clock, or memory protection. */
typedef struct NeutronBackendHooks {
  void* context;
  int32_t (*copy)(void* context, void* destination, const void* source, size_t bytes, uint32_t channel);
  int32_t (*wait)(void* context, uint32_t channel);
  void (*enter)(void* context, const NeutronModel* model);
  void (*leave)(void* context, const NeutronModel* model);
  const volatile uint32_t* stop; /* ends a run: see NeutronRun. A watchdog's interrupt may set it */
  uint64_t most_work; /* a delegate that asks for more is not loaded: see NeutronImage; 0: NEUTRON_MOST_WORK */
} NeutronBackendHooks;

/* From now on the delegates call these, which must stay where they are; null: none. */
void neutron_backend_set_hooks(const NeutronBackendHooks* hooks);

/* Let what the delegates of all loaded methods remember start from its initial values at their next run: a sequence
 * begins. What the program keeps on the CPU is ExecuTorch's, and starts anew when the method is loaded again. After a
 * run that failed a delegate's state starts anew by itself. */
void neutron_backend_reset(void);

/* How many threads the next runs use; 0 if all is well. Hosts only. */
int neutron_backend_set_threads(uint32_t count);

/* The work that delegates which are loaded from now on may ask for; 0: NEUTRON_MOST_WORK. Hosts only. */
void neutron_backend_set_most_work(uint64_t most_work);

/* Let Ctrl-C end the runs of the calling thread, or no longer (neutron_interrupt.h). Hosts only. */
void neutron_backend_watch_interrupts(void);
void neutron_backend_unwatch_interrupts(void);

#ifdef __cplusplus
}
#endif

#endif
