/* Checks of addresses and geometry that kernels share. Everything is unsigned 64-bit with bounded factors, so
 * that no product can overflow: see NEUTRON_MAX_DIM. */
#include "kernel.h"

uint64_t neutron_plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

/* In halves: a division of 64 bits is a library function on a microcontroller. */
uint64_t neutron_times(uint64_t a, uint64_t b) {
    const uint64_t a_high = a >> 32, a_low = (uint32_t)a, b_high = b >> 32, b_low = (uint32_t)b;
    if (a_high != 0 && b_high != 0) return UINT64_MAX;
    const uint64_t high = a_high * b_low + a_low * b_high;
    return high > UINT32_MAX ? UINT64_MAX : neutron_plus(high << 32, a_low * b_low);
}

void neutron_count(const NeutronMachine *machine, uint64_t times, uint64_t each) {
    *machine->work = neutron_plus(*machine->work, neutron_times(times, each));
}

bool neutron_in_range(const void *parameters, const uint8_t *ranges) {
    static const struct {
        uint32_t least, more;
    } allowed[] = {NEUTRON_RANGES};
    const uint32_t *words = (const uint32_t *)parameters;
    for (uint32_t count = *ranges++; count != 0; count = *ranges++) {
        const uint32_t range = *ranges++, least = allowed[range & ~NEUTRON_PRODUCT].least,
                       more = allowed[range & ~NEUTRON_PRODUCT].more;
        const uint8_t *end = ranges + count;
        if (range & NEUTRON_PRODUCT) {
            uint64_t product = words[*ranges++]; /* of words that have been checked: it does not overflow */
            while (ranges != end) product *= words[*ranges++];
            if (product > more) return false;
        }
        while (ranges != end) {
            if (words[*ranges++] - least > more) return false;
        }
    }
    return true;
}

/* The size of a region, and what its base is aligned to. */
static int32_t find_region(const NeutronMachine *machine, NeutronRef ref, NeutronAccess access, uint64_t *bytes,
                           uint32_t *alignment) {
    const NeutronHeader *h = machine->header;
    const NeutronDescriptor *d = machine->descriptors;
    *alignment = NEUTRON_ALIGNMENT;
    switch (ref.region) {
        case NEUTRON_REGION_INPUT:
            if (ref.index >= h->inputs) return NEUTRON_STATUS_BOUNDS;
            if (access == NEUTRON_WRITE) return NEUTRON_STATUS_READ_ONLY;
            if (d[ref.index].place != 0) return NEUTRON_STATUS_BOUNDS; /* it is in scratch: there is no buffer */
            *bytes = d[ref.index].bytes;
            *alignment = neutron_element_bytes(d[ref.index].dtype);
            return NEUTRON_STATUS_OK;
        case NEUTRON_REGION_OUTPUT:
            if (ref.index >= h->outputs || d[h->inputs + ref.index].place != 0) return NEUTRON_STATUS_BOUNDS;
            *bytes = d[h->inputs + ref.index].bytes;
            *alignment = neutron_element_bytes(d[h->inputs + ref.index].dtype);
            return NEUTRON_STATUS_OK;
        case NEUTRON_REGION_SCRATCH: *bytes = h->scratch_bytes; return NEUTRON_STATUS_OK;
        case NEUTRON_REGION_PREFETCH: *bytes = h->prefetch_bytes; return NEUTRON_STATUS_OK;
        case NEUTRON_REGION_STATE: *bytes = h->state_bytes; return NEUTRON_STATUS_OK;
        case NEUTRON_REGION_WEIGHTS:
            if (access == NEUTRON_WRITE) return NEUTRON_STATUS_READ_ONLY;
            *bytes = h->weights_bytes;
            return NEUTRON_STATUS_OK;
        default: return NEUTRON_STATUS_BOUNDS;
    }
}

