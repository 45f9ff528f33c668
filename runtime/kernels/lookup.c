/* LOOKUP: runs that indices name at run time: out[outer][i] = in[outer][indices[i]], all dense.
 *
 * Indices are int32 or int64 and data of the caller's: each is checked before it is used, and negative ones are none.
 */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronLookupParams *p) {
    uint64_t rows = (uint64_t)p->outer * p->axis, results = (uint64_t)p->outer * p->count;
    NEUTRON_REQUIRE((p->index_bytes == 4 || p->index_bytes == 8) && rows <= UINT32_MAX && results <= UINT32_MAX);
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, rows * p->run, 1, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->indices, (uint64_t)p->count * p->index_bytes, 1, NEUTRON_READ));
    neutron_count(machine, results, (uint64_t)p->run + NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, results * p->run, 1, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronLookupParams *p) {
    const uint8_t *input = neutron_read(machine, p->input);
    const uint8_t *indices = neutron_read(machine, p->indices);
    uint8_t *out = neutron_write(machine, p->output);
    for (uint32_t o = 0; o < p->outer; ++o, input += (size_t)p->axis * p->run) {
        for (uint32_t i = 0; i < p->count; ++i, out += p->run) {
            uint64_t index = 0;
            memcpy(&index, indices + (size_t)i * p->index_bytes,
                   p->index_bytes); /* little endian, as the whole format */
            if (index >= p->axis) return NEUTRON_STATUS_DATA;
            memmove(out, input + (size_t)index * p->run, p->run);
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_lookup, NeutronLookupParams, check, run)
