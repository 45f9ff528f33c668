/* Splitting a kernel call: a copy of its parameters for each part, narrowed to its share. */
#include "split.h"

#ifdef NEUTRON_THREADED

#include "gemm.h"

/* What less work than this takes (in multiplications of a convolution), handing it to another thread takes, too. */
#ifndef NEUTRON_LEAST_WORK /* tests build with less, to split every call */
#define NEUTRON_LEAST_WORK 32768u
#endif

/* What a tap of a pool, an element of a walk, a byte looked up and one moved take, in such multiplications. */
#define POOL_WORK 4u
#define WALK_WORK 16u
#define ROWS_WORK 32u
#define MOVE_WORK 32u
#define RESIZE_WORK 64u

#define POOL_CHANNELS 32u /* at a time in pools (pool.h) */
#define PRODUCT_PIXELS 8u /* at a time in products */
#define LINE 64u          /* bytes of the cache that two threads should not write to */

/* The outermost dimension that gives every part several steps, else the longest: inner ones make rows short. */
static uint32_t longest(const uint32_t dims[NEUTRON_MAX_RANK], uint32_t most) {
    uint32_t found = 0;
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        if (dims[d] >= 8u * most) return d;
        if (dims[d] > dims[found]) found = d;
    }
    return found;
}

/* A map of single pixels behind one another, in and out: those of a 1x1 window with stride 1. */
static bool is_line(uint32_t kind, const NeutronWindowForm *p) {
    const NeutronWindow *w = &p->window;
    return kind == NEUTRON_KERNEL_CONV_2D_POINTWISE && w->batch == 1 && w->stride_h == 1 && w->stride_w == 1 &&
           w->in_w == w->out_w && p->input.row == w->in_w * p->input.pixel &&
           p->output.row == w->out_w * p->output.pixel && p->input.ref.rows == 0 && p->output.ref.rows == 0;
}

static bool is_pool(uint32_t kind) {
    return kind == NEUTRON_KERNEL_AVERAGE_POOL_2D || kind == NEUTRON_KERNEL_MAX_POOL_2D;
}

static uint64_t split_window(NeutronSplit *s, const NeutronWindowForm *p, uint32_t most) {
    const NeutronWindow *w = &p->window;
    const uint32_t rows = w->y1 - w->y0;
    s->axis = NEUTRON_AXIS_ROWS;
    s->count = rows;
    if (is_pool(s->kind) && rows < most) {
        s->axis = NEUTRON_AXIS_CHANNELS;
        s->each = POOL_CHANNELS;
        s->count = w->out_c;
    } else if (rows % most != 0 && is_line(s->kind, p)) { /* else by rows, as layers before and behind it are */
        s->axis = NEUTRON_AXIS_PIXELS;
        s->count = rows * w->out_w;
    }
    uint64_t work = (uint64_t)w->batch * rows * w->out_w * w->out_c * w->kernel_h * w->kernel_w;
    return work * (s->form == NEUTRON_FORM_WINDOW ? w->in_c : POOL_WORK);
}

static uint64_t split_dims(NeutronSplit *s, const uint32_t dims[NEUTRON_MAX_RANK], uint32_t each, uint32_t most) {
    uint64_t work = each;
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) work *= dims[d];
    s->axis = NEUTRON_AXIS_DIM;
    s->dim = longest(dims, most);
    s->count = dims[s->dim];
    return work;
}

static uint64_t split_rows(NeutronSplit *s, const NeutronRowsForm *p) {
    s->axis = p->rows > 1 ? NEUTRON_AXIS_ROWS : NEUTRON_AXIS_LENGTH;
    s->count = p->rows > 1 ? p->rows : p->length;
    if (p->rows == 1) s->each = LINE;
    return (uint64_t)ROWS_WORK * p->rows * p->length;
}

/* Whether results lie over the row that they are made of: then their order counts. */
static bool in_place(const NeutronProductForm *p) {
    return p->input.region == p->output.region && p->input.index == p->output.index &&
           p->input.offset < (uint64_t)p->output.offset + p->out_features &&
           p->output.offset < (uint64_t)p->input.offset + p->in_features;
}

