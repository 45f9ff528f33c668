/* Fuzz target: mutated and random microcodes must end in a status, never in a fault.
 *
 *     fuzz CORPUS SECONDS SEED
 *
 * Built with the address and undefined-behaviour sanitizers, which abort on the first fault. CORPUS holds valid
 * programs: {u32 microcode bytes, u32 weights bytes, microcode, weights}*. Each round takes one, changes a few
 * words (mostly to values near an edge) and mostly repairs the checksum, so that the checks behind it are reached.
 * What prepare accepts is run, with every buffer a heap block of exactly the size the model asks for.
 * Prints one line: rounds, how many were accepted, how many of those ran to the end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "neutron.h"

#define MAX_PROGRAMS 4096
#define MAX_BUFFER (1u << 20)

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
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; ++i) {
        crc ^= data[i];
        for (int b = 0; b < 8; ++b) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

static uint32_t odd_value(uint32_t old) {
    static const uint32_t edges[] = {0,          1,          2,          0x7F,       0x80,       0xFF,
                                     0x100,      0xFFFF,     0x10000,    0xFFFFFF,   0x1000000,  0x7FFFFFFF,
                                     0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFF80, 0xFFFFFFE0, 0xFFFF0001};
    switch (below(5)) {
        case 0: return edges[below(sizeof edges / sizeof *edges)];
        case 1: return old + below(9) - 4u;
        case 2: return old ^ (1u << below(32));
        case 3: return old * 2u;
        default: return random32();
    }
}

static void mutate(uint8_t *microcode, uint32_t bytes) {
    if (below(200) == 0) { /* nothing but noise behind the header */
        for (uint32_t i = sizeof(NeutronHeader); i < bytes; ++i) microcode[i] = (uint8_t)random32();
    }
    for (uint32_t count = 1u + below(4); count > 0; --count) {
        uint32_t from = below(8) == 0 ? 0u : (uint32_t)sizeof(NeutronHeader); /* the header now and then */
        if (bytes <= from + 4u) from = 0;
        uint32_t at = from + below((bytes - from) / 4u) * 4u, word;
        memcpy(&word, microcode + at, 4);
        word = odd_value(word);
        memcpy(microcode + at, &word, 4);
    }
    if (below(20) != 0) {
        memset(microcode + NEUTRON_CRC_OFFSET, 0, 4);
        NeutronHeader header;
        memcpy(&header, microcode, sizeof header);
        uint32_t crc = crc32_of(microcode, header.microcode_bytes <= bytes ? header.microcode_bytes : bytes);
        memcpy(microcode + NEUTRON_CRC_OFFSET, &crc, 4);
    }
}

static void *exact(size_t bytes) {
    void *block = NULL;
    if (posix_memalign(&block, 16, bytes ? bytes : 1) != 0) abort();
    memset(block, 0x5A, bytes);
    return block;
}

/* 1 if the model ran to the end, 0 if not. */
static int run(const NeutronModel *model) {
    if (model->scratch_bytes > MAX_BUFFER || model->prefetch_bytes > MAX_BUFFER) return 0;
    for (uint32_t i = 0; i < model->input_count + model->output_count; ++i) {
        if (model->inputs[i].bytes > MAX_BUFFER) return 0;
    }
    NeutronConstBuffer inputs[256];
    NeutronBuffer outputs[256];
    for (uint32_t i = 0; i < model->input_count; ++i) {
        uint8_t *data = exact(model->inputs[i].bytes);
        for (uint32_t k = 0; k < model->inputs[i].bytes; ++k) data[k] = (uint8_t)random32();
        inputs[i] = (NeutronConstBuffer){data, model->inputs[i].bytes};
    }
    for (uint32_t i = 0; i < model->output_count; ++i) {
        outputs[i] = (NeutronBuffer){exact(model->outputs[i].bytes), model->outputs[i].bytes};
    }
    NeutronRun r = {.inputs = inputs,
                    .input_count = model->input_count,
                    .outputs = outputs,
                    .output_count = model->output_count,
                    .scratch = {exact(model->scratch_bytes), model->scratch_bytes},
                    .prefetch = {exact(model->prefetch_bytes), model->prefetch_bytes}};
    NeutronStatus status = neutron_run(model, &r);
    for (uint32_t i = 0; i < model->input_count; ++i) free((void *)(uintptr_t)inputs[i].data);
    for (uint32_t i = 0; i < model->output_count; ++i) free(outputs[i].data);
    free(r.scratch.data);
    free(r.prefetch.data);
    return status == NEUTRON_STATUS_OK;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
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
    time_t end = time(NULL) + atoi(arguments[2]);
    state = strtoull(arguments[3], NULL, 10);
    uint64_t rounds = 0, accepted = 0, finished = 0;
    do {
        const Program *p = &programs[below(known)];
        uint8_t *weights = exact(p->weights_bytes);
        memcpy(weights, p->weights, p->weights_bytes);
        for (int i = 0; i < 64; ++i, ++rounds) { /* the weights are the dear part to copy */
            /* Exactly as long as it is, or cut. */
            uint32_t bytes = below(50) == 0 ? below(p->microcode_bytes) : p->microcode_bytes;
            uint8_t *microcode = exact(bytes);
            memcpy(microcode, p->microcode, bytes);
            if (bytes >= sizeof(NeutronHeader) && below(100) != 0) mutate(microcode, bytes);
            if (p->weights_bytes && below(4) == 0) weights[below(p->weights_bytes)] ^= (uint8_t)(1u << below(8));
            NeutronImage image = {{microcode, bytes}, {weights, p->weights_bytes}, 0};
            NeutronModel model;
            char text[128];
            NeutronStatus status = neutron_prepare(&model, &image);
            neutron_describe(&model, status, text, sizeof text);
            if (status == NEUTRON_STATUS_OK) {
                ++accepted;
                finished += (uint64_t)run(&model);
            }
            free(microcode);
        }
        free(weights);
    } while (time(NULL) < end);
    printf("%llu rounds, %llu accepted, %llu ran to the end\n", (unsigned long long)rounds,
           (unsigned long long)accepted, (unsigned long long)finished);
    return 0;
}
