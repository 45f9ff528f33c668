/* Runs the programs of cases.bin on an emulated Cortex-M33 and compares every output byte.
 *
 * The file is {u32 microcode, weights, inputs, outputs bytes; the four parts}*, each part, and each input and output
 * within its part, padded to 16 bytes. Files and printing go through semihosting (newlib's rdimon).
 */
#include <stdio.h>
#include <string.h>

#include "neutron.h"

extern uint32_t __StackTop[];
extern void _start(void);

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {__StackTop, (const void *)_start};

#define LARGEST (1u << 20)

static _Alignas(16) uint8_t microcode[LARGEST], weights[LARGEST], inputs[LARGEST], wanted[LARGEST], results[LARGEST],
    scratch[LARGEST], prefetch[LARGEST];

static size_t padded(size_t bytes) { return (bytes + 15u) & ~(size_t)15u; }

static int read_part(FILE *file, uint8_t *to, uint32_t bytes) {
    return bytes <= LARGEST && fread(to, 1, padded(bytes), file) == padded(bytes);
}

static NeutronStatus run(const NeutronModel *model) {
    NeutronConstBuffer in[256];
    NeutronBuffer out[256];
    size_t at = 0;
    for (uint32_t i = 0; i < model->input_count; ++i) {
        in[i] = (NeutronConstBuffer){inputs + at, model->inputs[i].bytes};
        at += padded(model->inputs[i].bytes);
    }
    at = 0;
    for (uint32_t i = 0; i < model->output_count; ++i) {
        out[i] = (NeutronBuffer){results + at, model->outputs[i].bytes};
        at += padded(model->outputs[i].bytes);
    }
    NeutronRun r = {.inputs = in,
                    .input_count = model->input_count,
                    .outputs = out,
                    .output_count = model->output_count,
                    .scratch = {scratch, sizeof scratch},
                    .prefetch = {prefetch, sizeof prefetch}};
    return neutron_run(model, &r);
}

int main(void) {
    FILE *file = fopen("cases.bin", "rb");
    uint32_t sizes[4], cases = 0, wrong = 0;
    if (file == NULL) return 2;
    while (fread(sizes, 1, sizeof sizes, file) == sizeof sizes) {
        if (!read_part(file, microcode, sizes[0]) || !read_part(file, weights, sizes[1]) ||
            !read_part(file, inputs, sizes[2]) || !read_part(file, wanted, sizes[3])) {
            return 2;
        }
        NeutronImage image = {{microcode, sizes[0]}, {weights, sizes[1]}, 1, 0};
        NeutronModel model;
        memset(results, 0, padded(sizes[3]));
        NeutronStatus status = neutron_prepare(&model, &image);
        if (status == NEUTRON_STATUS_OK) status = run(&model);
        if (status != NEUTRON_STATUS_OK || memcmp(results, wanted, sizes[3]) != 0) {
            ++wrong;
            printf("case %u: %s\n", (unsigned)cases, neutron_status_message(status));
        }
        ++cases;
    }
    printf("%u cases, %u wrong\n", (unsigned)cases, (unsigned)wrong);
    return wrong != 0;
}
