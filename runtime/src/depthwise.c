/* The portable depthwise pixel. A microcontroller with the DSP extension has its own: dsp_depthwise.c. */
#include "depthwise.h"

#include <string.h>

#include "dsp.h"
#include "gemm.h"

#ifndef NEUTRON_DSP

/* Channels summed side by side; the sums stay in registers or on a few words of stack. */
#define CHUNK 16u

void neutron_depthwise_portable(const NeutronDepthwise *d) {
    for (uint32_t i = 0; i < d->count; ++i) {
        for (uint32_t c0 = 0; c0 < d->out_c; c0 += CHUNK) {
            uint32_t channels = d->out_c - c0 < CHUNK ? d->out_c - c0 : CHUNK;
            uint32_t sums[CHUNK] = {0};
            int32_t result[CHUNK];
            memcpy(sums, d->bias + c0, channels * sizeof *sums);
            for (uint32_t r = 0; r < d->row_count; ++r) {
                if (d->rows[r] == NULL) continue;
                const int8_t *in = d->rows[r] + i * d->in_step;
                const int8_t *weights = d->weights + r * d->weights_row + c0;
                for (uint32_t t = 0; t < d->columns; ++t) {
                    const int8_t *tap = in + t * d->tap_pitch, *factors = weights + (size_t)t * d->out_c;
                    if (d->multiplier_c == 1) {
                        for (uint32_t c = 0; c < channels; ++c) {
                            sums[c] += (uint32_t)((tap[c0 + c] - d->input_zero) * factors[c]);
                        }
                    } else {
                        for (uint32_t c = 0; c < channels; ++c) {
                            sums[c] += (uint32_t)((tap[(c0 + c) / d->multiplier_c] - d->input_zero) * factors[c]);
                        }
                    }
                }
            }
            memcpy(result, sums, sizeof result);
            neutron_requantize(result, d->multiplier + c0, d->shift + c0, channels, d->output_zero, d->low, d->high,
                               d->out + i * d->out_step + c0);
        }
    }
}

#ifndef NEUTRON_VECTOR
void neutron_depthwise(const NeutronDepthwise *d) { neutron_depthwise_portable(d); }
#endif

#endif
