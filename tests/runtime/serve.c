/* Runs programs it is given on an emulated host: for tests of builds that this machine cannot load.
 *
 * stdin   {u32 microcode, weights, inputs bytes; the three parts; the inputs one after the other}*
 * stdout  for each {u32 status; where it is 0, the outputs one after the other}
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "neutron.h"

#define PORTS 512u

static void *room(size_t bytes) {
    void *block = aligned_alloc(64, (bytes + 64u) / 64u * 64u);
    if (block == NULL) exit(2);
    return block;
}

static uint8_t *receive(uint32_t bytes) {
    uint8_t *block = (uint8_t *)room(bytes);
    if (fread(block, 1, bytes, stdin) != bytes) exit(2);
    return block;
}

/* Run once; 0 and the outputs, or a status. */
static uint32_t run(const NeutronModel *model, const uint8_t *given, NeutronBuffer *out) {
    NeutronConstBuffer in[PORTS];
    if (model->input_count > PORTS || model->output_count > PORTS) exit(2);
    for (uint32_t i = 0; i < model->input_count; ++i) { /* each in a block of its own, aligned */
        in[i] = (NeutronConstBuffer){memcpy(room(model->inputs[i].bytes), given, model->inputs[i].bytes),
                                     model->inputs[i].bytes};
        given += model->inputs[i].bytes;
    }
    for (uint32_t i = 0; i < model->output_count; ++i) {
        out[i] = (NeutronBuffer){room(model->outputs[i].bytes), model->outputs[i].bytes};
    }
    NeutronRun r = {.inputs = in,
                    .input_count = model->input_count,
                    .outputs = out,
                    .output_count = model->output_count,
                    .scratch = {room(model->scratch_bytes), model->scratch_bytes},
                    .prefetch = {room(model->prefetch_bytes), model->prefetch_bytes},
                    .state = {room(model->state_bytes), model->state_bytes}};
    uint32_t status = (uint32_t)neutron_reset(model, r.state);
    if (status == NEUTRON_STATUS_OK) status = (uint32_t)neutron_run(model, &r);
    free(r.scratch.data);
    free(r.prefetch.data);
    free(r.state.data);
    for (uint32_t i = 0; i < model->input_count; ++i) free((void *)(uintptr_t)in[i].data);
    return status;
}

int main(void) {
    uint32_t sizes[3];
    while (fread(sizes, 1, sizeof sizes, stdin) == sizeof sizes) {
        uint8_t *microcode = receive(sizes[0]), *weights = receive(sizes[1]), *inputs = receive(sizes[2]);
        NeutronImage image = {{microcode, sizes[0]}, {weights, sizes[1]}, 1, 0};
        NeutronModel model;
        NeutronBuffer out[PORTS];
        uint32_t status = (uint32_t)neutron_prepare(&model, &image), count = 0;
        if (status == 0) {
            status = run(&model, inputs, out);
            count = model.output_count;
        }
        fwrite(&status, 1, sizeof status, stdout);
        for (uint32_t i = 0; i < count; ++i) {
            if (status == 0) fwrite(out[i].data, 1, out[i].bytes, stdout);
            free(out[i].data);
        }
        fflush(stdout);
        free(microcode);
        free(weights);
        free(inputs);
    }
    return 0;
}
