/* FULLY_CONNECTED_ROWS: FULLY_CONNECTED of a whole feature map, taken in stripes of its rows.
 *
 * weights  packed for each row by itself: int8 [height][packed as in gemm.h: out_features channels of `row` values]
 * bias, scales as in fully_connected.c; sums int32 [out_features], kept from stripe to stripe
 *
 * The first row begins with the bias, the last one scales the sums: the same as in one go, as sums wrap.
 */
#include "convolution.h"
#include "scale_sums.h"

static int32_t check(const NeutronMachine *machine, const NeutronFullyConnectedRowsParams *p) {
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max && p->row % NEUTRON_GROUP == 0);
    NEUTRON_TRY(neutron_check_rows(machine, p->input, p->height, p->row, p->row, p->y0, p->y1));
    NEUTRON_TRY(neutron_check_bytes(machine, p->output, p->out_features, 1, NEUTRON_WRITE));
    NEUTRON_TRY(neutron_check_bytes(machine, p->sums, (uint64_t)p->out_features * 4u, 4, NEUTRON_WRITE));
    NEUTRON_TRY(neutron_check_bytes(machine, p->bias, (uint64_t)p->out_features * 4u, 4, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->scales, (uint64_t)p->out_features * 8u, 8, NEUTRON_READ));
    neutron_count(machine, p->out_features, neutron_times(p->y1 - p->y0, p->row) + NEUTRON_ELEMENT_WORK);
    return neutron_check_weights(machine, p->weights, p->out_features, (uint64_t)p->height * p->row);
}

#define SUMS 64u /* at a time; a multiple of the block of packed weights */

static int32_t run(const NeutronMachine *machine, const NeutronFullyConnectedRowsParams *p) {
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input);
    const int8_t *weights = (const int8_t *)neutron_read(machine, p->weights);
    const double *scales = (const double *)(const void *)neutron_read(machine, p->scales);
    int32_t *sums = (int32_t *)(void *)neutron_write(machine, p->sums);
    const uint32_t rows = p->input.rows ? p->input.rows : p->height;
    const NeutronSumRange range = {p->output_zero, p->clamp_min, p->clamp_max};
    int32_t found[SUMS];
    if (p->y0 == 0) memmove(sums, neutron_read(machine, p->bias), (size_t)p->out_features * sizeof *sums);
    for (uint32_t j = 0; j < p->out_features; j += SUMS) {
        NeutronGemm g = {.a_pitch = p->row, .m = 1, .k = p->row, .raw = found, .bias = sums + j};
        g.n = p->out_features - j < SUMS ? p->out_features - j : SUMS;
        for (uint32_t y = p->y0; y < p->y1; ++y) {
            NEUTRON_TRY(neutron_check_stop(machine));
            g.a = input + (size_t)(y % rows) * p->row;
            g.weights = weights + ((size_t)y * p->out_features + j) * p->row;
            neutron_gemm(&g);
            memcpy(sums + j, found, g.n * sizeof *sums);
        }
    }
    if (p->y1 == p->height) {
        neutron_scale_sums(sums, scales, p->out_features, &range, (int8_t *)neutron_write(machine, p->output));
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_fully_connected_rows, NeutronFullyConnectedRowsParams, check, run)
