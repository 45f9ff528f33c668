/* GATHER: runs of bytes from places that are sums of one table entry per dim: nearest-neighbour resize, mirror
 * padding, gather with constant indices. The output is dense.
 *
 * tables int32 [dims[0] + ... + dims[5]] byte offsets, one table after the other. They are data, so a run checks
 * that the largest sum stays inside the input before it copies anything.
 */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronGatherParams *p) {
    uint64_t runs = neutron_elements(p->dims), entries = 0;
    NEUTRON_REQUIRE(runs != UINT64_MAX && p->run >= 1 && p->run <= NEUTRON_MAX_DIM && p->run <= p->input_bytes);
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) entries += p->dims[d];
    NEUTRON_TRY(neutron_check_bytes(machine, p->tables, entries * sizeof(int32_t), sizeof(int32_t), NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, p->input_bytes, 1, NEUTRON_READ));
    return neutron_check_bytes(machine, p->output, runs * p->run, 1, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronGatherParams *p) {
    const uint8_t *input = neutron_read(machine, p->input);
    const int32_t *table[NEUTRON_MAX_RANK];
    const int32_t *next = (const int32_t *)(const void *)neutron_read(machine, p->tables);
    uint8_t *out = neutron_write(machine, p->output);
    uint64_t reach = p->run;
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        int32_t largest = 0;
        table[d] = next;
        for (uint32_t i = 0; i < p->dims[d]; ++i) {
            if (next[i] < 0) return NEUTRON_STATUS_DATA;
            largest = next[i] > largest ? next[i] : largest;
        }
        reach += (uint32_t)largest;
        next += p->dims[d];
    }
    if (reach > p->input_bytes) return NEUTRON_STATUS_DATA;
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    do {
        size_t offset = 0;
        for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) offset += (uint32_t)table[d][index[d]];
        memmove(out, input + offset, p->run);
        out += p->run;
    } while (neutron_next(index, p->dims, NEUTRON_MAX_RANK));
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_gather, NeutronGatherParams, check, run)
