/* The driver: checks a microcode once, runs it many times. */
#include "kernel.h"
#include "parallel.h"

#define PREPARED 0x4E4E4F52u

/* CRC-32 as in zlib, four bits at a time: 64 bytes of table instead of 1 KiB. */
static uint32_t crc32_update(uint32_t crc, const uint8_t *data, size_t bytes) {
    static const uint32_t table[16] = {0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u,
                                       0x4DB26158u, 0x5005713Cu, 0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu,
                                       0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu};
    crc = ~crc;
    for (size_t i = 0; i < bytes; ++i) {
        crc ^= data[i];
        crc = (crc >> 4) ^ table[crc & 15u];
        crc = (crc >> 4) ^ table[crc & 15u];
    }
    return ~crc;
}

static uint32_t microcode_crc(const uint8_t *microcode, size_t bytes) {
    static const uint8_t zero[4] = {0, 0, 0, 0};
    uint32_t crc = crc32_update(0, microcode, NEUTRON_CRC_OFFSET);
    crc = crc32_update(crc, zero, 4);
    return crc32_update(crc, microcode + NEUTRON_CRC_OFFSET + 4, bytes - NEUTRON_CRC_OFFSET - 4);
}

static NeutronStatus check_header(const NeutronHeader *h, const NeutronImage *image) {
    size_t size = image->microcode.bytes;
    if (size < sizeof(uint32_t)) return NEUTRON_STATUS_TRUNCATED;
    if (h->magic != NEUTRON_MAGIC) return NEUTRON_STATUS_MAGIC;
    if (size < sizeof(NeutronHeader)) return NEUTRON_STATUS_TRUNCATED;
    if (h->format_version != NEUTRON_FORMAT_VERSION) return NEUTRON_STATUS_FORMAT_VERSION;
    if (h->microcode_bytes > size) return NEUTRON_STATUS_TRUNCATED;
    if (h->header_bytes != sizeof(NeutronHeader) || h->microcode_bytes < sizeof(NeutronHeader)) {
        return NEUTRON_STATUS_HEADER;
    }
    if (microcode_crc((const uint8_t *)h, h->microcode_bytes) != h->crc) return NEUTRON_STATUS_CHECKSUM;
    if (!NEUTRON_TAKES_TARGET(h->target)) return NEUTRON_STATUS_TARGET;
    /* Refs have one byte for the index of an input or output. */
    if (h->inputs > NEUTRON_MAX_PORTS || h->outputs > NEUTRON_MAX_PORTS) return NEUTRON_STATUS_HEADER;
    if (h->states > NEUTRON_MAX_PORTS) return NEUTRON_STATUS_HEADER;
    uint32_t described = (uint32_t)sizeof(NeutronHeader) +
                         (h->inputs + h->outputs) * (uint32_t)sizeof(NeutronDescriptor) +
                         h->states * (uint32_t)sizeof(NeutronState);
    if (h->calls_offset != described || described > h->microcode_bytes) return NEUTRON_STATUS_HEADER;
    if (h->weights_bytes > image->weights.bytes) return NEUTRON_STATUS_WEIGHTS_SIZE;
    if (h->weights_bytes != 0 && image->weights.data == NULL) return NEUTRON_STATUS_NULL_ARGUMENT;
    if ((uintptr_t)image->weights.data % NEUTRON_ALIGNMENT != 0) return NEUTRON_STATUS_ALIGNMENT;
    return NEUTRON_STATUS_OK;
}

/* Inputs and outputs in scratch lie inside of it. Inputs are there together, so that no two share a byte; an output
 * may be a part of another. */
static NeutronStatus check_places(const NeutronDescriptor *descriptors, const NeutronHeader *h) {
    for (uint32_t i = 0; i < h->inputs + h->outputs; ++i) {
        const NeutronDescriptor *d = &descriptors[i];
        if (d->place == 0) continue;
        uint32_t at = d->place - 1u;
        if (at > h->scratch_bytes || d->bytes > h->scratch_bytes - at) return NEUTRON_STATUS_BOUNDS;
        if (at % neutron_element_bytes(d->dtype) != 0) return NEUTRON_STATUS_ALIGNMENT;
        for (uint32_t j = 0; i < h->inputs && j < i; ++j) {
            const NeutronDescriptor *other = &descriptors[j];
            if (other->place == 0 || d->bytes == 0 || other->bytes == 0) continue;
            if (at < other->place - 1u + other->bytes && other->place - 1u < at + d->bytes) {
                return NEUTRON_STATUS_HEADER;
            }
        }
    }
    return NEUTRON_STATUS_OK;
}

