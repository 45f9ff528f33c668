/* RESIZE_BILINEAR: int8 NHWC, dense, in integers; output rows y0 <= y < y1.
 *
 * tables int32 [out_h + out_w][3]: for each output row, then column, the lower and the upper neighbour and the
 * position between them in 1/1024 (negative or above 1024 only where both are the same). They are data, so a
 * run checks each one that it reads.
 */
#include "kernel.h"

/* Rows in memory: all, or those of a rolling buffer. */
static uint32_t held(NeutronRef ref, uint32_t rows) { return ref.rows ? ref.rows : rows; }

static int32_t check(const NeutronMachine *machine, const NeutronResizeBilinearParams *p) {
    uint64_t in_pixels = (uint64_t)p->batch * held(p->input, p->in_h) * p->in_w;
    uint64_t out_pixels = (uint64_t)p->batch * held(p->output, p->out_h) * p->out_w;
    NEUTRON_REQUIRE(p->y0 < p->y1 && p->y1 <= p->out_h);
    if (p->y1 - p->y0 > held(p->output, p->out_h)) return NEUTRON_STATUS_BOUNDS;
    uint64_t entries = 3u * ((uint64_t)p->out_h + p->out_w);
    NEUTRON_TRY(neutron_check_table(machine, p->tables, entries));
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, in_pixels * p->channels, 1, NEUTRON_READ));
    neutron_count(machine, (uint64_t)p->batch * (p->y1 - p->y0),
                  neutron_times(p->channels, (uint64_t)p->out_w * NEUTRON_ELEMENT_WORK));
    return neutron_check_bytes(machine, p->output, out_pixels * p->channels, 1, NEUTRON_WRITE);
}

typedef struct {
    int32_t low, high, fraction;
} Place;

/* One place, read once: what is checked is what is used. */
static bool read_place(const volatile int32_t *table, uint32_t i, uint32_t size, Place *at) {
    at->low = table[3u * i];
    at->high = table[3u * i + 1u];
    at->fraction = table[3u * i + 2u];
    return (uint32_t)at->low < size && (uint32_t)at->high < size && at->fraction >= -4096 && at->fraction <= 4096;
}

static int32_t run(const NeutronMachine *machine, const NeutronResizeBilinearParams *p) {
    const int8_t *in = (const int8_t *)neutron_read(machine, p->input);
    const volatile int32_t *rows = (const volatile int32_t *)(const void *)neutron_read(machine, p->tables);
    const volatile int32_t *columns = rows + 3u * p->out_h;
    int8_t *base = (int8_t *)neutron_write(machine, p->output);
    uint32_t in_rows = held(p->input, p->in_h), out_rows = held(p->output, p->out_h);
    size_t row_bytes = (size_t)p->in_w * p->channels, out_bytes = (size_t)p->out_w * p->channels;
    for (uint32_t b = 0; b < p->batch; ++b, in += in_rows * row_bytes, base += out_rows * out_bytes) {
        for (uint32_t y = p->y0; y < p->y1; ++y) {
            NEUTRON_TRY(neutron_check_stop(machine));
            int8_t *out = base + y % out_rows * out_bytes;
            Place row, column;
            if (!read_place(rows, y, p->in_h, &row)) return NEUTRON_STATUS_DATA;
            const int8_t *upper = in + (uint32_t)row.low % in_rows * row_bytes;
            const int8_t *lower = in + (uint32_t)row.high % in_rows * row_bytes;
            int32_t fy = row.fraction;
            for (uint32_t x = 0; x < p->out_w; ++x, out += p->channels) {
                if (!read_place(columns, x, p->in_w, &column)) return NEUTRON_STATUS_DATA;
                size_t left = (size_t)column.low * p->channels, right = (size_t)column.high * p->channels;
                int32_t fx = column.fraction;
                for (uint32_t c = 0; c < p->channels; ++c) {
                    int64_t sum = (int64_t)((1024 - fy) * (1024 - fx)) * upper[left + c] +
                                  (int64_t)(fy * (1024 - fx)) * lower[left + c] +
                                  (int64_t)((1024 - fy) * fx) * upper[right + c] +
                                  (int64_t)(fy * fx) * lower[right + c];
                    int64_t half = sum > 0 ? 1 << 19 : -(1 << 19);
                    out[c] = (int8_t)((sum + half) / (1 << 20));
                }
            }
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_resize_bilinear, NeutronResizeBilinearParams, check, run)