/* Whether elements may be moved over others that have not been read yet: a window that is shifted in place. */
static bool moves_over_itself(const NeutronMoveForm *p) {
    if (p->input.region != p->output.region || p->input.index != p->output.index) return false;
    uint64_t in_end = (uint64_t)p->input.offset + p->element_bytes,
             out_end = (uint64_t)p->output.offset + p->element_bytes;
    uint64_t in_begin = p->input.offset;
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        const uint64_t steps = p->dims[d] - 1u;
        if (p->input_strides[d] < 0) in_begin -= steps * (0u - (uint64_t)(int64_t)p->input_strides[d]);
        else in_end += steps * (uint32_t)p->input_strides[d];
        out_end += steps * (uint32_t)p->output_strides[d];
    }
    return in_begin < out_end && p->output.offset < in_end;
}

/* By rows, or one row by channels: the distance between output rows is not a parameter. */
static uint64_t split_product(NeutronSplit *s, const NeutronProductForm *p) {
    if (p->rows == 1 && in_place(p)) return 0;
    s->axis = p->rows > 1 ? NEUTRON_AXIS_ROWS : NEUTRON_AXIS_CHANNELS;
    s->count = p->rows > 1 ? p->rows : p->out_features;
    if (p->rows == 1) s->each = NEUTRON_BLOCK;
    return (uint64_t)p->rows * p->in_features * p->out_features;
}

NeutronSplit neutron_split(uint32_t kind, const void *parameters, uint32_t most) {
    const NeutronCallCopy *c = (const NeutronCallCopy *)parameters; /* only the form's member is read */
    NeutronSplit s = {.kind = kind, .form = (NeutronForm)neutron_forms[kind], .each = 1, .parts = 1};
    uint64_t work = 0;
    switch (s.form) {
        case NEUTRON_FORM_WINDOW:
        case NEUTRON_FORM_POOL: work = split_window(&s, &c->window, most); break;
        case NEUTRON_FORM_WALK: work = split_dims(&s, c->walk.walk.dims, WALK_WORK, most); break;
        case NEUTRON_FORM_MOVE:
            if (moves_over_itself(&c->move)) return s;
            work = split_dims(&s, c->move.dims, MOVE_WORK * c->move.element_bytes, most);
            break;
        case NEUTRON_FORM_ROWS: work = split_rows(&s, &c->rows); break;
        case NEUTRON_FORM_PRODUCT: work = split_product(&s, &c->product); break;
        case NEUTRON_FORM_RESIZE: {
            const NeutronResizeForm *r = &c->resize;
            s.axis = NEUTRON_AXIS_ROWS;
            s.count = r->y1 - r->y0;
            work = (uint64_t)RESIZE_WORK * r->batch * s.count * r->out_w * r->channels;
            break;
        }
        case NEUTRON_FORM_ACCUMULATE:
        case NEUTRON_FORM_WHOLE: return s;
    }
    const uint64_t worth = work / NEUTRON_LEAST_WORK, pieces = s.count / s.each;
    uint64_t parts = worth < pieces ? worth : pieces;
    if (parts > most) parts = most;
    if (parts > 1) s.parts = (uint32_t)parts;
    return s;
}

/* Where a part begins: those before it have at most one piece more. */
static uint32_t begin_of(const NeutronSplit *s, uint32_t part) {
    if (part == s->parts) return s->count;
    uint64_t pieces = s->count / s->each;
    uint64_t begin = (pieces * part + s->parts - 1u) / s->parts * s->each;
    if (s->axis == NEUTRON_AXIS_PIXELS) { /* whole tiles, where that makes no part much longer */
        uint64_t more = (PRODUCT_PIXELS - begin % PRODUCT_PIXELS) % PRODUCT_PIXELS;
        if (more * 16u * s->parts <= s->count) begin += more;
    }
    return (uint32_t)begin;
}