static bool is_tensor(uint32_t dtype, uint32_t rank, const uint32_t dims[8], uint32_t bytes) {
    if (dtype > NEUTRON_DTYPE_BOOL || rank > 8) return false;
    uint64_t product = neutron_element_bytes(dtype);
    for (uint32_t k = 0; k < rank; ++k) {
        if (dims[k] > NEUTRON_MAX_DIM) return false;
        product *= dims[k];
        if (product > UINT32_MAX) return false;
    }
    return product == bytes;
}

static NeutronStatus check_descriptors(const NeutronDescriptor *descriptors, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
        const NeutronDescriptor *d = &descriptors[i];
        if (!is_tensor(d->dtype, d->rank, d->dims, d->bytes)) return NEUTRON_STATUS_HEADER;
    }
    return NEUTRON_STATUS_OK;
}

static const NeutronState *states_of(const NeutronHeader *h) {
    const NeutronDescriptor *descriptors = (const NeutronDescriptor *)(const void *)(h + 1);
    return (const NeutronState *)(const void *)(descriptors + h->inputs + h->outputs);
}

/* States lie in their region one behind the other, so that none shares a byte with another and each byte between them
 * belongs to the one before; initial values lie in the weights. */
static NeutronStatus check_states(const NeutronHeader *h) {
    const NeutronState *states = states_of(h);
    uint32_t end = 0;
    for (uint32_t i = 0; i < h->states; ++i) {
        const NeutronState *s = &states[i];
        if (!is_tensor(s->dtype, s->rank, s->dims, s->bytes) || s->fill > 255u) return NEUTRON_STATUS_HEADER;
        if (s->offset < end || s->offset > h->state_bytes || s->bytes > h->state_bytes - s->offset) {
            return NEUTRON_STATUS_BOUNDS;
        }
        if (s->offset % NEUTRON_ALIGNMENT != 0) return NEUTRON_STATUS_ALIGNMENT;
        if (s->initial != 0 &&
            (s->initial - 1u > h->weights_bytes || s->bytes > h->weights_bytes - (s->initial - 1u))) {
            return NEUTRON_STATUS_BOUNDS;
        }
        end = s->offset + s->bytes;
    }
    const uint64_t all = ((uint64_t)end + NEUTRON_ALIGNMENT - 1u) / NEUTRON_ALIGNMENT * NEUTRON_ALIGNMENT;
    return h->state_bytes == all ? NEUTRON_STATUS_OK : NEUTRON_STATUS_HEADER;
}

const uint16_t neutron_record_bytes[NEUTRON_KERNEL_KINDS] = {
#define RECORD_BYTES(kind, function, Type, form) [NEUTRON_KERNEL_##kind] = (uint16_t)(sizeof(Type) + 4u),
    NEUTRON_FOR_EACH_KERNEL(RECORD_BYTES)
#undef RECORD_BYTES
};

const uint8_t neutron_forms[NEUTRON_KERNEL_KINDS] = {
#define FORM(kind, function, Type, form) [NEUTRON_KERNEL_##kind] = NEUTRON_FORM_##form,
    NEUTRON_FOR_EACH_KERNEL(FORM)
#undef FORM
};

bool neutron_is_record(uint32_t kind, uint32_t size) {
    uint32_t item = kind == NEUTRON_KERNEL_CASCADE  ? (uint32_t)sizeof(NeutronStep)
                    : kind == NEUTRON_KERNEL_LOOP   ? (uint32_t)sizeof(NeutronMove)
                    : kind == NEUTRON_KERNEL_ISLAND ? (uint32_t)sizeof(NeutronInstruction)
                                                    : 0u;
    if (item == 0) return size == neutron_record_bytes[kind];
    return size >= neutron_record_bytes[kind] && (size - neutron_record_bytes[kind]) % item == 0;
}

