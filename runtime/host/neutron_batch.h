/* Many runs of one model as one call. Not part of the runtime proper: for hosts, with threads or without. */
#ifndef NEUTRON_BATCH_H
#define NEUTRON_BATCH_H

#include "neutron.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `count` samples. Of each input, and of each output, the samples lie one behind the other. Every thread that takes
 * part needs memory of its own: there are `areas`, each of neutron_area_bytes of the model's scratch bytes, and as many
 * for prefetched weights. Buffers are aligned as those of a run. */
typedef struct NeutronBatch {
    const NeutronConstBuffer *inputs;
    size_t input_count;
    const NeutronBuffer *outputs;
    size_t output_count;
    size_t count;
    NeutronBuffer scratch;
    NeutronBuffer prefetch;
    uint32_t areas;
    const NeutronThreads *threads; /* null: all is computed by the calling thread */
    const volatile uint32_t *stop; /* as in NeutronRun */
} NeutronBatch;

/* What one of several areas takes, for so many bytes. */
size_t neutron_area_bytes(uint32_t bytes);

/* Compute the outputs of all samples, each by one thread, and so with the bits of `neutron_run`. After an error
 * the outputs are undefined. */
NeutronStatus neutron_run_batch(const NeutronModel *model, const NeutronBatch *batch);

#ifdef __cplusplus
}
#endif

#endif
