/* Matrix product of int8 rows with packed int8 weights: the inner part of convolutions and fully connected. */
#ifndef NEUTRON_GEMM_H
#define NEUTRON_GEMM_H

#include <stddef.h>
#include <stdint.h>

/* Channels of a block and values of a group in the packed layout, for n channels of k values each:
 *
 *     int8 weights[ceil(n / 8)][ceil(k / 4)][min(8, n - 8 * block)][4]
 *
 * Groups of 4 are what one 32-bit load gives a scalar core and what one dot-product instruction takes; blocks of
 * 8 channels fill a 256-bit register. The last group is padded with zeros, the last block is not padded. */
#define NEUTRON_BLOCK 8u
#define NEUTRON_GROUP 4u

/* out[i][j] = clamp(scale(bias[j] + sum over k of a[i][k] * w[j][k]) + zero); with `raw` set, the sums go there. */
typedef struct {
    const int8_t *a; /* m rows of k values, `a_pitch` bytes apart; never read beyond k values */
    size_t a_pitch;
    uint32_t m, k, n;
    const int8_t *weights;
    const int32_t *bias, *multiplier, *shift; /* n each; the last two unused for `raw` */
    int8_t *out;
    size_t out_pitch;
    int32_t zero, low, high;
    int32_t *raw; /* null, or m rows of n sums */
} NeutronGemm;

/* The best implementation for this machine; all give the same bits. */
void neutron_gemm(const NeutronGemm *g);

void neutron_gemm_portable(const NeutronGemm *g);

/* Add the products of `groups` groups to the sums of one block of `channels` channels. */
void neutron_dot(const int8_t *a, const int8_t *weights, uint32_t groups, uint32_t channels, uint32_t *sums);

/* out[j] = clamp(scale(sums[j]) + zero) for n channels. */
void neutron_requantize(const int32_t *sums, const int32_t *multiplier, const int32_t *shift, uint32_t n, int32_t zero,
                        int32_t low, int32_t high, int8_t *out);

static inline size_t neutron_groups(uint32_t k) { return (k + NEUTRON_GROUP - 1u) / NEUTRON_GROUP; }

#endif