/* How many records a call, which has been checked, consists of: a cascade has its stages behind it, a loop its body. */
static uint32_t record_count(const uint8_t *call) {
    uint32_t kind = *(const uint32_t *)(const void *)call & 0xFFFFu;
    if (kind == NEUTRON_KERNEL_CASCADE) return 1u + ((const NeutronCascadeParams *)(const void *)(call + 4))->stages;
    if (kind == NEUTRON_KERNEL_LOOP) return 1u + ((const NeutronLoopParams *)(const void *)(call + 4))->body;
    return 1u;
}

static NeutronStatus check_calls(NeutronModel *model, NeutronMachine *machine, uint64_t most_work) {
    const NeutronHeader *h = machine->header;
    const uint8_t *at = (const uint8_t *)h + h->calls_offset;
    uint32_t left = h->microcode_bytes - h->calls_offset;
    uint32_t stages = 0; /* of the last cascade or loop, still to come: it has checked them */
    for (uint32_t i = 0; i < h->calls; ++i) {
        model->problem_call = (int32_t)i;
        if (left < 4) return NEUTRON_STATUS_CALL;
        uint32_t word = *(const uint32_t *)(const void *)at;
        uint32_t kind = word & 0xFFFFu, size = word >> 16;
        model->problem_kernel = kind;
        if (kind >= NEUTRON_KERNEL_KINDS) return NEUTRON_STATUS_KERNEL_UNKNOWN;
        if (size > left || !neutron_is_record(kind, size)) return NEUTRON_STATUS_CALL;
        if (neutronKernels[kind] == NULL) return NEUTRON_STATUS_KERNEL_MISSING;
        if ((h->required_kernels[kind / 32u] >> (kind % 32u) & 1u) == 0) return NEUTRON_STATUS_HEADER;
        if (stages > 0) {
            --stages;
        } else {
            machine->call = i;
            NeutronStatus status = (NeutronStatus)neutronKernels[kind](machine, at + 4);
            if (status != NEUTRON_STATUS_OK) return status;
            if (model->work > most_work) return NEUTRON_STATUS_WORK;
            stages = record_count(at) - 1u;
        }
        at += size;
        left -= size;
    }
    if (stages > 0) return NEUTRON_STATUS_CALL;
    if (left >= NEUTRON_ALIGNMENT) return NEUTRON_STATUS_HEADER;
    model->problem_call = -1;
    return NEUTRON_STATUS_OK;
}

/* Report a missing kernel before looking at single calls: the set is the clearest statement of what is needed. */
static NeutronStatus check_kernels(NeutronModel *model, const NeutronHeader *h) {
    for (uint32_t kind = 0; kind < 128u; ++kind) {
        if ((h->required_kernels[kind / 32u] >> (kind % 32u) & 1u) == 0) continue;
        model->problem_kernel = kind;
        if (kind >= NEUTRON_KERNEL_KINDS) return NEUTRON_STATUS_KERNEL_UNKNOWN;
        if (neutronKernels[kind] == NULL) return NEUTRON_STATUS_KERNEL_MISSING;
    }
    return NEUTRON_STATUS_OK;
}

NeutronStatus neutron_prepare(NeutronModel *model, const NeutronImage *image) {
    if (model == NULL || image == NULL) return NEUTRON_STATUS_NULL_ARGUMENT;
    memset(model, 0, sizeof *model);
    model->problem_call = -1;
    model->problem_kernel = NEUTRON_KERNEL_KINDS;
    if (image->microcode.data == NULL) return NEUTRON_STATUS_NULL_ARGUMENT;
    if ((uintptr_t)image->microcode.data % sizeof(uint32_t) != 0) return NEUTRON_STATUS_ALIGNMENT;
    const NeutronHeader *h = (const NeutronHeader *)image->microcode.data;
    NeutronStatus status = check_header(h, image);
    if (status != NEUTRON_STATUS_OK) return status;
    const NeutronDescriptor *descriptors = (const NeutronDescriptor *)(const void *)(h + 1);
    status = check_descriptors(descriptors, h->inputs + h->outputs);
    if (status == NEUTRON_STATUS_OK) status = check_places(descriptors, h);
    if (status == NEUTRON_STATUS_OK) status = check_states(h);
    if (status != NEUTRON_STATUS_OK) return status;
    const uint8_t *weights = (const uint8_t *)image->weights.data;
    if (image->check_weights && crc32_update(0, weights, h->weights_bytes) != h->weights_crc) {
        return NEUTRON_STATUS_WEIGHTS_CHECKSUM;
    }
    status = check_kernels(model, h);
    if (status != NEUTRON_STATUS_OK) return status;
    NeutronMachine machine = {.phase = NEUTRON_PHASE_CHECK,
                              .header = h,
                              .descriptors = descriptors,
                              .weights = weights,
                              .work = &model->work};
    status = check_calls(model, &machine, image->most_work != 0 ? image->most_work : NEUTRON_MOST_WORK);
    if (status != NEUTRON_STATUS_OK) return status;

    model->input_count = h->inputs;
    model->output_count = h->outputs;
    model->inputs = descriptors;
    model->outputs = descriptors + h->inputs;
    model->scratch_bytes = h->scratch_bytes;
    model->prefetch_bytes = h->prefetch_bytes;
    model->weights_bytes = h->weights_bytes;
    model->call_count = h->calls;
    model->converter_version = h->converter_version;
    model->state_count = h->states;
    model->state_bytes = h->state_bytes;
    model->states = states_of(h);
    model->header = h;
    model->weights = weights;
    model->problem_kernel = NEUTRON_KERNEL_KINDS;
    model->prepared = PREPARED;
    return NEUTRON_STATUS_OK;
}

