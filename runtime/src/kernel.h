/* What kernels share: the machine they run on, checks of addresses, row addressing. Internal. */
#ifndef NEUTRON_KERNEL_H
#define NEUTRON_KERNEL_H

#include <stdbool.h>
#include <string.h>

#include "neutron.h"

#if defined(__x86_64__) || defined(__aarch64__)
#define NEUTRON_THREADED 1 /* calls may be split between threads; a microcontroller has one core */
#endif

/* A kernel is called twice: once in prepare, to check its parameters against the sizes of the regions, and in
 * every run. It is one function so that the kernel table has one entry for each, and a kernel cannot be linked
 * without its check. */
typedef enum { NEUTRON_PHASE_CHECK, NEUTRON_PHASE_RUN } NeutronPhase;

typedef struct NeutronMachine {
    NeutronPhase phase;
    const NeutronHeader *header;
    const NeutronDescriptor *descriptors; /* inputs, then outputs */
    const uint8_t *weights;
    /* Null in the check phase: */
    uint8_t *scratch;
    uint8_t *prefetch;
    uint8_t *state;
    const NeutronConstBuffer *inputs;
    const NeutronBuffer *outputs;
    const NeutronHooks *hooks;
    const NeutronThreads *threads;
    struct NeutronMember *member;  /* in a walk together (parallel.h): the thread's own state */
    uint32_t call;                 /* the number of the call that runs */
    const volatile uint32_t *stop; /* see NeutronRun */
    uint64_t *work;                /* in the check phase: what the calls so far will take */
} NeutronMachine;

#define NEUTRON_TRY(expression)                                 \
    do {                                                        \
        int32_t try_status = (expression);                      \
        if (try_status != NEUTRON_STATUS_OK) return try_status; \
    } while (0)

#define NEUTRON_REQUIRE(condition)                                   \
    do {                                                             \
        if (!(condition)) return (int32_t)NEUTRON_STATUS_PARAMETERS; \
    } while (0)

/* Whether the words of a record are in their ranges, as a table of neutron_microcode.h has them (src/check.c). */
bool neutron_in_range(const void *parameters, const uint8_t *ranges);

/* The body every kernel has: check in the check phase, run in the run phase. The ranges of single fields are part of
 * the record's definition and checked by what is generated from it; `check` has the rest. */
