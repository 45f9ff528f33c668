/* The matrix product behind convolutions on hosts: rows of `a` may lie in
 * several parts, so that a window's taps need not be gathered first. */
#ifndef NEUTRON_PRODUCT_H
#define NEUTRON_PRODUCT_H

#include "gemm.h"

/* Channels computed in one call of a product: what `start` has room for. A
 * multiple of every block. */
#define NEUTRON_PRODUCT_CHANNELS 1024u

/* Row i of `a` is the parts, one after the other: `part_bytes` bytes at
 * parts[p] + i * g.a_pitch each. If there are several, part_bytes is a multiple
 * of 4. g.k is the sum, g.n is at most NEUTRON_PRODUCT_CHANNELS; g.a is not
 * used. There may be several lines of g.m rows, each with parts and a place for
 * the result of its own. */
typedef struct {
    NeutronGemm g;
    const int8_t *const *parts; /* of the first line, then of the next */
    uint32_t part_count, part_bytes;
    int8_t *const *lines; /* g.out of each line; null: there is one line, at g.out */
    uint32_t line_count;
    /* n values from the implementation's own `start` function, in place of
   * g.bias. Null: they are found on the way, which is best for a few rows. */
    const int32_t *start;
    int flipped; /* the rows were copied by the code's `copy`; they may be read up
                  to a multiple of 4 bytes */
    /* Groups at the beginning of every block of weights that belong to no part;
   * behind the parts may be others. Only for a code with `skip`, flipped rows
   * and a `start`. */
    uint32_t skipped;
} NeutronProduct;

typedef struct {
    /* What the sums of n channels start from, once for any number of products
   * with the same weights. */
    void (*start)(const int8_t *weights, uint32_t k, uint32_t n, const int32_t *bias, int32_t *start);
    /* The same for rows of a whose groups first .. end - 1 are all `value`, xor
   * `flip`, and are left out of the product; `to` may be `start`. Null: nothing
   * may be left out. */
    void (*skip)(const int8_t *weights, uint32_t k, uint32_t n, uint32_t first, uint32_t end, int8_t value,
                 const int32_t *start, int32_t *to);
    void (*run)(const NeutronProduct *p);
    /* Copies rows of a as the product likes them best (see `flipped`): every byte
   * xor `flip`. */
    void (*copy)(int8_t *to, const int8_t *from, size_t bytes);
    int8_t flip;
} NeutronProductCode;

/* The best implementation for this CPU, or null if there is none. */
const NeutronProductCode *neutron_product_code(void);

/* Below so many rows `start` is not worth its while. */
#define NEUTRON_FEW_ROWS 4u

extern const NeutronProductCode neutron_product_avx2, neutron_product_avx_vnni, neutron_product_vnni; /* x86/ */
extern const NeutronProductCode neutron_product_neon, neutron_product_dot;                            /* aarch64/ */

#endif
