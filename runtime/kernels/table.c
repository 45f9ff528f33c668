/* TABLE: any function of one int8 (or uint8) value: out = table[value as an unsigned byte].
 *
 * `rows` runs of `length` bytes, `input_pitch` and `output_pitch` apart. In place is allowed.
 */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronTableParams *p) {
    NEUTRON_REQUIRE(p->rows == 1 || (p->length <= p->input_pitch && p->length <= p->output_pitch));
    uint64_t more = p->rows - 1u;
    NEUTRON_TRY(neutron_check_bytes(machine, p->table, 256, 1, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, more * p->input_pitch + p->length, 1, NEUTRON_READ));
    return neutron_check_bytes(machine, p->output, more * p->output_pitch + p->length, 1, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronTableParams *p) {
    const uint8_t *in = neutron_read(machine, p->input);
    const uint8_t *table = neutron_read(machine, p->table);
    uint8_t *out = neutron_write(machine, p->output);
    for (uint32_t r = 0; r < p->rows; ++r) {
        const uint8_t *from = in + (size_t)r * p->input_pitch;
        uint8_t *to = out + (size_t)r * p->output_pitch;
        for (uint32_t i = 0; i < p->length; ++i) to[i] = table[from[i]];
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_table, NeutronTableParams, check, run)
