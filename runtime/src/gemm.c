/* The portable matrix product. A microcontroller with the DSP extension has its own: dsp_gemm.c. */
#include "gemm.h"

#include <string.h>

#include "arithmetic.h"
#include "dsp.h"

#ifndef NEUTRON_DSP

/* Sums of `count` (1 or 4) neighbouring channels, kept in registers over all groups; `step` bytes from one group
 * of a channel to the next. Four products of int8 fit 32 bits; the long sum may wrap, hence unsigned. */
static inline __attribute__((always_inline)) void dot_channels(const int8_t *a, const int8_t *weights, uint32_t groups,
                                                               size_t step, uint32_t count, uint32_t *sums) {
    uint32_t s[4] = {0, 0, 0, 0};
    for (uint32_t g = 0; g < groups; ++g, a += NEUTRON_GROUP) {
        int32_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
#pragma GCC unroll 4
        for (uint32_t j = 0; j < count; ++j) {
            const int8_t *w = weights + g * step + j * NEUTRON_GROUP;
            s[j] += (uint32_t)(a0 * w[0] + a1 * w[1] + a2 * w[2] + a3 * w[3]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t j = 0; j < count; ++j) sums[j] += s[j];
}

void neutron_dot(const int8_t *a, const int8_t *weights, uint32_t groups, uint32_t channels, uint32_t *sums) {
    size_t step = (size_t)channels * NEUTRON_GROUP;
    uint32_t j = 0;
    for (; j + 4u <= channels; j += 4u) dot_channels(a, weights + j * NEUTRON_GROUP, groups, step, 4, sums + j);
    for (; j < channels; ++j) dot_channels(a, weights + j * NEUTRON_GROUP, groups, step, 1, sums + j);
}

void neutron_requantize(const int32_t *sums, const int32_t *multiplier, const int32_t *shift, uint32_t n, int32_t zero,
                        int32_t low, int32_t high, int8_t *out) {
    for (uint32_t j = 0; j < n; ++j) {
        int32_t scaled = neutron_scale(sums[j], multiplier[j], shift[j]);
        out[j] = (int8_t)neutron_clamp(neutron_add32(scaled, zero), low, high);
    }
}

void neutron_gemm_portable(const NeutronGemm *g) {
    uint32_t full = g->k / NEUTRON_GROUP, tail = g->k % NEUTRON_GROUP;
    size_t block_bytes = neutron_groups(g->k) * NEUTRON_GROUP * NEUTRON_BLOCK;
    for (uint32_t j = 0; j < g->n; j += NEUTRON_BLOCK) {
        const int8_t *block = g->weights + j / NEUTRON_BLOCK * block_bytes;
        uint32_t channels = g->n - j < NEUTRON_BLOCK ? g->n - j : NEUTRON_BLOCK;
        for (uint32_t i = 0; i < g->m; ++i) {
            const int8_t *a = g->a + i * g->a_pitch;
            uint32_t sums[NEUTRON_BLOCK] = {0};
            memcpy(sums, g->bias + j, channels * sizeof *sums);
            neutron_dot(a, block, full, channels, sums);
            if (tail) {
                int8_t last[NEUTRON_GROUP] = {0, 0, 0, 0};
                memcpy(last, a + g->k - tail, tail);
                neutron_dot(last, block + (size_t)full * NEUTRON_GROUP * channels, 1, channels, sums);
            }
            int32_t result[NEUTRON_BLOCK];
            memcpy(result, sums, sizeof result);
            if (g->raw) {
                memcpy(g->raw + (size_t)i * g->n + j, result, channels * sizeof *result);
            } else {
                neutron_requantize(result, g->multiplier + j, g->shift + j, channels, g->zero, g->low, g->high,
                                   g->out + i * g->out_pitch + j);
            }
        }
    }
}

#ifndef NEUTRON_VECTOR
void neutron_gemm(const NeutronGemm *g) { neutron_gemm_portable(g); }
#endif

#endif