int32_t neutron_check_bytes(const NeutronMachine *machine, NeutronRef ref, uint64_t bytes, uint32_t alignment,
                            NeutronAccess access) {
    uint64_t available = 0;
    uint32_t base = 1;
    NEUTRON_TRY(find_region(machine, ref, access, &available, &base));
    if (ref.offset > available || bytes > available - ref.offset) return NEUTRON_STATUS_BOUNDS;
    if (ref.offset % alignment != 0 || base % alignment != 0) return NEUTRON_STATUS_ALIGNMENT;
    return NEUTRON_STATUS_OK;
}

int32_t neutron_check_table(const NeutronMachine *machine, NeutronRef ref, uint64_t entries) {
    NEUTRON_REQUIRE(ref.region == NEUTRON_REGION_WEIGHTS || ref.region == NEUTRON_REGION_PREFETCH);
    return neutron_check_bytes(machine, ref, entries * sizeof(int32_t), sizeof(int32_t), NEUTRON_READ);
}

uint64_t neutron_elements(const uint32_t dims[NEUTRON_MAX_RANK]) {
    uint64_t product = 1;
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        if (dims[d] == 0 || dims[d] > NEUTRON_MAX_DIM) return UINT64_MAX;
        product *= dims[d];
        if (product > UINT32_MAX) return UINT64_MAX;
    }
    return product;
}

int32_t neutron_check_strided(const NeutronMachine *machine, NeutronRef ref, const uint32_t dims[NEUTRON_MAX_RANK],
                              const int32_t strides[NEUTRON_MAX_RANK], uint32_t element_bytes, NeutronAccess access) {
    uint64_t elements = neutron_elements(dims);
    NEUTRON_REQUIRE(elements != UINT64_MAX);
    uint64_t below = 0, above = 0; /* how far the block reaches before and behind `ref` */
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        uint64_t reach = (uint64_t)(dims[d] - 1u);
        if (strides[d] < 0) {
            below += reach * (0u - (uint64_t)(int64_t)strides[d]);
        } else {
            above += reach * (uint64_t)strides[d];
        }
    }
    if (below > ref.offset) return NEUTRON_STATUS_BOUNDS;
    /* Elements that do not overlap need this much room; it bounds every loop over a written block. */
    if (access == NEUTRON_WRITE && elements * element_bytes > below + above + element_bytes) {
        return NEUTRON_STATUS_PARAMETERS;
    }
    /* Elements are copied as bytes, so a base may lie anywhere; offsets that are no multiples are damage. */
    NEUTRON_TRY(neutron_check_bytes(machine, ref, above + element_bytes, 1, access));
    if (access == NEUTRON_WRITE) neutron_count(machine, elements, NEUTRON_ELEMENT_WORK);
    if (ref.offset % element_bytes != 0) return NEUTRON_STATUS_ALIGNMENT;
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK && element_bytes > 1; ++d) {
        if (strides[d] % (int32_t)element_bytes != 0) return NEUTRON_STATUS_ALIGNMENT;
    }
    return NEUTRON_STATUS_OK;
}

static int32_t check_view(const NeutronMachine *machine, const NeutronView *view, uint32_t batch, uint32_t height,
                          uint32_t width, uint32_t channels, NeutronAccess access) {
    uint64_t rows = neutron_rows(view, height);
    NEUTRON_REQUIRE(view->pixel >= channels && (uint64_t)width * channels <= UINT32_MAX);
    uint64_t row_bytes = (uint64_t)(width - 1u) * view->pixel + channels;
    NEUTRON_REQUIRE(row_bytes <= view->row);
    NEUTRON_REQUIRE((uint64_t)batch * rows <= UINT32_MAX);
    uint64_t bytes = ((uint64_t)batch * rows - 1u) * view->row + row_bytes;
    return neutron_check_bytes(machine, view->ref, bytes, 1, access);
}

