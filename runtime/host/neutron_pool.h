/* A pool of threads for runs on a host. Not part of the runtime proper, which has neither threads nor a heap. */
#ifndef NEUTRON_POOL_THREADS_H
#define NEUTRON_POOL_THREADS_H

#include "neutron.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct NeutronPool NeutronPool;

/* A pool of `count` threads, the calling one included; null if there is no memory or the system refuses. */
NeutronPool *neutron_pool_create(uint32_t count);

/* What a NeutronRun takes. Valid until the pool is destroyed; a run that finds the pool at work for another one
 * computes all on its own thread. */
const NeutronThreads *neutron_pool_threads(const NeutronPool *pool);

/* End the threads. No run may use the pool any more. */
void neutron_pool_destroy(NeutronPool *pool);

#ifdef __cplusplus
}
#endif

#endif
