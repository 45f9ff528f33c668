/* What binary element-by-element kernels share: the walk over broadcast operands. */
#ifndef NEUTRON_ELEMENTWISE_H
#define NEUTRON_ELEMENTWISE_H

#include "arithmetic.h"
#include "kernel.h"

/* One row of `count` elements; strides in bytes. */
typedef struct {
    const int8_t *a, *b;
    int8_t *out;
    ptrdiff_t a_stride, b_stride, out_stride;
    uint32_t count;
} NeutronRow;

/* Call `row` for every innermost row of the walk. Inlined, so that the row function is too. */
static inline int32_t neutron_walk(const NeutronMachine *machine, const NeutronBroadcast *walk, const void *parameters,
                                   void (*row)(const void *parameters, const NeutronRow *row)) {
    const uint32_t inner = NEUTRON_MAX_RANK - 1u;
    const int8_t *a = (const int8_t *)neutron_read(machine, walk->a);
    const int8_t *b = (const int8_t *)neutron_read(machine, walk->b);
    int8_t *out = (int8_t *)neutron_write(machine, walk->output);
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    NeutronRow r = {.a_stride = walk->a_strides[inner],
                    .b_stride = walk->b_strides[inner],
                    .out_stride = walk->output_strides[inner],
                    .count = walk->dims[inner]};
    do {
        NEUTRON_TRY(neutron_check_stop(machine));
        r.a = a + neutron_offset(index, walk->a_strides, inner);
        r.b = b + neutron_offset(index, walk->b_strides, inner);
        r.out = out + neutron_offset(index, walk->output_strides, inner);
        row(parameters, &r);
    } while (neutron_next(index, walk->dims, inner));
    return NEUTRON_STATUS_OK;
}

/* The row function of a kernel, from the function of one element. It works on a copy of the parameters: a byte written
 * might be one of theirs for all the compiler knows, and every one would be loaded anew for every element. */
#define NEUTRON_ROW_FUNCTION(Type, element)                                                          \
    static void element##_row(const void *parameters, const NeutronRow *r) {                         \
        const Type q = *(const Type *)parameters;                                                    \
        const NeutronRow s = *r;                                                                     \
        for (uint32_t i = 0; i < s.count; ++i) {                                                     \
            ptrdiff_t n = (ptrdiff_t)i; /* no address behind the last element is ever formed */      \
            s.out[n * s.out_stride] = (int8_t)element(&q, s.a[n * s.a_stride], s.b[n * s.b_stride]); \
        }                                                                                            \
    }

/* (value - zero) * 2^left_shift, scaled. */
static inline int32_t neutron_scale_input(int32_t value, int32_t zero, uint32_t left_shift, int32_t multiplier,
                                          int32_t shift) {
    return neutron_scale(neutron_shl32(value - zero, left_shift), multiplier, shift);
}

#endif