static void move(NeutronRef *ref, int32_t stride, uint32_t steps) {
    ref->offset += (uint32_t)stride * steps; /* the check phase has bounded every element's address */
}

static void narrow_window(NeutronWindowForm *p, NeutronAxis axis, uint32_t begin, uint32_t end) {
    NeutronWindow *w = &p->window;
    if (axis == NEUTRON_AXIS_ROWS) {
        w->y1 = w->y0 + end;
        w->y0 += begin;
    } else if (axis == NEUTRON_AXIS_CHANNELS) {
        move(&p->input.ref, 1, begin);
        move(&p->output.ref, 1, begin);
        w->in_c = w->out_c = end - begin;
    } else { /* the pixels are one row */
        const uint32_t first = w->y0 * w->out_w + begin, count = end - begin;
        move(&p->input.ref, (int32_t)p->input.pixel, first);
        move(&p->output.ref, (int32_t)p->output.pixel, first);
        p->input.row = count * p->input.pixel;
        p->output.row = count * p->output.pixel;
        w->in_h = w->out_h = w->y1 = 1;
        w->y0 = 0;
        w->in_w = w->out_w = count;
    }
}

static void narrow_product(NeutronProductForm *p, NeutronAxis axis, uint32_t begin, uint32_t end) {
    if (axis == NEUTRON_AXIS_ROWS) {
        move(&p->input, (int32_t)p->in_features, begin);
        move(&p->output, (int32_t)p->out_features, begin);
        p->rows = end - begin;
        return;
    }
    p->out_features = end - begin;
    move(&p->output, 1, begin);
    move(&p->weights, (int32_t)(neutron_groups(p->in_features) * NEUTRON_GROUP), begin);
    move(&p->bias, sizeof(int32_t), begin);
    move(&p->scales, sizeof(double), begin);
}

static void narrow_rows(NeutronRowsForm *p, NeutronAxis axis, uint32_t begin, uint32_t end) {
    const bool rows = axis == NEUTRON_AXIS_ROWS;
    move(&p->input, rows ? (int32_t)p->input_pitch : 1, begin);
    move(&p->output, rows ? (int32_t)p->output_pitch : 1, begin);
    if (rows) p->rows = end - begin;
    else p->length = end - begin;
}

static void narrow(const NeutronSplit *s, uint32_t begin, uint32_t end, NeutronCallCopy *c) {
    switch (s->form) {
        case NEUTRON_FORM_WINDOW:
        case NEUTRON_FORM_POOL: narrow_window(&c->window, s->axis, begin, end); return;
        case NEUTRON_FORM_PRODUCT: narrow_product(&c->product, s->axis, begin, end); return;
        case NEUTRON_FORM_ROWS: narrow_rows(&c->rows, s->axis, begin, end); return;
        case NEUTRON_FORM_WALK: {
            NeutronBroadcast *w = &c->walk.walk;
            move(&w->a, w->a_strides[s->dim], begin);
            move(&w->b, w->b_strides[s->dim], begin);
            move(&w->output, w->output_strides[s->dim], begin);
            w->dims[s->dim] = end - begin;
            return;
        }
        case NEUTRON_FORM_MOVE: {
            NeutronMoveForm *m = &c->move;
            move(&m->input, m->input_strides[s->dim], begin);
            move(&m->output, m->output_strides[s->dim], begin);
            m->dims[s->dim] = end - begin;
            return;
        }
        case NEUTRON_FORM_RESIZE:
            c->resize.y1 = c->resize.y0 + end;
            c->resize.y0 += begin;
            return;
        case NEUTRON_FORM_ACCUMULATE:
        case NEUTRON_FORM_WHOLE: return;
    }
}

int32_t neutron_run_part(const NeutronSplit *s, const NeutronMachine *machine, const void *parameters, uint32_t part) {
    NeutronCallCopy call;
    memcpy(&call, parameters, neutron_record_bytes[s->kind] - 4u);
    narrow(s, begin_of(s, part), begin_of(s, part + 1u), &call);
    return neutronKernels[s->kind](machine, &call);
}

#endif
