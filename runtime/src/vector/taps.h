/* The taps of a depthwise convolution that are inside the map, as a list: what vectorised kernels walk. */
#ifndef NEUTRON_VECTOR_TAPS_H
#define NEUTRON_VECTOR_TAPS_H

#include "depthwise.h"

#define NEUTRON_MAX_TAPS 64u

typedef struct {
    const int8_t *in[NEUTRON_MAX_TAPS + 1]; /* one more, for kernels that take them in pairs */
    const int8_t *weights[NEUTRON_MAX_TAPS + 1];
    uint32_t count;
} Taps;

/* List them, for kernels that take so many channels at a time; 0 where the shape is for the portable twin. */
static inline int neutron_list_taps(const NeutronDepthwise *d, uint32_t channels, Taps *taps) {
    if (d->multiplier_c != 1 || d->out_c < channels || (uint64_t)d->row_count * d->columns > NEUTRON_MAX_TAPS) return 0;
    taps->count = 0;
    for (uint32_t r = 0; r < d->row_count; ++r) {
        if (d->rows[r] == NULL) continue;
        for (uint32_t t = 0; t < d->columns; ++t) {
            taps->in[taps->count] = d->rows[r] + t * d->tap_pitch;
            taps->weights[taps->count++] = d->weights + r * d->weights_row + (size_t)t * d->out_c;
        }
    }
    return 1;
}

#endif
