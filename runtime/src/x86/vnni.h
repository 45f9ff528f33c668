/* What the parts of the matrix product for AVX-512 VNNI share: four products and their sum in one instruction, sixteen
 * channels a register.
 *
 * The instruction takes unsigned by signed bytes, so 128 is added to every a (by flipping its top bit) and 128
 * times the channel's weight sum is taken from the bias. Sums wrap like the portable ones, so this is exact.
 */
#ifndef NEUTRON_VNNI_H
#define NEUTRON_VNNI_H

#include <string.h>

#include "avx512.h"
#include "vector/product.h"

#define NEUTRON_INLINE static inline __attribute__((always_inline))

/* Channels that are computed together, and how their sums become bytes. */
typedef struct {
    const int8_t *weights; /* of the first block */
    size_t block;          /* bytes from one block to the next */
    uint32_t channel, count;
    __m512i start[2];
    NeutronScale16 scale[2];
    __m128i low, high; /* of the result */
    int fast;          /* the short way of scaling, with the zero point in its constants, */
    int positive;      /* and of that the shorter one */
} NeutronStrip;

/* _mm512_dpbusd_epi32 in place. GCC copies every sum twice in a loop of the intrinsic, and runs out of registers. */
NEUTRON_INLINE void neutron_add_products(__m512i *sums, __m512i x, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(x), "v"(weights));
}

NEUTRON_INLINE void neutron_add_products8(__m256i *sums, __m256i x, __m256i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sums) : "v"(x), "v"(weights));
}

/* One row that does not take the short way, or ends with fewer channels: sums, or bytes, for up to 32 channels. */
void neutron_store_row_vnni(const NeutronGemm *g, const NeutronStrip *s, uint32_t row, int8_t *out, __m512i first,
                            __m512i second);

/* All lines of a strip of up to eight channels. */
void neutron_narrow_vnni(const NeutronProduct *p, const NeutronStrip *s, int8_t *const *lines, uint32_t line_count);

/* The whole product of rows so few, or so long, that they are taken one by one; they have one part and are not flipped,
 * and there is one line. */
void neutron_few_rows_vnni(const NeutronProduct *p);

/* What the sums of a strip start from, and how they end; which channels are in it is there. */
void neutron_prepare_strip_vnni(const NeutronGemm *g, const int32_t *start, NeutronStrip *s);

#endif
