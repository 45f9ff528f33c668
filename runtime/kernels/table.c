/* TABLE: any function of one int8 (or uint8) value: out = table[value as an unsigned byte].
 *
 * `rows` runs of `length` bytes, `input_pitch` and `output_pitch` apart. In place is allowed.
 */
#include "table.h"

#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronTableParams *p) {
    NEUTRON_REQUIRE(p->rows == 1 || (p->length <= p->input_pitch && p->length <= p->output_pitch));
    uint64_t more = p->rows - 1u;
    NEUTRON_TRY(neutron_check_bytes(machine, p->table, 256, 1, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, more * p->input_pitch + p->length, 1, NEUTRON_READ));
    neutron_count(machine, p->rows, p->length);
    return neutron_check_bytes(machine, p->output, more * p->output_pitch + p->length, 1, NEUTRON_WRITE);
}

void neutron_table_rows_portable(const NeutronTableRows *t) {
    for (uint32_t r = 0; r < t->rows; ++r) {
        const uint8_t *from = t->in + r * t->in_pitch;
        uint8_t *to = t->out + r * t->out_pitch;
        for (uint32_t i = 0; i < t->length; ++i) to[i] = t->table[from[i]];
    }
}

#ifndef NEUTRON_VECTOR
void neutron_table_rows(const NeutronTableRows *t) { neutron_table_rows_portable(t); }
#endif

static int32_t run(const NeutronMachine *machine, const NeutronTableParams *p) {
    NeutronTableRows t = {.table = neutron_read(machine, p->table),
                          .in = neutron_read(machine, p->input),
                          .out = neutron_write(machine, p->output),
                          .in_pitch = p->input_pitch,
                          .out_pitch = p->output_pitch,
                          .rows = p->rows,
                          .length = p->length};
    neutron_table_rows(&t);
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_table, NeutronTableParams, check, run)
