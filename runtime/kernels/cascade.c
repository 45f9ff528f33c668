/* CASCADE: the calls behind it, its stages, computed in stripes of rows, interleaved as its steps say.
 *
 * Feature maps between stages need never be whole: a rolling buffer holds the rows still needed. Each step runs a
 * copy of the stage's parameters in which only the range of rows is the step's. The check phase goes through the
 * same steps and checks the same copies, so that what runs is exactly what was checked.
 */
#include "kernel.h"

/* The kinds of stages: all window kernels have their views and window at the same place, all element-wise ones
 * their walk. */
typedef union {
    uint32_t words[1];
    struct {
        NeutronView input, output;
        NeutronWindow window;
    } window;
    NeutronBroadcast walk;
    NeutronTableParams table;
    NeutronConv2DParams conv_2d;
    NeutronConv2DPlanarParams conv_2d_planar;
    NeutronConv2DPointwiseParams conv_2d_pointwise;
    NeutronDepthwiseConv2DParams depthwise_conv_2d;
    NeutronAveragePool2DParams average_pool_2d;
    NeutronMaxPool2DParams max_pool_2d;
    NeutronAddParams add;
    NeutronMulParams mul;
    NeutronExtremumParams extremum;
    NeutronSquaredDifferenceParams squared_difference;
    NeutronPreluParams prelu;
} Stage;

#define SAME_PLACE(Type)                                                                           \
    static_assert(offsetof(Type, window) == 2 * sizeof(NeutronView), "windows are at one place"); \
    static_assert(offsetof(Type, output) == sizeof(NeutronView), "so are the views")
SAME_PLACE(NeutronConv2DParams);
SAME_PLACE(NeutronConv2DPlanarParams);
SAME_PLACE(NeutronConv2DPointwiseParams);
SAME_PLACE(NeutronDepthwiseConv2DParams);
SAME_PLACE(NeutronAveragePool2DParams);
SAME_PLACE(NeutronMaxPool2DParams);
static_assert(offsetof(NeutronAddParams, walk) == 0 && offsetof(NeutronMulParams, walk) == 0 &&
                  offsetof(NeutronExtremumParams, walk) == 0 && offsetof(NeutronPreluParams, walk) == 0 &&
                  offsetof(NeutronSquaredDifferenceParams, walk) == 0,
              "walks come first");

typedef enum { NO_STAGE, WINDOW, WALK, TABLE } Form;

static Form form_of(uint32_t kind) {
    switch (kind) {
        case NEUTRON_KERNEL_CONV_2D:
        case NEUTRON_KERNEL_CONV_2D_PLANAR:
        case NEUTRON_KERNEL_CONV_2D_POINTWISE:
        case NEUTRON_KERNEL_DEPTHWISE_CONV_2D:
        case NEUTRON_KERNEL_AVERAGE_POOL_2D:
        case NEUTRON_KERNEL_MAX_POOL_2D: return WINDOW;
        case NEUTRON_KERNEL_ADD:
        case NEUTRON_KERNEL_MUL:
        case NEUTRON_KERNEL_EXTREMUM:
        case NEUTRON_KERNEL_SQUARED_DIFFERENCE:
        case NEUTRON_KERNEL_PRELU: return WALK;
        case NEUTRON_KERNEL_TABLE: return TABLE;
        default: return NO_STAGE;
    }
}

static uint32_t word_at(const uint8_t *record) { return *(const uint32_t *)(const void *)record; }

/* Where each stage's record is; in the check phase also that it is there, and of a kernel that can be a stage. */
static int32_t find_stages(const NeutronMachine *machine, const NeutronCascadeParams *p, const uint8_t *stages[NEUTRON_MAX_STAGES]) {
    const NeutronHeader *h = machine->header;
    const uint8_t *record = (const uint8_t *)(p + 1) + (size_t)p->count * sizeof(NeutronStep);
    const uint8_t *end = (const uint8_t *)h + h->microcode_bytes;
    for (uint32_t i = 0; i < p->stages; ++i) {
        if (machine->phase == NEUTRON_PHASE_CHECK) {
            if (end - record < 4) return NEUTRON_STATUS_CALL;
            uint32_t kind = word_at(record) & 0xFFFFu, size = word_at(record) >> 16;
            NEUTRON_REQUIRE(form_of(kind) != NO_STAGE);
            if (size != neutron_record_bytes[kind] || end - record < (ptrdiff_t)size) return NEUTRON_STATUS_CALL;
            if (neutronKernels[kind] == NULL) return NEUTRON_STATUS_KERNEL_MISSING;
        }
        stages[i] = record;
        record += word_at(record) >> 16;
    }
    return NEUTRON_STATUS_OK;
}

