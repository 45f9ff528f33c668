/* CASCADE: the calls behind it, its stages, computed in stripes of rows, interleaved as its steps say.
 *
 * Feature maps between stages need never be whole: a rolling buffer holds the rows still needed. Each step runs a
 * copy of the stage's parameters in which only the range of rows is the step's. The check phase goes through the
 * same steps and checks the same copies, so that what runs is exactly what was checked.
 */
#include "parallel.h"

static bool is_stage(uint32_t kind) {
    switch ((NeutronForm)neutron_forms[kind]) {
        case NEUTRON_FORM_WINDOW:
        case NEUTRON_FORM_POOL:
        case NEUTRON_FORM_WALK:
        case NEUTRON_FORM_ROWS:
        case NEUTRON_FORM_MOVE:
        case NEUTRON_FORM_RESIZE:
        case NEUTRON_FORM_PRODUCT:
        case NEUTRON_FORM_ACCUMULATE: return true;
        case NEUTRON_FORM_WHOLE: return false;
    }
    return false;
}

static uint32_t word_at(const uint8_t *record) { return *(const uint32_t *)(const void *)record; }

/* Where each stage's record is; in the check phase also that it is there, and of a kernel that can be a stage. */
static int32_t find_stages(const NeutronMachine *machine, const NeutronCascadeParams *p,
                           const uint8_t *stages[NEUTRON_MAX_STAGES]) {
    const NeutronHeader *h = machine->header;
    const uint8_t *record = (const uint8_t *)(p + 1) + (size_t)p->count * sizeof(NeutronStep);
    const uint8_t *end = (const uint8_t *)h + h->microcode_bytes;
    for (uint32_t i = 0; i < p->stages; ++i) {
        if (machine->phase == NEUTRON_PHASE_CHECK) {
            if (end - record < 4) return NEUTRON_STATUS_CALL;
            uint32_t kind = word_at(record) & 0xFFFFu, size = word_at(record) >> 16;
            NEUTRON_REQUIRE(kind < NEUTRON_KERNEL_KINDS && is_stage(kind));
            if (size != neutron_record_bytes[kind] || end - record < (ptrdiff_t)size) return NEUTRON_STATUS_CALL;
            if (neutronKernels[kind] == NULL) return NEUTRON_STATUS_KERNEL_MISSING;
        }
        stages[i] = record;
        record += word_at(record) >> 16;
    }
    return NEUTRON_STATUS_OK;
}

/* How many of `count` rows from y on lie behind one another: all, or those up to the end of a rolling buffer. */
static uint32_t together(NeutronRef ref, uint32_t y, uint32_t count) {
    if (ref.rows == 0) return count;
    uint32_t left = ref.rows - y % ref.rows;
    return left < count ? left : count;
}

/* Move an address to row y. */
static int32_t move(NeutronRef *ref, int32_t stride, uint32_t y) {
    if (stride == 0) return NEUTRON_STATUS_OK; /* the same for every row */
    NEUTRON_REQUIRE(stride > 0);
    uint64_t offset = ref->offset + (uint64_t)(ref->rows ? y % ref->rows : y) * (uint32_t)stride;
    if (offset > UINT32_MAX) return NEUTRON_STATUS_BOUNDS;
    ref->offset = (uint32_t)offset;
    ref->rows = 0;
    return NEUTRON_STATUS_OK;
}

/* No more rows at a time than a rolling buffer holds. */
static bool holds(NeutronRef ref, const NeutronStep *step) {
    return ref.rows == 0 || (uint32_t)(step->y1 - step->y0) <= ref.rows;
}

/* Narrow a stage to rows of a step from *y on, and move *y behind them: all of them, but for an element-wise kernel,
 * which knows nothing of rolling buffers, only those that lie behind one another in each operand. */
