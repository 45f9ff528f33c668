/* The OpenNeutron runtime: checks a microcode once, then runs it as often as wanted.
 *
 *     NeutronModel model;
 *     NeutronStatus status = neutron_prepare(&model, &image);
 *     status = neutron_reset(&model, run.state);  (only for a model that remembers: state_bytes is not 0)
 *     status = neutron_run(&model, &run);
 *
 * All memory is the caller's; nothing is allocated and nothing is kept in globals. A prepared model is never
 * written again, so that several threads may run it at once, each with its own buffers. `neutron_prepare` checks
 * every address and size of the microcode; a run reads and writes only the buffers it was given, whatever the
 * bytes of the microcode and of the weights are. The microcode and the weights must outlive the model.
 */
#ifndef NEUTRON_H
#define NEUTRON_H

#include <stddef.h>
#include <stdint.h>

#include "neutron_microcode.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NEUTRON_RUNTIME_VERSION_MAJOR 0
#define NEUTRON_RUNTIME_VERSION_MINOR 1
#define NEUTRON_RUNTIME_VERSION_PATCH 0

/* X(NAME, message): every status and the sentence that explains it. */
#define NEUTRON_FOR_EACH_STATUS(X)                                                          \
    X(OK, "no error")                                                                       \
    X(NULL_ARGUMENT, "a required pointer is null")                                          \
    X(TRUNCATED, "the microcode is shorter than its header says")                           \
    X(MAGIC, "these bytes are not an OpenNeutron microcode")                                \
    X(FORMAT_VERSION, "the microcode has another format version than this runtime")         \
    X(TARGET, "the microcode was compiled for another target")                              \
    X(HEADER, "the microcode's header contradicts itself")                                  \
    X(CHECKSUM, "the microcode is damaged: its checksum does not match")                    \
    X(WEIGHTS_SIZE, "the weights are shorter than the microcode says")                      \
    X(WEIGHTS_CHECKSUM, "the weights are damaged: their checksum does not match")           \
    X(CALL, "a kernel call in the microcode is malformed")                                  \
    X(KERNEL_UNKNOWN, "the microcode needs a kernel this runtime does not know")            \
    X(KERNEL_MISSING, "the microcode needs a kernel that is not linked into this firmware") \
    X(PARAMETERS, "a kernel call has parameters outside the kernel's range")                \
    X(BOUNDS, "a kernel call would read or write outside its memory region")                \
    X(READ_ONLY, "a kernel call would write to an input or to the weights")                 \
    X(ALIGNMENT, "a buffer or an address is not aligned as the runtime needs")              \
    X(NOT_PREPARED, "the model was not prepared, or preparing it failed")                   \
    X(INPUT_COUNT, "the number of inputs is not the model's")                               \
    X(INPUT_SIZE, "an input buffer is smaller than the model's input")                      \
    X(OUTPUT_COUNT, "the number of outputs is not the model's")                             \
    X(OUTPUT_SIZE, "an output buffer is smaller than the model's output")                   \
    X(SCRATCH_SIZE, "the scratch buffer is smaller than the model needs")                   \
    X(PREFETCH_SIZE, "the prefetch buffer is smaller than the model needs")                 \
    X(DATA, "an index of the caller's, or a table in the weights, is out of range")         \
    X(COPY_FAILED, "the copy or wait callback reported an error")                           \
    X(WORK, "the microcode asks for more work than the caller allows")                      \
    X(STOPPED, "the run was stopped by the caller")                                         \
    X(STATE_SIZE, "the buffer for the model's state is smaller than the model needs")

typedef enum NeutronStatus {
#define NEUTRON_STATUS_VALUE(name, message) NEUTRON_STATUS_##name,
    NEUTRON_FOR_EACH_STATUS(NEUTRON_STATUS_VALUE)
#undef NEUTRON_STATUS_VALUE
        NEUTRON_STATUS_COUNT
} NeutronStatus;

typedef struct NeutronBuffer {
    void *data;
    size_t bytes;
} NeutronBuffer;

typedef struct NeutronConstBuffer {
    const void *data;
    size_t bytes;
} NeutronConstBuffer;

/* The work a model may ask for where the caller names no limit: a thousand times that of a large network, and minutes
 * on the machine. */
#ifndef NEUTRON_MOST_WORK
#if UINTPTR_MAX > UINT32_MAX
#define NEUTRON_MOST_WORK (UINT64_C(1) << 42)
#else
#define NEUTRON_MOST_WORK (UINT64_C(1) << 36)
#endif
#endif

/* What a compiled model consists of. `microcode` must be aligned to 4 bytes, `weights` to 16.
 *
 * A few hundred bytes can ask for years of work: loops multiply. `neutron_prepare` counts beforehand, in
 * multiplications of a convolution (an element of anything else counts as eight, a call as a hundred), and refuses more
 * than `most_work` with NEUTRON_STATUS_WORK. */
typedef struct NeutronImage {
    NeutronConstBuffer microcode;
    NeutronConstBuffer weights;
    int check_weights;  /* not 0: also verify the checksum of the weights (reads all of them) */
    uint64_t most_work; /* 0: NEUTRON_MOST_WORK */
} NeutronImage;

