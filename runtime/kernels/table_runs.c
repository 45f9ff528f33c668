/* TABLE_RUNS: as TABLE, of some of a feature map's channels.
 *
 * `rows` rows, `input_pitch` and `output_pitch` apart, of `runs` runs of `length` bytes, `input_run_pitch` and
 * `output_run_pitch` apart. In place is allowed.
 */
#include "kernel.h"
#include "table.h"

static int32_t check(const NeutronMachine *machine, const NeutronTableRunsParams *p) {
    const uint64_t rows = p->rows - 1u, runs = p->runs - 1u;
    const uint64_t in = runs * p->input_run_pitch + p->length, out = runs * p->output_run_pitch + p->length;
    NEUTRON_REQUIRE(runs == 0 || (p->length <= p->input_run_pitch && p->length <= p->output_run_pitch));
    NEUTRON_REQUIRE(rows == 0 || (in <= p->input_pitch && out <= p->output_pitch));
    NEUTRON_TRY(neutron_check_bytes(machine, p->table, 256, 1, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, rows * p->input_pitch + in, 1, NEUTRON_READ));
    neutron_count(machine, (uint64_t)p->rows * p->runs, p->length);
    return neutron_check_bytes(machine, p->output, rows * p->output_pitch + out, 1, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronTableRunsParams *p) {
    NeutronTableRows t = {.table = neutron_read(machine, p->table),
                          .in = neutron_read(machine, p->input),
                          .out = neutron_write(machine, p->output),
                          .in_pitch = p->input_run_pitch,
                          .out_pitch = p->output_run_pitch,
                          .rows = p->runs,
                          .length = p->length};
    for (uint32_t r = 0; r < p->rows; ++r) {
        neutron_table_rows(&t);
        t.in += p->input_pitch;
        t.out += p->output_pitch;
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_table_runs, NeutronTableRunsParams, check, run)
