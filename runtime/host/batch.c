/* Samples are handed out one by one, to whichever thread is free. */
#include "neutron_batch.h"

#include <stdatomic.h>

#define MOST_PORTS 256u /* of a model: see the microcode's header */
#define LINE 128u       /* bytes that caches move together: no two threads write to the same */

typedef struct {
    const NeutronModel *model;
    const NeutronBatch *batch;
    atomic_size_t next; /* sample that nobody has taken */
    atomic_int status;  /* of the first one that failed */
} Work;

size_t neutron_area_bytes(uint32_t bytes) { return ((size_t)bytes + LINE - 1u) / LINE * LINE; }

static NeutronBuffer area(NeutronBuffer all, uint32_t bytes, uint32_t part) {
    if (bytes == 0) return (NeutronBuffer){NULL, 0};
    return (NeutronBuffer){(uint8_t *)all.data + part * neutron_area_bytes(bytes), bytes};
}

static void run_samples(void *argument, uint32_t part) {
    Work *work = (Work *)argument;
    const NeutronModel *model = work->model;
    const NeutronBatch *batch = work->batch;
    NeutronConstBuffer inputs[MOST_PORTS];
    NeutronBuffer outputs[MOST_PORTS];
    const NeutronRun run = {.inputs = inputs,
                            .input_count = model->input_count,
                            .outputs = outputs,
                            .output_count = model->output_count,
                            .scratch = area(batch->scratch, model->scratch_bytes, part),
                            .prefetch = area(batch->prefetch, model->prefetch_bytes, part),
                            .stop = batch->stop};
    while (atomic_load_explicit(&work->status, memory_order_relaxed) == NEUTRON_STATUS_OK) {
        const size_t sample = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed);
        if (sample >= batch->count) return;
        for (uint32_t i = 0; i < model->input_count; ++i) {
            const size_t bytes = model->inputs[i].bytes;
            inputs[i] = (NeutronConstBuffer){(const uint8_t *)batch->inputs[i].data + sample * bytes, bytes};
        }
        for (uint32_t i = 0; i < model->output_count; ++i) {
            const size_t bytes = model->outputs[i].bytes;
            outputs[i] = (NeutronBuffer){(uint8_t *)batch->outputs[i].data + sample * bytes, bytes};
        }
        const NeutronStatus status = neutron_run(model, &run);
        int none = NEUTRON_STATUS_OK;
        if (status != NEUTRON_STATUS_OK) atomic_compare_exchange_strong(&work->status, &none, (int)status);
    }
}

static int holds(const void *data, size_t bytes, size_t each, size_t count) {
    return each == 0 || (data != NULL && bytes / each >= count);
}

static NeutronStatus check_batch(const NeutronModel *model, const NeutronBatch *batch) {
    if (model == NULL || batch == NULL) return NEUTRON_STATUS_NULL_ARGUMENT;
    if (batch->input_count != model->input_count) return NEUTRON_STATUS_INPUT_COUNT;
    if (batch->output_count != model->output_count) return NEUTRON_STATUS_OUTPUT_COUNT;
    if (batch->areas == 0) return NEUTRON_STATUS_SCRATCH_SIZE;
    if (model->state_bytes != 0) return NEUTRON_STATUS_STATE_SIZE; /* samples that follow one another are no batch */
    for (uint32_t i = 0; i < model->input_count; ++i) {
        const NeutronConstBuffer *b = &batch->inputs[i];
        if (!holds(b->data, b->bytes, model->inputs[i].bytes, batch->count)) return NEUTRON_STATUS_INPUT_SIZE;
    }
    for (uint32_t i = 0; i < model->output_count; ++i) {
        const NeutronBuffer *b = &batch->outputs[i];
        if (!holds(b->data, b->bytes, model->outputs[i].bytes, batch->count)) return NEUTRON_STATUS_OUTPUT_SIZE;
    }
    const size_t scratch = neutron_area_bytes(model->scratch_bytes),
                 prefetch = neutron_area_bytes(model->prefetch_bytes);
    if (!holds(batch->scratch.data, batch->scratch.bytes, scratch, batch->areas)) return NEUTRON_STATUS_SCRATCH_SIZE;
    if (!holds(batch->prefetch.data, batch->prefetch.bytes, prefetch, batch->areas))
        return NEUTRON_STATUS_PREFETCH_SIZE;
    return NEUTRON_STATUS_OK;
}

NeutronStatus neutron_run_batch(const NeutronModel *model, const NeutronBatch *batch) {
    const NeutronStatus status = check_batch(model, batch);
    if (status != NEUTRON_STATUS_OK) return status;
    Work work = {.model = model, .batch = batch};
    atomic_init(&work.next, 0);
    atomic_init(&work.status, NEUTRON_STATUS_OK);
    const NeutronThreads *threads = batch->threads;
    uint32_t parts = threads == NULL || threads->count < batch->areas ? (threads ? threads->count : 1u) : batch->areas;
    if (parts > batch->count) parts = (uint32_t)batch->count;
    if (parts < 2) {
        run_samples(&work, 0);
    } else {
        threads->run(threads->context, parts, run_samples, &work);
    }
    return (NeutronStatus)atomic_load(&work.status);
}
