/* Fuzz target: mutated and random microcodes must end in a status, never in a fault.
 *
 *     fuzz CORPUS SECONDS SEED          mutate for so long
 *     fuzz CORPUS SECONDS SEED KEEP     the same; after a fault the file KEEP has the program that made it
 *     fuzz CORPUS 0 SEED                run the programs as they are, each in every arrangement of memory
 *     fuzz CORPUS 0 SEED APART          the same with no buffers that overlap, as the thread sanitizer wants it
 *
 * Built with the address and undefined-behaviour sanitizers, which abort on the first fault. CORPUS holds
 * programs: {u32 microcode bytes, u32 weights bytes, microcode, weights}*. Each round takes one, changes a few
 * words (mostly to values near an edge, or addresses to those of other operands) and mostly repairs the checksum, so
 * that the checks behind it are reached. What prepare accepts is run: with every buffer a heap block of exactly the
 * size the model asks for, or with all buffers, the weights too, anywhere in one block, so that they overlap; and now
 * and then at addresses that are aligned less than the runtime asks for. Built with FUZZ_POOL, most runs are shared by 2
 * to 8 real threads, and some are stopped on their way. A program may ask for MOST_WORK; one that takes longer than
 * MOST_SECONDS all the same hangs, and that is a fault, too: the program is written to KEEP, or to fuzz-hang.bin.
 * Prints one line: rounds, how many were accepted, how many of those ran to the end.
 *
 * LLVMFuzzerTestOneInput is the same for libFuzzer (tests/runtime/learn.py), which learns from coverage what to change.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "neutron.h"

#ifdef FUZZ_POOL
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "neutron_pool.h"
#endif

#define MAX_PROGRAMS 4096
#define MAX_BUFFER (1u << 20)
#define MOST_WORK (1u << 24)
#define MOST_SECONDS 30u /* twice, for what takes milliseconds: the machine may be busy */

typedef struct {
    uint32_t microcode_bytes, weights_bytes;
    const uint8_t *microcode, *weights;
} Program;

static uint64_t state;

static uint32_t random32(void) { /* splitmix64 */
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)(z ^ (z >> 31));
}

static uint32_t below(uint32_t limit) { return random32() % limit; }

static uint32_t crc32_of(const uint8_t *data, size_t bytes) {
    static uint32_t table[256];
    for (uint32_t i = 0; table[255] == 0 && i < 256u; ++i) {
        uint32_t crc = i;
        for (int b = 0; b < 8; ++b) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
        table[i] = crc;
    }
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ table[(crc ^ data[i]) & 255u];
    return ~crc;
}

static uint32_t odd_value(uint32_t old) {
    static const uint32_t edges[] = {0,          1,          2,          0x7F,       0x80,       0xFF,
                                     0x100,      0xFFFF,     0x10000,    0xFFFFFF,   0x1000000,  0x7FFFFFFF,
                                     0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFF80, 0xFFFFFFE0, 0xFFFF0001};
    switch (below(6)) {
        case 5: return (old & ~0xFFu) | below(5); /* another region */
        case 0: return edges[below(sizeof edges / sizeof *edges)];
        case 1: return old + below(9) - 4u;
        case 2: return old ^ (1u << below(32));
        case 3: return old * 2u;
        default: return random32();
    }
}

/* Make the checksum right. */
static void repair(uint8_t *microcode, uint32_t bytes) {
    memset(microcode + NEUTRON_CRC_OFFSET, 0, 4);
    NeutronHeader header;
    memcpy(&header, microcode, sizeof header);
    uint32_t crc = crc32_of(microcode, header.microcode_bytes <= bytes ? header.microcode_bytes : bytes);
    memcpy(microcode + NEUTRON_CRC_OFFSET, &crc, 4);
}

