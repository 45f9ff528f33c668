/* COPY: elements of 1, 2, 4 or 8 bytes from one strided layout to another: slices, transposes, concatenation,
 * tiles, depth to space. Up to six dims; strides in bytes, an input stride may be negative (reversed) or 0
 * (repeated). Input and output must not overlap, but for equal addresses and strides, and for runs of bytes of which
 * each is moved over itself alone: a window that is shifted in place.
 */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronCopyParams *p) {
    uint32_t size = p->element_bytes;
    NEUTRON_REQUIRE(size == 1 || size == 2 || size == 4 || size == 8);
    NEUTRON_TRY(neutron_check_strided(machine, p->input, p->dims, p->input_strides, size, NEUTRON_READ));
    return neutron_check_strided(machine, p->output, p->dims, p->output_strides, size, NEUTRON_WRITE);
}

/* Bytes that a caller passes on through registers: this is one load and one store where `bytes` is a constant. */
static inline void copy_few(uint8_t *out, const uint8_t *in, size_t bytes) {
    uint8_t kept[32];
    memcpy(kept, in, bytes);
    memcpy(out, kept, bytes);
}

#define ROWS_OF(bytes)                                                                   \
    case bytes:                                                                          \
        for (uint32_t i = 0; i < rows; ++i)                                              \
            copy_few(out + (ptrdiff_t)i * out_step, in + (ptrdiff_t)i * in_step, bytes); \
        return;

/* `rows` runs of `bytes` bytes. */
static void copy_rows(const uint8_t *in, ptrdiff_t in_step, uint8_t *out, ptrdiff_t out_step, uint32_t rows,
                      size_t bytes) {
    switch (bytes) {
        ROWS_OF(1)
        ROWS_OF(2)
        ROWS_OF(4)
        ROWS_OF(8)
#if defined(__x86_64__) || defined(__aarch64__) /* what has such registers */
        ROWS_OF(16)
        ROWS_OF(24)
        ROWS_OF(32)
#endif
        default:
            for (uint32_t i = 0; i < rows; ++i) {
                memmove(out + (ptrdiff_t)i * out_step, in + (ptrdiff_t)i * in_step, bytes);
            }
    }
}

/* A layout without what it does not need: a run of bytes that lie side by side, and dims around it, the last ones first;
 * dims that both sides pass through without a gap are one. */
typedef struct {
    size_t bytes;
    uint32_t rank, dims[NEUTRON_MAX_RANK];
    int32_t in[NEUTRON_MAX_RANK], out[NEUTRON_MAX_RANK];
} Layout;

static Layout simplify(const NeutronCopyParams *p) {
    Layout l = {.bytes = p->element_bytes};
    for (uint32_t d = NEUTRON_MAX_RANK; d-- > 0;) {
        const uint32_t dim = p->dims[d];
        const int32_t in = p->input_strides[d], out = p->output_strides[d];
        if (dim == 1) continue;
        if (l.rank == 0 && in >= 0 && out >= 0 && (size_t)in == l.bytes && (size_t)out == l.bytes) {
            l.bytes *= dim;
            continue;
        }
        const uint32_t last = l.rank - 1u;
        if (l.rank > 0 && in == (int64_t)l.in[last] * l.dims[last] && out == (int64_t)l.out[last] * l.dims[last]) {
            l.dims[last] *= dim;
            continue;
        }
        l.dims[l.rank] = dim;
        l.in[l.rank] = in;
        l.out[l.rank] = out;
        ++l.rank;
    }
    return l;
}

static int32_t run(const NeutronMachine *machine, const NeutronCopyParams *p) {
    const uint8_t *input = neutron_read(machine, p->input);
    uint8_t *output = neutron_write(machine, p->output);
    Layout l = simplify(p);
    if (l.rank == 0) {
        memmove(output, input, l.bytes);
        return NEUTRON_STATUS_OK;
    }
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    for (;;) {
        copy_rows(input, l.in[0], output, l.out[0], l.dims[0], l.bytes);
        uint32_t d = 1;
        for (; d < l.rank; ++d) { /* the next place: an address behind the last one is never formed */
            if (++index[d] < l.dims[d]) break;
            input -= (ptrdiff_t)(l.dims[d] - 1u) * l.in[d];
            output -= (ptrdiff_t)(l.dims[d] - 1u) * l.out[d];
            index[d] = 0;
        }
        if (d >= l.rank) return NEUTRON_STATUS_OK;
        input += l.in[d];
        output += l.out[d];
    }
}

NEUTRON_KERNEL(neutron_copy, NeutronCopyParams, check, run)
