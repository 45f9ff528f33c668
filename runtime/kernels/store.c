/* STORE: runs written to where indices say at run time: out[outer][indices[i] + j] = in[outer][i * length + j].
 *
 * Indices are int32 or int64 and data of the caller's: all are checked before anything is written, and each is read
 * again when it is used, so that it is checked there too. Input and output must not overlap.
 */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronStoreParams *p) {
    uint64_t rows = (uint64_t)p->outer * p->axis, results = (uint64_t)p->outer * p->count;
    NEUTRON_REQUIRE((p->index_bytes == 4 || p->index_bytes == 8) && p->length <= p->axis);
    NEUTRON_REQUIRE(rows <= UINT32_MAX && results <= UINT32_MAX && results * p->length <= UINT32_MAX);
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, results * p->length * p->run, 1, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->indices, (uint64_t)p->count * p->index_bytes, 1, NEUTRON_READ));
    neutron_count(machine, results, neutron_times(p->length, p->run) + 2u * NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, rows * p->run, 1, NEUTRON_WRITE);
}

static uint64_t index_at(const NeutronStoreParams *p, const uint8_t *indices, uint32_t i) {
    uint64_t index = 0;
    memcpy(&index, indices + (size_t)i * p->index_bytes, p->index_bytes); /* little endian, as the whole format */
    return index;
}

static int32_t run(const NeutronMachine *machine, const NeutronStoreParams *p) {
    const uint8_t *input = neutron_read(machine, p->input);
    const uint8_t *indices = neutron_read(machine, p->indices);
    uint8_t *out = neutron_write(machine, p->output);
    const uint32_t last = p->axis - p->length;
    for (uint32_t i = 0; i < p->count; ++i) {
        if (index_at(p, indices, i) > last) return NEUTRON_STATUS_DATA;
    }
    const size_t part = (size_t)p->length * p->run;
    for (uint32_t o = 0; o < p->outer; ++o, out += (size_t)p->axis * p->run) {
        for (uint32_t i = 0; i < p->count; ++i, input += part) {
            const uint64_t index = index_at(p, indices, i);
            if (index > last) return NEUTRON_STATUS_DATA;
            memmove(out + (size_t)index * p->run, input, part);
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_store, NeutronStoreParams, check, run)