/* A prepared model. Read only; the fields after `problem_kernel` are the runtime's own. */
typedef struct NeutronModel {
    uint32_t input_count, output_count;
    const NeutronDescriptor *inputs; /* input_count of them, then output_count outputs */
    const NeutronDescriptor *outputs;
    uint64_t work; /* of one run, at most; UINT64_MAX if it is no number of 64 bits */
    uint32_t scratch_bytes, prefetch_bytes, weights_bytes, call_count;
    uint32_t converter_version;
    uint32_t state_count, state_bytes; /* what the model remembers from run to run */
    const NeutronState *states;        /* state_count of them: name, type, shape, where in the state's buffer */
    int32_t problem_call;              /* after an error: the call it is in, or -1 */
    uint32_t problem_kernel;           /* after an error: that call's kernel */
    const NeutronHeader *header;
    const uint8_t *weights;
    uint32_t prepared;
} NeutronModel;

/* Callbacks of the application; all may be null. A null `copy` copies with the CPU.
 * `copy` starts a transfer on a channel, `wait` returns when the channel's transfers are done; both return 0
 * if all is well. `trace` is called before (begin 1) and after (begin 0) every kernel call; within a cascade
 * also around every step, with the number and kernel of the stage's call. */
typedef struct NeutronHooks {
    void *context;
    int32_t (*copy)(void *context, void *destination, const void *source, size_t bytes, uint32_t channel);
    int32_t (*wait)(void *context, uint32_t channel);
    void (*trace)(void *context, uint32_t call, uint32_t kernel, int begin);
} NeutronHooks;

/* Threads that a run may use, which are the application's: `run` calls the task for the parts 0 .. parts - 1, at the
 * same time or not, in any order, and returns when all are done. Where they run at the same time, a part best goes to
 * the same thread in every run: it finds its data in its cache. `yield` may be null; it lets other threads run, and
 * is called by one that has waited for another for long. */
typedef void (*NeutronTask)(void *argument, uint32_t part);
typedef struct NeutronThreads {
    void *context;
    uint32_t count;
    void (*run)(void *context, uint32_t parts, NeutronTask task, void *argument);
    void (*yield)(void);
} NeutronThreads;

/* The buffers of one run. `scratch` and `prefetch` must be aligned to 16 bytes, inputs and outputs to their
 * element size; a size 0 needs no buffer. Inputs and outputs with a place in scratch (`neutron_place`) need none
 * either: with `data` null an input is there already, and an output stays there; otherwise they are copied. Such an
 * input is overwritten by the run, and an output is there until the next.
 *
 * Another thread or an interrupt ends a run by writing anything but 0 to the word that `stop` points to, which is read
 * between calls and between the rows of those that may be long. The outputs are undefined then. */
typedef struct NeutronRun {
    const NeutronConstBuffer *inputs;
    size_t input_count;
    const NeutronBuffer *outputs;
    size_t output_count;
    NeutronBuffer scratch;
    NeutronBuffer prefetch;
    const NeutronHooks *hooks;
    const NeutronThreads *threads; /* null: all is computed by the calling thread */
    const volatile uint32_t *stop; /* null, or a word that ends the run with NEUTRON_STATUS_STOPPED */
    NeutronBuffer state;           /* state_bytes, aligned to 16: read and written by each run, see neutron_reset */
} NeutronRun;

/* Check a compiled model and fill in `model`. On an error `problem_call` and `problem_kernel` say where. */
NeutronStatus neutron_prepare(NeutronModel *model, const NeutronImage *image);

/* Write the initial values of what a model remembers to `state`, which must be aligned to 16 bytes: before the first
 * run, and wherever a sequence begins. The buffer is one instance of the model: give it to every run of a sequence, and
 * to no two runs at once. After a run that failed it holds anything. Does nothing for a model without state. */
NeutronStatus neutron_reset(const NeutronModel *model, NeutronBuffer state);

/* Compute the outputs for the inputs. */
NeutronStatus neutron_run(const NeutronModel *model, const NeutronRun *run);

/* Where an input or output of a model lies in `scratch`; null if it is in a buffer of its own. */
void *neutron_place(const NeutronDescriptor *port, void *scratch);

/* The sentence for a status; never null. */
const char *neutron_status_message(NeutronStatus status);

/* The name of a kernel kind, or "?"; never null. */
const char *neutron_kernel_name(uint32_t kind);

/* Write "message (call 3, CONV_2D)" to `text`, cut to `bytes` with the final 0; returns `text`. */
const char *neutron_describe(const NeutronModel *model, NeutronStatus status, char *text, size_t bytes);

/* The kernel table: a function for each kind, or null for a kernel that is not linked. The library's own table
 * is weak and holds all; a strong definition in the application replaces it, and the linker drops the rest. */
struct NeutronMachine;
extern int32_t (*const neutronKernels[NEUTRON_KERNEL_KINDS])(const struct NeutronMachine *machine,
                                                             const void *parameters);

/* The kernels themselves, for such a table. */
#define NEUTRON_DECLARE_KERNEL(kind, function, parameters_type, form) \
    int32_t function(const struct NeutronMachine *machine, const void *parameters);
NEUTRON_FOR_EACH_KERNEL(NEUTRON_DECLARE_KERNEL)
#undef NEUTRON_DECLARE_KERNEL

#ifdef __cplusplus
}
#endif

#endif
