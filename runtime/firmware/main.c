/* Runs every delegate of a program once: inputs from inputs.bin, outputs to outputs.bin, a report as text.
 *
 * neutron_pools.h and program.S are made for each program by `openneutron firmware`: how much memory it needs, and its
 * microcode and weights. inputs.bin has the inputs of all delegates one after the other, outputs.bin their
 * outputs; where there are more inputs the delegates are run again, and go on from what they remember. The lines of the report are read by openneutron.firmware.emulator.
 */
#include <string.h>

#include "board.h"
#include "neutron.h"
#include "neutron_pools.h"
#include "program.h"
#include "semihosting.h"

/* Weights that are prefetched are read by the copy callback only; others by the kernels, where they lie. */
#ifndef FIRMWARE_CLOSE_WEIGHTS
#define FIRMWARE_CLOSE_WEIGHTS(model) ((model)->prefetch_bytes != 0)
#endif

extern uint8_t __weights_start[], __weights_end[];

#define PORTS 255u /* the payload format has no more */
#define POOL(bytes) ((bytes) != 0 ? (bytes) : 16u)
#define POOL_SECTION __attribute__((section(".pools"), aligned(16)))

static uint8_t scratch_pool[POOL(NEUTRON_SCRATCH_BYTES)] POOL_SECTION;
static uint8_t prefetch_pool[POOL(NEUTRON_PREFETCH_BYTES)] POOL_SECTION;
static uint8_t input_pool[POOL(NEUTRON_INPUT_BYTES)] POOL_SECTION;
static uint8_t output_pool[POOL(NEUTRON_OUTPUT_BYTES)] POOL_SECTION;
static uint8_t state_pool[POOL(NEUTRON_STATE_BYTES)] POOL_SECTION; /* of all delegates, one behind the other */

static NeutronConstBuffer inputs[PORTS];
static NeutronBuffer outputs[PORTS];

/* Calls and ticks of every kernel of a delegate; a cascade's or loop's own ticks are those outside of its steps. */
typedef struct {
    uint64_t began, ticks[NEUTRON_KERNEL_KINDS], group_began, in_steps;
    uint32_t calls[NEUTRON_KERNEL_KINDS];
    bool closed;
} Meter;

static Meter meter;

static void trace(void *context, uint32_t call, uint32_t kernel, int begin) {
    Meter *m = (Meter *)context;
    (void)call;
    bool group = kernel == NEUTRON_KERNEL_CASCADE || kernel == NEUTRON_KERNEL_LOOP;
    uint64_t now = board_ticks();
    if (begin && group) {
        m->in_steps = 0;
        m->group_began = board_ticks();
    } else if (begin) {
        m->began = board_ticks();
    } else {
        uint64_t ticks = group ? now - m->group_began - m->in_steps : now - m->began;
        m->in_steps += ticks;
        m->ticks[kernel] += ticks;
        ++m->calls[kernel];
    }
}

static void close_weights(bool closed) {
    if (closed) board_close_flash(__weights_start, (uint32_t)(__weights_end - __weights_start));
}

static int32_t copy(void *context, void *destination, const void *source, size_t bytes, uint32_t channel) {
    const Meter *m = (const Meter *)context;
    (void)channel; /* a board would start a DMA on it, and wait for it in the wait callback */
    board_open_flash();
    memcpy(destination, source, bytes);
    close_weights(m->closed);
    return 0;
}

static void text_and_number(const char *text, uint64_t number) {
    semihosting_text(text);
    semihosting_number(number);
}

static bool failed(uint32_t delegate, const char *what, const char *why) {
    text_and_number("error delegate ", delegate);
    semihosting_text(": ");
    semihosting_text(what);
    semihosting_text(": ");
    semihosting_text(why);
    semihosting_text("\n");
    return false;
}

static size_t padded(size_t bytes) { return (bytes + 15u) & ~(size_t)15u; }

/* An input or output that has a place in scratch is read and written there. */
static bool read_inputs(const NeutronModel *model, int32_t file) {
    size_t at = 0;
    for (uint32_t i = 0; i < model->input_count; ++i) {
        size_t bytes = model->inputs[i].bytes;
        void *data = neutron_place(&model->inputs[i], scratch_pool);
        if (data == NULL) {
            if (at + bytes > sizeof input_pool) return false;
            data = input_pool + at;
            at += padded(bytes);
        }
        if (!semihosting_read(file, data, bytes)) return false;
        inputs[i] = (NeutronConstBuffer){data, bytes};
    }
    return true;
}

static bool write_outputs(const NeutronModel *model, int32_t file) {
    for (uint32_t i = 0; i < model->output_count; ++i) {
        if (!semihosting_write(file, outputs[i].data, outputs[i].bytes)) return false;
    }
    return true;
}

