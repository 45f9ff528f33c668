/* FULLY_CONNECTED: int8 rows times packed weights (gemm.h), scaled in double precision.
 *
 * bias   int32 [out_features], less the input's zero point times the channel's weight sum
 * scales double [out_features]: input scale * weight scale / output scale
 *
 * LiteRT's reference scales this operator, and only this one, as round(double(sum) * scale). Multiplication of
 * doubles is correctly rounded everywhere, in software too, so this is exact on a core without a double unit.
 */
#include "convolution.h"
#include "scale_sums.h"

static int32_t check(const NeutronMachine *machine, const NeutronFullyConnectedParams *p) {
    NEUTRON_REQUIRE(p->clamp_min <= p->clamp_max);
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, (uint64_t)p->rows * p->in_features, 1, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->output, (uint64_t)p->rows * p->out_features, 1, NEUTRON_WRITE));
    NEUTRON_TRY(neutron_check_bytes(machine, p->bias, (uint64_t)p->out_features * 4u, 4, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_bytes(machine, p->scales, (uint64_t)p->out_features * 8u, 8, NEUTRON_READ));
    neutron_count(machine, p->rows, neutron_times(p->out_features, (uint64_t)p->in_features + NEUTRON_ELEMENT_WORK));
    return neutron_check_weights(machine, p->weights, p->out_features, p->in_features);
}

/* Sums kept on the stack, for so many rows at a time: a host takes 16 KiB, many columns for a few rows and fewer for
 * many. Columns are a multiple of the block of packed weights. */
#if defined(__x86_64__) || defined(__aarch64__)
#define SUMS 4096u
#define ROWS(rows) ((rows) > 8u ? 64u : 8u)
#else
#define SUMS 256u
#define ROWS(rows) 8u
#endif

/* Results that are computed together: columns from `first` to before `end`. */
typedef struct {
    uint32_t first, end;
} Columns;

static uint32_t whole_blocks(uint32_t columns) {
    return (columns + NEUTRON_BLOCK - 1u) / NEUTRON_BLOCK * NEUTRON_BLOCK;
}

/* The next at most `most` columns when `done` of them are done: from the first to the last, or `down`. The last ones
 * of a single row, NEUTRON_LAST_TOGETHER or what whole blocks leave of them, are computed together, and written when
 * nothing of the row is read any more: the compiler may lay them over its end, or over its beginning. Where it has not,
 * they are no different from the others. */
static Columns next_columns(uint32_t columns, uint32_t done, uint32_t most, bool over, bool down) {
    const uint32_t last = over && NEUTRON_LAST_TOGETHER < columns ? NEUTRON_LAST_TOGETHER : columns;
    if (down) {
        uint32_t end = columns - done, least = end > last ? last : 0;
        return (Columns){end - least > most ? whole_blocks(end - most) : least, end};
    }
    uint32_t end = whole_blocks(columns - last);
    if (done >= end) end = columns;
    return (Columns){done, end - done > most ? done + most : end};
}

static int32_t run(const NeutronMachine *machine, const NeutronFullyConnectedParams *p) {
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input);
    const int8_t *weights = (const int8_t *)neutron_read(machine, p->weights);
    const int32_t *bias = (const int32_t *)(const void *)neutron_read(machine, p->bias);
    const double *scales = (const double *)(const void *)neutron_read(machine, p->scales);
    int8_t *output = (int8_t *)neutron_write(machine, p->output);
    size_t channel_bytes = neutron_groups(p->in_features) * NEUTRON_GROUP;
    int32_t sums[SUMS];
    const uint32_t rows = ROWS(p->rows), most = SUMS / rows;
    const bool over = p->input.region == p->output.region &&
                      p->input.offset < (uint64_t)p->output.offset + (uint64_t)p->rows * p->out_features &&
                      p->output.offset < (uint64_t)p->input.offset + (uint64_t)p->rows * p->in_features;
    const bool down = over && p->output.offset > p->input.offset;
    const NeutronSumRange range = {p->output_zero, p->clamp_min, p->clamp_max};
    NeutronGemm g = {.a_pitch = p->in_features, .k = p->in_features, .raw = sums};
    for (uint32_t done = 0; done < p->out_features; done += g.n) {
        const Columns columns = next_columns(p->out_features, done, most, over, down);
        const uint32_t j = columns.first;
        g.n = columns.end - j;
        g.weights = weights + j * channel_bytes;
        g.bias = bias + j;
        for (uint32_t row = 0; row < p->rows; row += g.m) {
            NEUTRON_TRY(neutron_check_stop(machine));
            g.m = p->rows - row < rows ? p->rows - row : rows;
            g.a = input + (size_t)row * p->in_features;
            neutron_gemm(&g);
            for (uint32_t r = 0; r < g.m; ++r) {
                neutron_scale_sums(sums + r * g.n, scales + j, g.n, &range,
                                   output + (size_t)(row + r) * p->out_features + j);
            }
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_fully_connected, NeutronFullyConnectedParams, check, run)