static NeutronStatus check_buffer(const void *data, size_t bytes, uint32_t needed, uint32_t alignment,
                                  NeutronStatus too_small) {
    if (needed == 0) return NEUTRON_STATUS_OK;
    if (data == NULL) return NEUTRON_STATUS_NULL_ARGUMENT;
    if (bytes < needed) return too_small;
    if ((uintptr_t)data % alignment != 0) return NEUTRON_STATUS_ALIGNMENT;
    return NEUTRON_STATUS_OK;
}

/* An input or output; one in scratch may have no buffer, and then is there already or stays there. */
static NeutronStatus check_port(const NeutronDescriptor *d, const void *data, size_t bytes, NeutronStatus too_small) {
    if (d->place != 0 && data == NULL) return NEUTRON_STATUS_OK;
    return check_buffer(data, bytes, d->bytes, d->place != 0 ? 1u : neutron_element_bytes(d->dtype), too_small);
}

static NeutronStatus check_state(const NeutronModel *model, NeutronBuffer state) {
    return check_buffer(state.data, state.bytes, model->state_bytes, NEUTRON_ALIGNMENT, NEUTRON_STATUS_STATE_SIZE);
}

NeutronStatus neutron_reset(const NeutronModel *model, NeutronBuffer state) {
    if (model == NULL) return NEUTRON_STATUS_NULL_ARGUMENT;
    if (model->prepared != PREPARED) return NEUTRON_STATUS_NOT_PREPARED;
    const NeutronStatus status = check_state(model, state);
    if (status != NEUTRON_STATUS_OK || model->state_bytes == 0) return status;
    memset(state.data, 0, model->state_bytes); /* also what lies between two states */
    for (uint32_t i = 0; i < model->state_count; ++i) {
        const NeutronState *s = &model->states[i];
        uint8_t *to = (uint8_t *)state.data + s->offset;
        if (s->initial != 0) memmove(to, model->weights + (s->initial - 1u), s->bytes);
        else memset(to, (int)s->fill, s->bytes);
    }
    return NEUTRON_STATUS_OK;
}

static NeutronStatus check_run(const NeutronModel *model, const NeutronRun *run) {
    if (model == NULL || run == NULL) return NEUTRON_STATUS_NULL_ARGUMENT;
    if (model->prepared != PREPARED) return NEUTRON_STATUS_NOT_PREPARED;
    if (run->input_count != model->input_count) return NEUTRON_STATUS_INPUT_COUNT;
    if (run->output_count != model->output_count) return NEUTRON_STATUS_OUTPUT_COUNT;
    if ((run->inputs == NULL && run->input_count) || (run->outputs == NULL && run->output_count)) {
        return NEUTRON_STATUS_NULL_ARGUMENT;
    }
    NeutronStatus status = NEUTRON_STATUS_OK;
    for (uint32_t i = 0; i < model->input_count && status == NEUTRON_STATUS_OK; ++i) {
        status = check_port(&model->inputs[i], run->inputs[i].data, run->inputs[i].bytes, NEUTRON_STATUS_INPUT_SIZE);
    }
    for (uint32_t i = 0; i < model->output_count && status == NEUTRON_STATUS_OK; ++i) {
        status =
            check_port(&model->outputs[i], run->outputs[i].data, run->outputs[i].bytes, NEUTRON_STATUS_OUTPUT_SIZE);
    }
    if (status != NEUTRON_STATUS_OK) return status;
    status = check_buffer(run->scratch.data, run->scratch.bytes, model->scratch_bytes, NEUTRON_ALIGNMENT,
                          NEUTRON_STATUS_SCRATCH_SIZE);
    if (status != NEUTRON_STATUS_OK) return status;
    status = check_buffer(run->prefetch.data, run->prefetch.bytes, model->prefetch_bytes, NEUTRON_ALIGNMENT,
                          NEUTRON_STATUS_PREFETCH_SIZE);
    if (status != NEUTRON_STATUS_OK) return status;
    return check_state(model, run->state);
}