/* Move an address to row y, of which rows .. y + count - 1 lie behind one another. */
static int32_t move(NeutronRef *ref, int32_t stride, uint32_t y, uint32_t count) {
    if (stride == 0) return NEUTRON_STATUS_OK; /* the same for every row */
    uint32_t rows = ref->rows;
    if (rows != 0) {
        y %= rows;
        if (count > rows - y) return NEUTRON_STATUS_BOUNDS;
        ref->rows = 0;
    }
    NEUTRON_REQUIRE(stride > 0);
    uint64_t offset = ref->offset + (uint64_t)y * (uint32_t)stride;
    if (offset > UINT32_MAX) return NEUTRON_STATUS_BOUNDS;
    ref->offset = (uint32_t)offset;
    return NEUTRON_STATUS_OK;
}

/* Narrow a stage to the rows of a step. */
static int32_t narrow(Stage *stage, Form form, const NeutronStep *step) {
    uint32_t y0 = step->y0, count = (uint32_t)step->y1 - step->y0;
    switch (form) {
        case WINDOW:
            NEUTRON_REQUIRE(step->y1 <= stage->window.window.out_h);
            stage->window.window.y0 = y0;
            stage->window.window.y1 = step->y1;
            return NEUTRON_STATUS_OK;
        case WALK: {
            NeutronBroadcast *w = &stage->walk;
            NEUTRON_REQUIRE(step->y1 <= w->dims[0]);
            NEUTRON_TRY(move(&w->a, w->a_strides[0], y0, count));
            NEUTRON_TRY(move(&w->b, w->b_strides[0], y0, count));
            NEUTRON_TRY(move(&w->output, w->output_strides[0], y0, count));
            w->dims[0] = count;
            return NEUTRON_STATUS_OK;
        }
        case TABLE: {
            NeutronTableParams *t = &stage->table;
            NEUTRON_REQUIRE(step->y1 <= t->rows && t->input_pitch <= INT32_MAX && t->output_pitch <= INT32_MAX);
            NEUTRON_TRY(move(&t->input, (int32_t)t->input_pitch, y0, count));
            NEUTRON_TRY(move(&t->output, (int32_t)t->output_pitch, y0, count));
            t->rows = count;
            return NEUTRON_STATUS_OK;
        }
        default: return NEUTRON_STATUS_PARAMETERS;
    }
}

int32_t neutron_cascade(const NeutronMachine *machine, const void *parameters) {
    const NeutronCascadeParams *p = (const NeutronCascadeParams *)parameters;
    const NeutronStep *steps = (const NeutronStep *)(const void *)(p + 1);
    const NeutronHooks *hooks = machine->phase == NEUTRON_PHASE_RUN ? machine->hooks : NULL;
    const uint8_t *stages[NEUTRON_MAX_STAGES];
    if (machine->phase == NEUTRON_PHASE_CHECK) {
        uint32_t size = word_at((const uint8_t *)parameters - 4) >> 16; /* the driver knows that it is all there */
        NEUTRON_REQUIRE(p->stages >= 1 && p->stages <= NEUTRON_MAX_STAGES);
        NEUTRON_REQUIRE(p->count == (size - neutron_record_bytes[NEUTRON_KERNEL_CASCADE]) / sizeof(NeutronStep));
    }
    NEUTRON_TRY(find_stages(machine, p, stages));
    for (uint32_t i = 0; i < p->count; ++i) {
        const NeutronStep *step = &steps[i];
        NEUTRON_REQUIRE(step->stage < p->stages && step->y0 < step->y1);
        const uint8_t *record = stages[step->stage];
        uint32_t kind = word_at(record) & 0xFFFFu, size = word_at(record) >> 16, call = machine->call + 1u + step->stage;
        Stage stage;
        memcpy(&stage, record + 4, size - 4u);
        NEUTRON_TRY(narrow(&stage, form_of(kind), step));
        if (hooks && hooks->trace) hooks->trace(hooks->context, call, kind, 1);
        int32_t status = neutronKernels[kind](machine, &stage);
        if (hooks && hooks->trace) hooks->trace(hooks->context, call, kind, 0);
        if (status != NEUTRON_STATUS_OK) return status;
    }
    return NEUTRON_STATUS_OK;
}