static void place_outputs(const NeutronModel *model) {
    size_t at = 0;
    for (uint32_t i = 0; i < model->output_count; ++i) {
        void *place = neutron_place(&model->outputs[i], scratch_pool);
        outputs[i] = (NeutronBuffer){place != NULL ? place : output_pool + at, model->outputs[i].bytes};
        at += place != NULL ? 0 : padded(model->outputs[i].bytes);
    }
}

static void report(uint32_t delegate) {
    for (uint32_t kind = 0; kind < NEUTRON_KERNEL_KINDS; ++kind) {
        if (meter.calls[kind] == 0) continue;
        text_and_number("kernel ", delegate);
        semihosting_text(" ");
        semihosting_text(neutron_kernel_name(kind));
        text_and_number(" ", meter.calls[kind]);
        text_and_number(" ", meter.ticks[kind]);
        semihosting_text("\n");
    }
}

/* A watchdog's interrupt may write to this: the delegate that runs ends with a status. */
volatile uint32_t firmware_stop;

/* What the program remembers starts from its initial values, now: the next inputs begin a sequence. */
static bool in_sequence;  /* a frame of it has run */
static uint32_t state_at; /* of the delegate that runs, in the pool */

typedef enum { DONE, NO_INPUTS, FAILED } Outcome;

static Outcome run_delegate(uint32_t number, int32_t from, int32_t to) {
    const FirmwareDelegate *delegate = &firmware_delegates[number];
    NeutronImage image = {{delegate->microcode, delegate->microcode_bytes},
                          {delegate->weights, delegate->weights_bytes},
                          1,
                          NEUTRON_MOST_WORK};
    static NeutronModel model;
    static char text[160];
    NeutronStatus status = neutron_prepare(&model, &image);
    if (status != NEUTRON_STATUS_OK) {
        failed(number, "prepare", neutron_describe(&model, status, text, sizeof text));
        return FAILED;
    }
    if (model.scratch_bytes > sizeof scratch_pool || model.state_bytes > sizeof state_pool - state_at) {
        failed(number, "scratch", "neutron_pools.h is not of this program");
        return FAILED;
    }
    NeutronBuffer state = {state_pool + state_at, model.state_bytes};
    state_at += model.state_bytes;
    if (!in_sequence) status = neutron_reset(&model, state);
    if (status != NEUTRON_STATUS_OK) {
        failed(number, "reset", neutron_describe(&model, status, text, sizeof text));
        return FAILED;
    }
    place_outputs(&model);
    /* Memory after reset holds anything on a board, but zeros in the emulator: make it something no kernel expects. */
    memset(scratch_pool, 0xA5, sizeof scratch_pool);
    memset(prefetch_pool, 0xA5, sizeof prefetch_pool);
    memset(output_pool, 0xA5, sizeof output_pool);
    if (from < 0 || !read_inputs(&model, from)) return NO_INPUTS;
    memset(&meter, 0, sizeof meter);
    meter.closed = FIRMWARE_CLOSE_WEIGHTS(&model);
    NeutronHooks hooks = {.context = &meter, .copy = copy, .trace = trace};
    NeutronRun run = {.inputs = inputs,
                      .input_count = model.input_count,
                      .outputs = outputs,
                      .output_count = model.output_count,
                      .scratch = {scratch_pool, NEUTRON_SCRATCH_BYTES},
                      .prefetch = {prefetch_pool, NEUTRON_PREFETCH_BYTES},
                      .hooks = &hooks,
                      .stop = &firmware_stop,
                      .state = state};
    close_weights(meter.closed);
    status = neutron_run(&model, &run);
    board_open_flash();
    if (status != NEUTRON_STATUS_OK) {
        failed(number, "run", neutron_describe(&model, status, text, sizeof text));
        return FAILED;
    }
    if (!in_sequence) report(number);
    if (to >= 0 && write_outputs(&model, to)) return DONE;
    failed(number, "outputs", "outputs.bin cannot be written");
    return FAILED;
}

/* All delegates once; false at the end of the inputs, or if one fails. */
static bool run_frame(int32_t from, int32_t to, bool *ok) {
    state_at = 0;
    for (uint32_t i = 0; i < NEUTRON_DELEGATES; ++i) {
        Outcome outcome = run_delegate(i, from, to);
        if (outcome == DONE) continue;
        *ok = outcome == NO_INPUTS && in_sequence && i == 0;
        if (outcome == NO_INPUTS && !*ok) failed(i, "inputs", "inputs.bin is missing or too short");
        return false;
    }
    in_sequence = true;
    return true;
}

int main(void) {
    board_protect();
    int32_t from = semihosting_open("inputs.bin", SEMIHOSTING_READ);
    int32_t to = semihosting_open("outputs.bin", SEMIHOSTING_WRITE);
    bool ok = true;
    while (run_frame(from, to, &ok)) {}
    if (to >= 0) semihosting_close(to);
    text_and_number("stack ", board_stack_bytes());
    semihosting_text(ok ? "\ndone\n" : "\n");
    return ok ? 0 : 1;
}