void *neutron_place(const NeutronDescriptor *port, void *scratch) {
    return port->place != 0 ? (uint8_t *)scratch + (port->place - 1u) : NULL;
}

/* Bring inputs to their places in scratch, unless they are there. */
static void copy_in(const NeutronModel *model, const NeutronRun *run) {
    for (uint32_t i = 0; i < model->input_count; ++i) {
        void *place = neutron_place(&model->inputs[i], run->scratch.data);
        const void *data = run->inputs[i].data;
        if (place != NULL && data != NULL && data != place) memmove(place, data, model->inputs[i].bytes);
    }
}

static void copy_out(const NeutronModel *model, const NeutronRun *run) {
    for (uint32_t i = 0; i < model->output_count; ++i) {
        const void *place = neutron_place(&model->outputs[i], run->scratch.data);
        void *data = run->outputs[i].data;
        if (place != NULL && data != NULL && data != place) memmove(data, place, model->outputs[i].bytes);
    }
}

/* Run all calls. */
static int32_t walk(NeutronMachine *machine) {
    const NeutronHeader *h = machine->header;
    const NeutronHooks *hooks = machine->hooks;
    const bool trace = hooks && hooks->trace;
    const uint8_t *at = (const uint8_t *)h + h->calls_offset;
    for (uint32_t i = 0; i < h->calls;) {
        uint32_t kind = *(const uint32_t *)(const void *)at & 0xFFFFu;
        machine->call = i;
        if (trace) hooks->trace(hooks->context, i, kind, 1);
        int32_t status = neutron_call(machine, kind, at + 4);
        if (trace) hooks->trace(hooks->context, i, kind, 0);
        if (status != NEUTRON_STATUS_OK) return status;
        for (uint32_t records = record_count(at); records > 0; --records, ++i) {
            at += *(const uint32_t *)(const void *)at >> 16;
        }
    }
    return NEUTRON_STATUS_OK;
}

/* With all threads at once, unless hooks have to be called, which are the calling thread's. */
static int32_t walk_with_threads(NeutronMachine *machine) {
#ifdef NEUTRON_THREADED
    const NeutronHooks *hooks = machine->hooks;
    const bool hooked = hooks && (hooks->copy || hooks->wait || hooks->trace);
    if (machine->threads && machine->threads->count > 1 && !hooked) return neutron_walk_together(machine, walk);
#endif
    return walk(machine);
}

NeutronStatus neutron_run(const NeutronModel *model, const NeutronRun *run) {
    NeutronStatus status = check_run(model, run);
    if (status != NEUTRON_STATUS_OK) return status;
    NeutronMachine machine = {.phase = NEUTRON_PHASE_RUN,
                              .header = model->header,
                              .descriptors = model->inputs,
                              .weights = model->weights,
                              .scratch = (uint8_t *)run->scratch.data,
                              .prefetch = (uint8_t *)run->prefetch.data,
                              .state = (uint8_t *)run->state.data,
                              .inputs = run->inputs,
                              .outputs = run->outputs,
                              .hooks = run->hooks,
                              .threads = run->threads,
                              .stop = run->stop};
    copy_in(model, run);
    status = (NeutronStatus)walk_with_threads(&machine);
    if (status != NEUTRON_STATUS_OK) return status;
    copy_out(model, run);
    return NEUTRON_STATUS_OK;
}