#define NEUTRON_KERNEL(function, Type, check, run)                            \
    int32_t function(const NeutronMachine *machine, const void *parameters) { \
        const Type *p = (const Type *)parameters;                             \
        if (machine->phase == NEUTRON_PHASE_RUN) return run(machine, p);      \
        static const uint8_t ranges[] = {Type##_RANGES};                      \
        if (!neutron_in_range(p, ranges)) return NEUTRON_STATUS_PARAMETERS;   \
        neutron_count(machine, 1, NEUTRON_CALL_WORK);                         \
        return check(machine, p);                                             \
    }

/* Count, in the check phase, `times` times what takes as long as `each` multiplications of a convolution. Every kernel
 * counts all that its run does. */
void neutron_count(const NeutronMachine *machine, uint64_t times, uint64_t each);
#define NEUTRON_ELEMENT_WORK 8u /* an element, or a byte, of what is no product */
#define NEUTRON_CALL_WORK 100u  /* a call, whatever it does */

/* Numbers that stay the largest one where a product or sum would be larger. */
uint64_t neutron_times(uint64_t a, uint64_t b);
uint64_t neutron_plus(uint64_t a, uint64_t b);

/* Whether the caller wants the run to end. */
static inline int32_t neutron_check_stop(const NeutronMachine *machine) {
#ifdef __GNUC__ /* several threads read it while another writes */
    return machine->stop != NULL && __atomic_load_n(machine->stop, __ATOMIC_RELAXED) ? NEUTRON_STATUS_STOPPED
                                                                                     : NEUTRON_STATUS_OK;
#else
    return machine->stop != NULL && *machine->stop ? NEUTRON_STATUS_STOPPED : NEUTRON_STATUS_OK;
#endif
}

/* Bytes of an element of a NeutronDtype. */
static inline uint32_t neutron_element_bytes(uint32_t dtype) {
    switch (dtype) {
        case NEUTRON_DTYPE_INT16: return 2;
        case NEUTRON_DTYPE_INT32:
        case NEUTRON_DTYPE_FLOAT32: return 4;
        case NEUTRON_DTYPE_INT64: return 8;
        default: return 1;
    }
}

/* Bytes of a kernel's record, the first word included; of a CASCADE without its steps, of an ISLAND
 * without its code, of a LOOP without its moves. */
extern const uint16_t neutron_record_bytes[NEUTRON_KERNEL_KINDS];

/* Whether a record of a kernel can have this size. */
bool neutron_is_record(uint32_t kind, uint32_t size);

/* A kernel's form, a NeutronForm: how its parameters begin, and so how a call of it is narrowed to a part. */
extern const uint8_t neutron_forms[NEUTRON_KERNEL_KINDS];

/* A copy of any call's parameters, to be narrowed by its form. */
typedef union {
    NeutronWindowForm window; /* of a POOL too */
    NeutronWalkForm walk;
    NeutronRowsForm rows;
    NeutronProductForm product;
    NeutronMoveForm move;
    NeutronResizeForm resize;
    NeutronAccumulateForm accumulate;
#define NEUTRON_MEMBER(kind, function, Type, form) Type kind##_parameters;
    NEUTRON_FOR_EACH_KERNEL(NEUTRON_MEMBER)
#undef NEUTRON_MEMBER
} NeutronCallCopy;

/* --- check phase (src/check.c) --- */

typedef enum { NEUTRON_READ, NEUTRON_WRITE } NeutronAccess;

/* `bytes` from `ref` on lie in its region, at an address that is a multiple of `alignment`: the caller's inputs and
 * outputs are aligned to their elements only, all other regions to NEUTRON_ALIGNMENT. */
int32_t neutron_check_bytes(const NeutronMachine *machine, NeutronRef ref, uint64_t bytes, uint32_t alignment,
                            NeutronAccess access);

/* A table of int32 that says where to read: in the weights or the prefetch area, where no kernel but PREFETCH writes.
 * A prefetch may still be under way while the kernel runs, so a run checks each entry in the copy that it uses. */
int32_t neutron_check_table(const NeutronMachine *machine, NeutronRef ref, uint64_t entries);

/* All elements of a strided block lie in the region of `ref`; those of a written block do not all overlap. */
int32_t neutron_check_strided(const NeutronMachine *machine, NeutronRef ref, const uint32_t dims[NEUTRON_MAX_RANK],
                              const int32_t strides[NEUTRON_MAX_RANK], uint32_t element_bytes, NeutronAccess access);

/* The product of the dims, or UINT64_MAX when it, or a dim, is too large. */
uint64_t neutron_elements(const uint32_t dims[NEUTRON_MAX_RANK]);

/* A window kernel's geometry is sane, both feature maps lie in their regions, and with rolling buffers every
 * row the range y0..y1 reads is held at the same time. `depth` is how many values an output takes from each tap. */
int32_t neutron_check_window(const NeutronMachine *machine, const NeutronWindow *window, const NeutronView *input,
                             const NeutronView *output, uint32_t depth);

/* A reduction's input, walked over kept x reduced dims, lies in its region; its dense output does too. */
int32_t neutron_check_reduction(const NeutronMachine *machine, NeutronRef input, NeutronRef output,
                                const uint32_t kept[NEUTRON_MAX_RANK], const int32_t kept_strides[NEUTRON_MAX_RANK],
                                const uint32_t reduced[NEUTRON_MAX_RANK],
                                const int32_t reduced_strides[NEUTRON_MAX_RANK]);

/* Rows y0 .. y1 - 1 of a map, `row` bytes apart, of which `used` are read, lie in the region of `ref` and are held at
 * the same time. */
int32_t neutron_check_rows(const NeutronMachine *machine, NeutronRef ref, uint32_t height, uint32_t row, uint64_t used,
                           uint32_t y0, uint32_t y1);

int32_t neutron_check_broadcast(const NeutronMachine *machine, const NeutronBroadcast *walk);

/* --- run phase --- */

static inline const uint8_t *neutron_read(const NeutronMachine *machine, NeutronRef ref) {
    switch ((NeutronRegion)ref.region) {
        case NEUTRON_REGION_INPUT: return (const uint8_t *)machine->inputs[ref.index].data + ref.offset;
        case NEUTRON_REGION_OUTPUT: return (const uint8_t *)machine->outputs[ref.index].data + ref.offset;
        case NEUTRON_REGION_SCRATCH: return machine->scratch + ref.offset;
        case NEUTRON_REGION_WEIGHTS: return machine->weights + ref.offset;
        case NEUTRON_REGION_PREFETCH: return machine->prefetch + ref.offset;
        case NEUTRON_REGION_STATE: return machine->state + ref.offset;
    }
    return NULL;
}

/* The check phase has refused every write to another region. */
static inline uint8_t *neutron_write(const NeutronMachine *machine, NeutronRef ref) {
    switch ((NeutronRegion)ref.region) {
        case NEUTRON_REGION_OUTPUT: return (uint8_t *)machine->outputs[ref.index].data + ref.offset;
        case NEUTRON_REGION_SCRATCH: return machine->scratch + ref.offset;
        case NEUTRON_REGION_PREFETCH: return machine->prefetch + ref.offset;
        case NEUTRON_REGION_STATE: return machine->state + ref.offset;
        default: return NULL;
    }
}

/* Rows of a feature map that are in memory: the rolling buffer's, or all. */
static inline uint32_t neutron_rows(const NeutronView *view, uint32_t height) {
    return view->ref.rows ? view->ref.rows : height;
}

/* The byte offset of row y of image b. */
static inline size_t neutron_row_offset(const NeutronView *view, uint32_t height, uint32_t b, uint32_t y) {
    uint32_t rows = neutron_rows(view, height);
    return (size_t)view->row * ((size_t)b * rows + (y < rows ? y : y % rows)); /* a division only where one is needed */
}

/* The first and one past the last kernel tap that falls on 0 <= origin + tap * dilation < size. */
static inline void neutron_taps(int32_t origin, uint32_t taps, uint32_t dilation, uint32_t size, uint32_t *first,
                                uint32_t *end) {
    int32_t d = (int32_t)dilation;
    int32_t low = origin >= 0 ? 0 : (-origin + d - 1) / d;
    int32_t high = origin >= (int32_t)size ? 0 : ((int32_t)size - 1 - origin) / d + 1;
    if (high > (int32_t)taps) high = (int32_t)taps;
    if (low > high) low = high;
    *first = (uint32_t)low;
    *end = (uint32_t)high;
}

/* Odometer over up to six dims: neutron_next moves `index` on and keeps the byte offsets of N operands. Used for
 * the outer dims; the innermost is the caller's loop. Returns false after the last. */
static inline bool neutron_next(uint32_t index[NEUTRON_MAX_RANK], const uint32_t dims[NEUTRON_MAX_RANK],
                                uint32_t count) {
    for (uint32_t d = count; d-- > 0;) {
        if (++index[d] < dims[d]) return true;
        index[d] = 0;
    }
    return false;
}

static inline ptrdiff_t neutron_offset(const uint32_t index[NEUTRON_MAX_RANK], const int32_t strides[NEUTRON_MAX_RANK],
                                       uint32_t count) {
    ptrdiff_t offset = 0;
    for (uint32_t d = 0; d < count; ++d) offset += (ptrdiff_t)index[d] * strides[d];
    return offset;
}

#endif