static void mutate(uint8_t *microcode, uint32_t bytes) {
    if (below(200) == 0) { /* nothing but noise behind the header */
        for (uint32_t i = sizeof(NeutronHeader); i < bytes; ++i) microcode[i] = (uint8_t)random32();
    }
    uint32_t calls = (uint32_t)sizeof(NeutronHeader), words = bytes > calls ? (bytes - calls) / 4u : 0u;
    while (words > 3u && below(3) == 0) { /* one operand where another is: an address is two words */
        memmove(microcode + calls + 4u * below(words - 1u), microcode + calls + 4u * below(words - 1u), 8);
    }
    for (uint32_t count = 1u + below(4); count > 0; --count) {
        uint32_t from = below(8) == 0 ? 0u : (uint32_t)sizeof(NeutronHeader); /* the header now and then */
        if (bytes <= from + 4u) from = 0;
        uint32_t at = from + below((bytes - from) / 4u) * 4u, word;
        memcpy(&word, microcode + at, 4);
        word = odd_value(word);
        memcpy(microcode + at, &word, 4);
    }
    if (below(20) != 0) repair(microcode, bytes);
}

/* A heap block of exactly these bytes, `shift` bytes behind an address that is aligned to 16. */
static uint8_t *exact(size_t bytes, size_t shift) {
    void *block = NULL;
    if (posix_memalign(&block, 16, bytes + shift ? bytes + shift : 1) != 0) abort();
    memset(block, 0x5A, bytes + shift);
    return (uint8_t *)block + shift;
}

static void release(const void *data, size_t shift) { free((uint8_t *)(uintptr_t)data - shift); }

typedef enum { APART, TOGETHER, MISALIGNED, ARRANGEMENTS } Arrangement;

/* The program at hand, for who finds that it hangs; async-signal-safe. */
static Program at_hand;
static const char *hang_path = "fuzz-hang.bin";
static volatile sig_atomic_t alarms; /* of the program at hand: the first may be due to a process that was paused */

