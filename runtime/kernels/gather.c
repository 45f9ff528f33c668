/* GATHER: runs of bytes from places that are sums of one table entry per dim: nearest-neighbour resize, mirror
 * padding, gather with constant indices. The output is dense.
 *
 * tables int32 [dims[0] + ... + dims[5]] byte offsets, one table after the other. They are data, so a run checks
 * of every sum that it stays inside the input.
 */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronGatherParams *p) {
    uint64_t runs = neutron_elements(p->dims), entries = 0;
    NEUTRON_REQUIRE(runs != UINT64_MAX && p->run <= p->input_bytes);
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) entries += p->dims[d];
    NEUTRON_TRY(neutron_check_table(machine, p->tables, entries));
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, p->input_bytes, 1, NEUTRON_READ));
    neutron_count(machine, runs, (uint64_t)p->run + 2u * NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, runs * p->run, 1, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronGatherParams *p) {
    const uint8_t *input = neutron_read(machine, p->input);
    const volatile uint32_t *table[NEUTRON_MAX_RANK]; /* each entry is read once: what is checked is what is used */
    const volatile uint32_t *next = (const volatile uint32_t *)(const void *)neutron_read(machine, p->tables);
    uint8_t *out = neutron_write(machine, p->output);
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        table[d] = next;
        next += p->dims[d];
    }
    uint32_t last = p->input_bytes - p->run; /* where the last run may begin */
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    do {
        uint32_t offset = 0;
        for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
            uint32_t entry = table[d][index[d]];
            if (entry > last - offset) return NEUTRON_STATUS_DATA;
            offset += entry;
        }
        memmove(out, input + offset, p->run);
        out += p->run;
    } while (neutron_next(index, p->dims, NEUTRON_MAX_RANK));
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_gather, NeutronGatherParams, check, run)
