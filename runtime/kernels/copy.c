/* COPY: elements of 1, 2, 4 or 8 bytes from one strided layout to another: slices, transposes, concatenation,
 * tiles, depth to space. Up to six dims; strides in bytes, an input stride may be negative (reversed) or 0
 * (repeated). Input and output must not overlap, except that equal addresses and strides are harmless.
 */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronCopyParams *p) {
    uint32_t size = p->element_bytes;
    NEUTRON_REQUIRE(size == 1 || size == 2 || size == 4 || size == 8);
    NEUTRON_TRY(neutron_check_strided(machine, p->input, p->dims, p->input_strides, size, NEUTRON_READ));
    return neutron_check_strided(machine, p->output, p->dims, p->output_strides, size, NEUTRON_WRITE);
}

#define INNER (NEUTRON_MAX_RANK - 1u)

static void copy_row(const uint8_t *in, ptrdiff_t in_stride, uint8_t *out, ptrdiff_t out_stride, uint32_t count,
                     uint32_t size) {
    if (in_stride == (ptrdiff_t)size && out_stride == (ptrdiff_t)size) {
        memmove(out, in, (size_t)count * size);
        return;
    }
    if (size == 1) {
        for (uint32_t i = 0; i < count; ++i) out[(ptrdiff_t)i * out_stride] = in[(ptrdiff_t)i * in_stride];
        return;
    }
    for (uint32_t i = 0; i < count; ++i) memmove(out + (ptrdiff_t)i * out_stride, in + (ptrdiff_t)i * in_stride, size);
}

static int32_t run(const NeutronMachine *machine, const NeutronCopyParams *p) {
    const uint8_t *input = neutron_read(machine, p->input);
    uint8_t *output = neutron_write(machine, p->output);
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    do {
        copy_row(input + neutron_offset(index, p->input_strides, INNER), p->input_strides[INNER],
                 output + neutron_offset(index, p->output_strides, INNER), p->output_strides[INNER], p->dims[INNER],
                 p->element_bytes);
    } while (neutron_next(index, p->dims, INNER));
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_copy, NeutronCopyParams, check, run)
