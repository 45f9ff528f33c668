/* FILL: a strided block of elements of 1, 2 or 4 bytes set to one value: the borders of padding. */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronFillParams *p) {
    NEUTRON_REQUIRE(p->element_bytes == 1 || p->element_bytes == 2 || p->element_bytes == 4);
    return neutron_check_strided(machine, p->output, p->dims, p->output_strides, p->element_bytes, NEUTRON_WRITE);
}

#define INNER (NEUTRON_MAX_RANK - 1u)

static int32_t run(const NeutronMachine *machine, const NeutronFillParams *p) {
    uint8_t *output = neutron_write(machine, p->output);
    uint8_t value[4];
    for (uint32_t i = 0; i < 4; ++i) value[i] = (uint8_t)(p->value >> (8u * i)); /* little endian on any machine */
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    ptrdiff_t stride = p->output_strides[INNER];
    do {
        uint8_t *out = output + neutron_offset(index, p->output_strides, INNER);
        if (p->element_bytes == 1 && stride == 1) {
            memset(out, value[0], p->dims[INNER]);
        } else {
            for (uint32_t i = 0; i < p->dims[INNER]; ++i) memcpy(out + (ptrdiff_t)i * stride, value, p->element_bytes);
        }
    } while (neutron_next(index, p->dims, INNER));
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_fill, NeutronFillParams, check, run)