static void on_alarm(int number) {
    (void)number;
    if (at_hand.microcode == NULL || ++alarms < 2) {
        alarm(MOST_SECONDS);
        return;
    }
    static const char text[] = "HANG: a program takes longer than MOST_SECONDS\n";
    int file = open(hang_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    bool kept = file >= 0 && write(file, &at_hand, 8) == 8 &&
                write(file, at_hand.microcode, at_hand.microcode_bytes) == (ssize_t)at_hand.microcode_bytes &&
                write(file, at_hand.weights, at_hand.weights_bytes) == (ssize_t)at_hand.weights_bytes;
    _exit(write(2, text, sizeof text - 1u) > 0 && kept ? 3 : 4);
}

#ifdef FUZZ_POOL /* real threads, and one that stops them */
#define MOST_THREADS 8u
static NeutronPool *pools[MOST_THREADS + 1u];
static atomic_uint stop_after, stop; /* how long until a run is stopped (0: it is not), and that it is */

static void *stop_runs(void *argument) {
    for (;;) {
        unsigned left = atomic_load(&stop_after);
        if (left != 0 && atomic_compare_exchange_strong(&stop_after, &left, left - 1u) && left == 1u) {
            atomic_store(&stop, 1);
        }
        if (left == 0) sched_yield();
    }
    return argument;
}

static void start_threads(void) {
    pthread_t stopper;
    for (uint32_t i = 2; i <= MOST_THREADS; ++i) pools[i] = neutron_pool_create(i);
    if (pthread_create(&stopper, NULL, stop_runs, NULL) != 0) abort();
}

static void share_out(NeutronRun *r) {
    r->threads = below(8) == 0 ? NULL : neutron_pool_threads(pools[2u + below(MOST_THREADS - 1u)]);
    atomic_store(&stop_after, 0);
    atomic_store(&stop, 0);
    if (below(8) == 0) {
        r->stop = (const volatile uint32_t *)&stop;
        atomic_store(&stop_after, 1u + below(2000));
    }
}
#else
static void start_threads(void) {}

/* The application's threads, one after the other, the last part first. */
static void run_parts(void *context, uint32_t parts, NeutronTask task, void *argument) {
    (void)context;
    while (parts > 0) task(argument, --parts);
}

static void share_out(NeutronRun *r) {
    static const NeutronThreads threads = {NULL, 3, run_parts, NULL};
    static const volatile uint32_t stopped = 1;
    if (below(4) == 0) r->threads = &threads;
    if (below(64) == 0) r->stop = &stopped;
}
#endif

static uint32_t element(uint32_t dtype) {
    static const uint32_t bytes[] = {
        [NEUTRON_DTYPE_INT16] = 2, [NEUTRON_DTYPE_INT32] = 4, [NEUTRON_DTYPE_FLOAT32] = 4, [NEUTRON_DTYPE_INT64] = 8};
    return dtype < sizeof bytes / sizeof *bytes && bytes[dtype] ? bytes[dtype] : 1u;
}

/* How far behind an aligned address a buffer begins that needs `alignment`. */
static size_t shift_of(uint32_t alignment, Arrangement how) {
    return how == MISALIGNED ? below(16) : alignment * below(16u / alignment);
}

#define MOST 512

/* 1 if the model ran to the end, 0 if not. `arena` holds all buffers if they are TOGETHER. */
static int run(const NeutronModel *model, Arrangement how, uint8_t *arena, size_t arena_bytes) {
    size_t shifts[MOST + 3] = {0}, count = model->input_count + model->output_count;
    NeutronConstBuffer inputs[MOST];
    NeutronBuffer outputs[MOST],
        areas[3] = {{NULL, model->scratch_bytes}, {NULL, model->prefetch_bytes}, {NULL, model->state_bytes}};
    for (size_t i = 0; i < count + 3u; ++i) {
        size_t bytes = i < count ? model->inputs[i].bytes : areas[i - count].bytes;
        uint32_t alignment = i < count ? element(model->inputs[i].dtype) : NEUTRON_ALIGNMENT;
        uint8_t *data;
        if (how == TOGETHER) {
            if (bytes > arena_bytes) return 0;
            data = arena + below((uint32_t)(arena_bytes - bytes) / alignment + 1u) * alignment;
        } else {
            shifts[i] = shift_of(alignment, how);
            data = exact(bytes, shifts[i]);
        }
        if (i < model->input_count) {
            for (size_t k = 0; k < bytes; ++k) data[k] = (uint8_t)random32();
            inputs[i] = (NeutronConstBuffer){data, bytes};
        } else if (i < count) {
            outputs[i - model->input_count] = (NeutronBuffer){data, bytes};
        } else {
            areas[i - count].data = data;
        }
    }
    /* An input in scratch may be there already, an output may stay there. */
    bool in_place = below(2) == 0;
    NeutronConstBuffer given[MOST];
    NeutronBuffer wanted[MOST];
    for (size_t i = 0; i < model->input_count; ++i) {
        given[i] = in_place && model->inputs[i].place != 0 ? (NeutronConstBuffer){NULL, 0} : inputs[i];
    }
    for (size_t i = 0; i < model->output_count; ++i) {
        wanted[i] = in_place && model->outputs[i].place != 0 ? (NeutronBuffer){NULL, 0} : outputs[i];
    }
    NeutronRun r = {.inputs = given,
                    .input_count = model->input_count,
                    .outputs = wanted,
                    .output_count = model->output_count,
                    .scratch = areas[0],
                    .prefetch = areas[1],
                    .state = areas[2]};
    share_out(&r);
    NeutronStatus status = neutron_reset(model, r.state);
    if (status == NEUTRON_STATUS_OK) status = neutron_run(model, &r);
    if (status == NEUTRON_STATUS_OK && model->state_bytes != 0) status = neutron_run(model, &r);
    if (how != TOGETHER) {
        for (size_t i = 0; i < model->input_count; ++i) release(inputs[i].data, shifts[i]);
        for (size_t i = 0; i < model->output_count; ++i) release(outputs[i].data, shifts[model->input_count + i]);
        for (size_t i = 0; i < 3; ++i) release(areas[i].data, shifts[count + i]);
    }
    return status == NEUTRON_STATUS_OK;
}

static bool is_small(const NeutronModel *model) {
    if (model->scratch_bytes > MAX_BUFFER || model->prefetch_bytes > MAX_BUFFER) return false;
    if (model->state_bytes > MAX_BUFFER) return false;
    for (uint32_t i = 0; i < model->input_count + model->output_count; ++i) {
        if (model->inputs[i].bytes > MAX_BUFFER) return false;
    }
    return true;
}

/* Prepare and run; 0: refused, 1: accepted, 2: ran to the end. */
static int try_program(const uint8_t *code, uint32_t bytes, const uint8_t *weights, uint32_t weights_bytes,
                       Arrangement how) {
    size_t code_shift = how == MISALIGNED ? below(16) : 4u * below(4), weights_shift = shift_of(16, how);
    uint8_t *microcode = exact(bytes, code_shift);
    memcpy(microcode, code, bytes);
    at_hand = (Program){bytes, weights_bytes, microcode, weights};
    alarms = 0;
    /* Room for the largest buffer, and a little more, so that everything overlaps in some way. */
    size_t room = 64u + weights_bytes;
    NeutronModel model;
    NeutronImage image = {{microcode, bytes}, {weights, weights_bytes}, 0, MOST_WORK};
    NeutronStatus status = neutron_prepare(&model, &image);
    char text[128];
    neutron_describe(&model, status, text, sizeof text);
    int result = status == NEUTRON_STATUS_OK && is_small(&model);
    if (result) {
        for (uint32_t i = 0; i < model.input_count + model.output_count; ++i) {
            if (64u + model.inputs[i].bytes > room) room = 64u + model.inputs[i].bytes;
        }
        if (64u + model.scratch_bytes > room) room = 64u + model.scratch_bytes;
        if (64u + model.prefetch_bytes > room) room = 64u + model.prefetch_bytes;
        if (64u + model.state_bytes > room) room = 64u + model.state_bytes;
    }
    uint8_t *arena = result && how == TOGETHER ? exact(room, 0) : NULL;
    uint8_t *copy = result && how == MISALIGNED ? exact(weights_bytes, weights_shift) : NULL;
    if (arena) {
        uint8_t *at = arena + 16u * below((uint32_t)(room - weights_bytes) / 16u);
        memcpy(at, weights, weights_bytes);
        image.weights.data = at;
    }
    if (copy) {
        memcpy(copy, weights, weights_bytes);
        image.weights.data = copy;
    }
    if (arena || copy) result = neutron_prepare(&model, &image) == NEUTRON_STATUS_OK;
    if (result) result += run(&model, how, arena, room);
    if (arena) release(arena, 0);
    if (copy) release(copy, weights_shift);
    release(microcode, code_shift);
    return result;
}

/* One program as it stands in a corpus, with any sizes; its checksum is made right. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Program p;
    if (bytes < 8) return 0;
    memcpy(&p, data, 8);
    const uint32_t left = (uint32_t)bytes - 8u;
    if (p.microcode_bytes > left) p.microcode_bytes = left;
    p.weights_bytes = left - p.microcode_bytes;
    uint8_t *code = exact(p.microcode_bytes, 0), *weights = exact(p.weights_bytes, 0);
    memcpy(code, data + 8, p.microcode_bytes);
    memcpy(weights, data + 8 + p.microcode_bytes, p.weights_bytes);
    if (p.microcode_bytes >= sizeof(NeutronHeader)) repair(code, p.microcode_bytes);
    state = crc32_of(data, bytes);
    try_program(code, p.microcode_bytes, weights, p.weights_bytes, (Arrangement)below(ARRANGEMENTS));
    release(code, 0);
    release(weights, 0);
    return 0;
}

#ifndef FUZZ_COVERAGE
/* Write a program as a corpus of its own. */
static void keep(const char *path, const uint8_t *code, uint32_t bytes, const uint8_t *weights,
                 uint32_t weights_bytes) {
    const uint32_t sizes[2] = {bytes, weights_bytes};
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(sizes, sizeof sizes, 1, file) != 1 || fwrite(code, 1, bytes, file) != bytes ||
        fwrite(weights, 1, weights_bytes, file) != weights_bytes || fclose(file) != 0) {
        abort();
    }
}

