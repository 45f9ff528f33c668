/* BATCH_MATMUL: int8 lhs[m][k] times rhs[k][n] for every batch, both activations.
 *
 * Any layout: rows, columns and batches of both operands have byte strides (a transposed operand swaps two, a
 * broadcast batch has stride 0). The output is dense [batch][m][n]. One multiplier for all.
 */
#include "arithmetic.h"
#include "kernel.h"

static int32_t check_operand(const NeutronMachine *machine, NeutronRef ref, const NeutronBatchMatmulParams *p,
                             const uint32_t batch_strides[4], uint32_t rows, uint32_t row, uint32_t columns,
                             uint32_t column) {
    uint64_t reach = 1;
    for (uint32_t d = 0; d < 4; ++d) {
        reach += (uint64_t)(p->batch[d] - 1u) * batch_strides[d];
    }
    reach += (uint64_t)(rows - 1u) * row + (uint64_t)(columns - 1u) * column;
    return neutron_check_bytes(machine, ref, reach, 1, NEUTRON_READ);
}

static int32_t check(const NeutronMachine *machine, const NeutronBatchMatmulParams *p) {
    uint64_t outputs = (uint64_t)p->m * p->n;
    NEUTRON_REQUIRE(outputs <= UINT32_MAX);
    /* Not both 0: the reach over k, which the region bounds, also bounds the loop over k. */
    NEUTRON_REQUIRE(p->k == 1 || (p->lhs_column > 0 && p->rhs_row > 0));
    for (uint32_t d = 0; d < 4; ++d) {
        outputs *= p->batch[d];
        NEUTRON_REQUIRE(outputs <= UINT32_MAX);
    }
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    NEUTRON_TRY(check_operand(machine, p->lhs, p, p->lhs_batch_strides, p->m, p->lhs_row, p->k, p->lhs_column));
    NEUTRON_TRY(check_operand(machine, p->rhs, p, p->rhs_batch_strides, p->k, p->rhs_row, p->n, p->rhs_column));
    neutron_count(machine, outputs, (uint64_t)p->k + NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, outputs, 1, NEUTRON_WRITE);
}

static uint32_t dot(const NeutronBatchMatmulParams *p, const int8_t *lhs, const int8_t *rhs) {
    uint32_t sum = 0;
    if (p->lhs_column == 1 && p->rhs_row == 1) {
        for (uint32_t k = 0; k < p->k; ++k) sum += (uint32_t)((lhs[k] - p->lhs_zero) * (rhs[k] - p->rhs_zero));
        return sum;
    }
    for (uint32_t k = 0; k < p->k; ++k) {
        int32_t a = lhs[(size_t)k * p->lhs_column] - p->lhs_zero;
        sum += (uint32_t)(a * (rhs[(size_t)k * p->rhs_row] - p->rhs_zero));
    }
    return sum;
}

#define COLUMNS 32u

/* Neighbouring columns summed side by side when rows of rhs are contiguous: reads along the row. */
static void row_times_columns(const NeutronBatchMatmulParams *p, const int8_t *lhs, const int8_t *rhs, uint32_t count,
                              uint32_t sums[COLUMNS]) {
    memset(sums, 0, COLUMNS * sizeof *sums);
    for (uint32_t k = 0; k < p->k; ++k) {
        int32_t a = lhs[(size_t)k * p->lhs_column] - p->lhs_zero;
        const int8_t *row = rhs + (size_t)k * p->rhs_row;
        for (uint32_t j = 0; j < count; ++j) sums[j] += (uint32_t)(a * (row[j] - p->rhs_zero));
    }
}

static int8_t finish(const NeutronBatchMatmulParams *p, uint32_t sum) {
    int32_t scaled = neutron_add32(neutron_scale((int32_t)sum, p->multiplier, p->shift), p->output_zero);
    return (int8_t)neutron_clamp(scaled, p->clamp_min, p->clamp_max);
}

static int32_t run(const NeutronMachine *machine, const NeutronBatchMatmulParams *p) {
    const int8_t *lhs_base = (const int8_t *)neutron_read(machine, p->lhs);
    const int8_t *rhs_base = (const int8_t *)neutron_read(machine, p->rhs);
    int8_t *out = (int8_t *)neutron_write(machine, p->output);
    uint32_t index[4] = {0, 0, 0, 0};
    for (;;) {
        const int8_t *lhs = lhs_base, *rhs = rhs_base;
        for (uint32_t d = 0; d < 4; ++d) {
            lhs += (size_t)index[d] * p->lhs_batch_strides[d];
            rhs += (size_t)index[d] * p->rhs_batch_strides[d];
        }
        for (uint32_t i = 0; i < p->m; ++i, out += p->n) {
            NEUTRON_TRY(neutron_check_stop(machine));
            const int8_t *row = lhs + (size_t)i * p->lhs_row;
            if (p->rhs_column == 1 && p->rhs_row != 1) {
                for (uint32_t j = 0; j < p->n; j += COLUMNS) {
                    uint32_t count = p->n - j < COLUMNS ? p->n - j : COLUMNS;
                    uint32_t sums[COLUMNS];
                    row_times_columns(p, row, rhs + j, count, sums);
                    for (uint32_t c = 0; c < count; ++c) out[j + c] = finish(p, sums[c]);
                }
            } else {
                for (uint32_t j = 0; j < p->n; ++j) out[j] = finish(p, dot(p, row, rhs + (size_t)j * p->rhs_column));
            }
        }
        uint32_t d = 4;
        while (d > 0 && ++index[d - 1] == p->batch[d - 1]) index[--d] = 0;
        if (d == 0) return NEUTRON_STATUS_OK;
    }
}

NEUTRON_KERNEL(neutron_batch_matmul, NeutronBatchMatmulParams, check, run)