static int32_t narrow(NeutronCallCopy *stage, NeutronForm form, const NeutronStep *step, uint32_t *y) {
    uint32_t first = *y, count = step->y1 - first;
    if (form == NEUTRON_FORM_WINDOW || form == NEUTRON_FORM_POOL) {
        NEUTRON_REQUIRE(step->y1 <= stage->window.window.out_h);
        stage->window.window.y0 = first;
        stage->window.window.y1 = step->y1;
    } else if (form == NEUTRON_FORM_WALK) {
        NeutronBroadcast *w = &stage->walk.walk;
        NEUTRON_REQUIRE(step->y1 <= w->dims[0]);
        if (!holds(w->a, step) || !holds(w->b, step) || !holds(w->output, step)) return NEUTRON_STATUS_BOUNDS;
        count = together(w->a, first, together(w->b, first, together(w->output, first, count)));
        NEUTRON_TRY(move(&w->a, w->a_strides[0], first));
        NEUTRON_TRY(move(&w->b, w->b_strides[0], first));
        NEUTRON_TRY(move(&w->output, w->output_strides[0], first));
        w->dims[0] = count;
    } else if (form == NEUTRON_FORM_RESIZE) {
        NEUTRON_REQUIRE(step->y1 <= stage->resize.out_h);
        stage->resize.y0 = first;
        stage->resize.y1 = step->y1;
    } else if (form == NEUTRON_FORM_ACCUMULATE) {
        stage->accumulate.y0 = first; /* that they are rows of it the kernel checks */
        stage->accumulate.y1 = step->y1;
    } else if (form == NEUTRON_FORM_PRODUCT) {
        NeutronProductForm *p = &stage->product;
        NEUTRON_REQUIRE(step->y1 <= p->rows && p->in_features <= INT32_MAX && p->out_features <= INT32_MAX);
        if (!holds(p->input, step) || !holds(p->output, step)) return NEUTRON_STATUS_BOUNDS;
        count = together(p->input, first, together(p->output, first, count));
        NEUTRON_TRY(move(&p->input, (int32_t)p->in_features, first));
        NEUTRON_TRY(move(&p->output, (int32_t)p->out_features, first));
        p->rows = count;
    } else if (form == NEUTRON_FORM_MOVE) {
        NeutronMoveForm *m = &stage->move;
        NEUTRON_REQUIRE(step->y1 <= m->dims[0]);
        if (!holds(m->input, step) || !holds(m->output, step)) return NEUTRON_STATUS_BOUNDS;
        count = together(m->input, first, together(m->output, first, count));
        NEUTRON_TRY(move(&m->input, m->input_strides[0], first));
        NEUTRON_TRY(move(&m->output, m->output_strides[0], first));
        m->dims[0] = count;
    } else {
        NeutronRowsForm *t = &stage->rows;
        NEUTRON_REQUIRE(step->y1 <= t->rows && t->input_pitch <= INT32_MAX && t->output_pitch <= INT32_MAX);
        if (!holds(t->input, step) || !holds(t->output, step)) return NEUTRON_STATUS_BOUNDS;
        count = together(t->input, first, together(t->output, first, count));
        NEUTRON_TRY(move(&t->input, (int32_t)t->input_pitch, first));
        NEUTRON_TRY(move(&t->output, (int32_t)t->output_pitch, first));
        t->rows = count;
    }
    *y += count;
    return NEUTRON_STATUS_OK;
}

int32_t neutron_cascade(const NeutronMachine *machine, const void *parameters) {
    const NeutronCascadeParams *p = (const NeutronCascadeParams *)parameters;
    const NeutronStep *steps = (const NeutronStep *)(const void *)(p + 1);
    const NeutronHooks *hooks = machine->phase == NEUTRON_PHASE_RUN ? machine->hooks : NULL;
    const uint8_t *stages[NEUTRON_MAX_STAGES];
    if (machine->phase == NEUTRON_PHASE_CHECK) {
        uint32_t size = word_at((const uint8_t *)parameters - 4) >> 16; /* the driver knows that it is all there */
        static const uint8_t ranges[] = {NeutronCascadeParams_RANGES};
        NEUTRON_REQUIRE(neutron_in_range(p, ranges));
        NEUTRON_REQUIRE(p->count == (size - neutron_record_bytes[NEUTRON_KERNEL_CASCADE]) / sizeof(NeutronStep));
    }
    NEUTRON_TRY(find_stages(machine, p, stages));
    for (uint32_t i = 0; i < p->count; ++i) {
        const NeutronStep *step = &steps[i];
        NEUTRON_REQUIRE(step->stage < p->stages && step->y0 < step->y1);
        const uint8_t *record = stages[step->stage];
        uint32_t kind = word_at(record) & 0xFFFFu, size = word_at(record) >> 16,
                 call = machine->call + 1u + step->stage;
        if (hooks && hooks->trace) hooks->trace(hooks->context, call, kind, 1);
        for (uint32_t y = step->y0; y < step->y1;) {
            NeutronCallCopy stage;
            memcpy(&stage, record + 4, size - 4u);
            NEUTRON_TRY(narrow(&stage, (NeutronForm)neutron_forms[kind], step, &y));
            NEUTRON_TRY(neutron_call(machine, kind, &stage));
        }
        if (hooks && hooks->trace) hooks->trace(hooks->context, call, kind, 0);
    }
    return NEUTRON_STATUS_OK;
}