int main(int count, char **arguments) {
    if (count < 4 || count > 5) return 2;
    FILE *file = fopen(arguments[1], "rb");
    if (file == NULL) return 2;
    static uint8_t corpus[1u << 24];
    static Program programs[MAX_PROGRAMS];
    size_t size = fread(corpus, 1, sizeof corpus, file), at = 0;
    fclose(file);
    uint32_t known = 0;
    while (at + 8 <= size && known < MAX_PROGRAMS) {
        Program *p = &programs[known++];
        memcpy(p, corpus + at, 8);
        p->microcode = corpus + at + 8;
        p->weights = p->microcode + p->microcode_bytes;
        at += 8u + p->microcode_bytes + p->weights_bytes;
    }
    if (known == 0) return 2;
    int seconds = atoi(arguments[2]);
    bool apart = seconds == 0 && count == 5;
    if (count == 5 && !apart) hang_path = arguments[4];
    struct sigaction action = {.sa_flags = SA_RESTART}; /* signal() would forget the function after one call */
    action.sa_handler = on_alarm;
    if (sigaction(SIGALRM, &action, NULL) != 0) return 2;
    alarm(MOST_SECONDS); /* and again and again, whatever the program at hand */
    start_threads();
    time_t end = time(NULL) + seconds;
    state = strtoull(arguments[3], NULL, 10);
    uint64_t rounds = 0, accepted = 0, finished = 0;
    for (uint32_t i = 0; seconds == 0 && i < known; ++i) {
        const Program *p = &programs[i];
        uint8_t *weights = exact(p->weights_bytes, 0);
        memcpy(weights, p->weights, p->weights_bytes);
        const uint32_t times = known > 64u ? 1u : 64u;
        for (uint32_t n = 0; n < times * ARRANGEMENTS; ++n, ++rounds) {
            Arrangement how = apart ? APART : (Arrangement)(n % ARRANGEMENTS);
            int result = try_program(p->microcode, p->microcode_bytes, weights, p->weights_bytes, how);
            accepted += result > 0;
            finished += result > 1;
        }
        release(weights, 0);
    }
    while (time(NULL) < end) {
        const Program *p = &programs[below(known)];
        uint8_t *weights = exact(p->weights_bytes, 0), *changed = exact(p->microcode_bytes, 0);
        memcpy(weights, p->weights, p->weights_bytes);
        for (int i = 0; i < 64; ++i, ++rounds) { /* the weights are the dear part to copy */
            /* Exactly as long as it is, or cut. */
            uint32_t bytes = below(50) == 0 ? below(p->microcode_bytes) : p->microcode_bytes;
            memcpy(changed, p->microcode, bytes);
            if (bytes >= sizeof(NeutronHeader) && below(100) != 0) mutate(changed, bytes);
            if (p->weights_bytes && below(4) == 0) weights[below(p->weights_bytes)] ^= (uint8_t)(1u << below(8));
            uint32_t way = below(8);
            Arrangement how = way == 0 ? MISALIGNED : way < 4 ? TOGETHER : APART;
            if (count == 5) keep(arguments[4], changed, bytes, weights, p->weights_bytes);
            int result = try_program(changed, bytes, weights, p->weights_bytes, how);
            accepted += result > 0;
            finished += result > 1;
        }
        release(weights, 0);
        release(changed, 0);
    }
    printf("%llu rounds, %llu accepted, %llu ran to the end\n", (unsigned long long)rounds,
           (unsigned long long)accepted, (unsigned long long)finished);
    return 0;
}
#endif