int32_t neutron_check_window(const NeutronMachine *machine, const NeutronWindow *w, const NeutronView *input,
                             const NeutronView *output, uint32_t depth) {
    NEUTRON_REQUIRE(w->y0 < w->y1 && w->y1 <= w->out_h);
    NEUTRON_TRY(check_view(machine, input, w->batch, w->in_h, w->in_w, w->in_c, NEUTRON_READ));
    NEUTRON_TRY(check_view(machine, output, w->batch, w->out_h, w->out_w, w->out_c, NEUTRON_WRITE));
    /* Rows that a rolling buffer would hold at one address must not be needed by one call. The window's limits on
     * products keep all of it below 2^31. */
    int32_t first = (int32_t)(w->y0 * w->stride_h) - w->pad_top;
    int32_t end = (int32_t)((w->y1 - 1u) * w->stride_h + (w->kernel_h - 1u) * w->dilation_h) + 1 - w->pad_top;
    if (first < 0) first = 0;
    if (end > (int32_t)w->in_h) end = (int32_t)w->in_h;
    if (end - first > (int32_t)neutron_rows(input, w->in_h)) return NEUTRON_STATUS_BOUNDS;
    if (w->y1 - w->y0 > neutron_rows(output, w->out_h)) return NEUTRON_STATUS_BOUNDS;
    const uint64_t row = neutron_times((uint64_t)w->out_w * w->out_c, NEUTRON_ELEMENT_WORK);
    const uint64_t taps =
        neutron_times((uint64_t)w->out_w * w->out_c, neutron_times((uint64_t)w->kernel_h * w->kernel_w, depth));
    neutron_count(machine, (uint64_t)w->batch * (w->y1 - w->y0), neutron_plus(row, taps));
    return NEUTRON_STATUS_OK;
}

int32_t neutron_check_rows(const NeutronMachine *machine, NeutronRef ref, uint32_t height, uint32_t row, uint64_t used,
                           uint32_t y0, uint32_t y1) {
    uint64_t rows = ref.rows ? ref.rows : height;
    NEUTRON_REQUIRE(y0 < y1 && y1 <= height && used <= row);
    if (y1 - y0 > rows) return NEUTRON_STATUS_BOUNDS;
    return neutron_check_bytes(machine, ref, (rows - 1u) * row + used, 1, NEUTRON_READ);
}

int32_t neutron_check_broadcast(const NeutronMachine *machine, const NeutronBroadcast *walk) {
    NEUTRON_TRY(neutron_check_strided(machine, walk->a, walk->dims, walk->a_strides, 1, NEUTRON_READ));
    NEUTRON_TRY(neutron_check_strided(machine, walk->b, walk->dims, walk->b_strides, 1, NEUTRON_READ));
    return neutron_check_strided(machine, walk->output, walk->dims, walk->output_strides, 1, NEUTRON_WRITE);
}

int32_t neutron_check_reduction(const NeutronMachine *machine, NeutronRef input, NeutronRef output,
                                const uint32_t kept[NEUTRON_MAX_RANK], const int32_t kept_strides[NEUTRON_MAX_RANK],
                                const uint32_t reduced[NEUTRON_MAX_RANK],
                                const int32_t reduced_strides[NEUTRON_MAX_RANK]) {
    uint64_t outputs = neutron_elements(kept), each = neutron_elements(reduced), above = 0;
    NEUTRON_REQUIRE(outputs != UINT64_MAX && each != UINT64_MAX);
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        NEUTRON_REQUIRE(kept_strides[d] >= 0 && reduced_strides[d] >= 0);
        above += (uint64_t)(kept[d] - 1u) * (uint64_t)kept_strides[d];
        above += (uint64_t)(reduced[d] - 1u) * (uint64_t)reduced_strides[d];
    }
    /* Every input element is read once, so there are no more steps than bytes in the region. */
    NEUTRON_REQUIRE(outputs * each <= above + 1u);
    NEUTRON_TRY(neutron_check_bytes(machine, input, above + 1u, 1, NEUTRON_READ));
    neutron_count(machine, neutron_times(outputs, each), NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, output, outputs, 1, NEUTRON_WRITE);
}
