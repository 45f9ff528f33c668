/* Checks that the convolution kernels share. */
#ifndef NEUTRON_CONVOLUTION_H
#define NEUTRON_CONVOLUTION_H

#include "gemm.h"
#include "kernel.h"

/* The bias, multiplier and shift of `channels` channels are there. Their values are data, not parameters: the
 * arithmetic takes any. */
static inline int32_t neutron_check_channels(const NeutronMachine *machine, NeutronRef ref, uint32_t channels) {
    return neutron_check_bytes(machine, ref, (uint64_t)channels * 3u * sizeof(int32_t), sizeof(int32_t), NEUTRON_READ);
}

/* Packed weights of n channels of k values are there, aligned for the loads of whole groups (dsp_gemm.c). */
static inline int32_t neutron_check_weights(const NeutronMachine *machine, NeutronRef ref, uint64_t n, uint64_t k) {
    uint64_t groups = (k + NEUTRON_GROUP - 1u) / NEUTRON_GROUP;
    return neutron_check_bytes(machine, ref, n * groups * NEUTRON_GROUP, NEUTRON_GROUP, NEUTRON_READ);
}

/* The product that a convolution is: its weights, what each channel has, and where pixels lie; the rest is the
 * kernel's. */
static inline NeutronGemm neutron_conv_product(const NeutronMachine *machine, NeutronRef weights, NeutronRef channels,
                                               uint32_t out_c, const NeutronView *output) {
    const int32_t *bias = (const int32_t *)(const void *)neutron_read(machine, channels);
    return (NeutronGemm){.n = out_c,
                         .weights = (const int8_t *)neutron_read(machine, weights),
                         .bias = bias,
                         .multiplier = bias + out_c,
                         .shift = bias + 2u * out_c,
                         .out_pitch = output->pixel};
}

#endif
