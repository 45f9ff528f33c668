/* Splitting a kernel call between threads: a copy of the parameters for each part, narrowed to its share. */
#include "parallel.h"

#ifdef NEUTRON_THREADED

#include "gemm.h"

#define MAX_PARTS 64u

/* Less work than this (multiplications, or bytes where there are none) is done before another thread has begun. */
#define LEAST_WORK 32768u

typedef struct {
    const NeutronMachine *machine;
    const void *parameters;
    uint32_t kind, parts, count, dim;
    NeutronForm form;
    int32_t status[MAX_PARTS];
} Work;

/* Whether results lie over the row that they are made of: then their order counts. */
static bool in_place(const NeutronProductForm *p) {
    return p->input.region == p->output.region && p->input.index == p->output.index &&
           p->input.offset < (uint64_t)p->output.offset + p->out_features &&
           p->output.offset < (uint64_t)p->input.offset + p->in_features;
}

/* Into how many parts the rows, elements or blocks of channels may be shared out; 0 or 1: the call stays whole. */
static uint32_t shares(Work *work) {
    const NeutronCallCopy *c = (const NeutronCallCopy *)work->parameters; /* only the form's member is read */
    uint64_t each = 0;
    switch (work->form) {
        case NEUTRON_FORM_WINDOW:
        case NEUTRON_FORM_POOL: {
            const NeutronWindow *w = &c->window.window;
            work->count = w->y1 - w->y0;
            each = (uint64_t)w->batch * w->out_w * w->out_c * w->kernel_h * w->kernel_w;
            if (work->form == NEUTRON_FORM_WINDOW) each *= w->in_c;
            break;
        }
        case NEUTRON_FORM_WALK: {
            const NeutronBroadcast *w = &c->walk.walk;
            each = 16; /* what an element costs, in multiplications */
            for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
                if (w->dims[d] > w->dims[work->dim]) work->dim = d;
            }
            for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) each *= d == work->dim ? 1u : w->dims[d];
            work->count = w->dims[work->dim];
            break;
        }
        case NEUTRON_FORM_PRODUCT: {
            const NeutronProductForm *p = &c->product;
            if (p->rows == 1 && in_place(p)) return 0;
            /* By rows, or one row by channels: the distance between output rows is not a parameter. */
            work->count = p->rows > 1 ? p->rows : p->out_features / NEUTRON_BLOCK;
            each = (uint64_t)p->in_features * (p->rows > 1 ? p->out_features : NEUTRON_BLOCK);
            break;
        }
        case NEUTRON_FORM_ROWS:
        case NEUTRON_FORM_MOVE:
        case NEUTRON_FORM_RESIZE:
        case NEUTRON_FORM_ACCUMULATE:
        case NEUTRON_FORM_WHOLE: return 0;
    }
    uint64_t worth = each * work->count / LEAST_WORK;
    return worth < work->count ? (uint32_t)worth : work->count;
}

static void move(NeutronRef *ref, int32_t stride, uint32_t steps) {
    ref->offset += (uint32_t)stride * steps; /* the check phase has bounded every element's address */
}

static void narrow(NeutronCallCopy *c, const Work *work, uint32_t begin, uint32_t end, bool last) {
    switch (work->form) {
        case NEUTRON_FORM_WINDOW:
        case NEUTRON_FORM_POOL: {
            NeutronWindow *w = &c->window.window;
            w->y1 = w->y0 + end;
            w->y0 += begin;
            return;
        }
        case NEUTRON_FORM_WALK: {
            NeutronBroadcast *w = &c->walk.walk;
            move(&w->a, w->a_strides[work->dim], begin);
            move(&w->b, w->b_strides[work->dim], begin);
            move(&w->output, w->output_strides[work->dim], begin);
            w->dims[work->dim] = end - begin;
            return;
        }
        case NEUTRON_FORM_PRODUCT: {
            NeutronProductForm *p = &c->product;
            if (p->rows > 1) {
                move(&p->input, (int32_t)p->in_features, begin);
                move(&p->output, (int32_t)p->out_features, begin);
                p->rows = end - begin;
                return;
            }
            uint32_t first = begin * NEUTRON_BLOCK;
            p->out_features = (last ? p->out_features : end * NEUTRON_BLOCK) - first;
            move(&p->output, 1, first);
            move(&p->weights, (int32_t)(neutron_groups(p->in_features) * NEUTRON_GROUP), first);
            move(&p->bias, sizeof(int32_t), first);
            move(&p->scales, sizeof(double), first);
            return;
        }
        case NEUTRON_FORM_ROWS:
        case NEUTRON_FORM_MOVE:
        case NEUTRON_FORM_RESIZE:
        case NEUTRON_FORM_ACCUMULATE:
        case NEUTRON_FORM_WHOLE: return;
    }
}

static void run_part(void *argument, uint32_t part) {
    Work *work = (Work *)argument;
    NeutronCallCopy call;
    memcpy(&call, work->parameters, neutron_record_bytes[work->kind] - 4u);
    uint32_t begin = (uint32_t)((uint64_t)work->count * part / work->parts);
    uint32_t end = (uint32_t)((uint64_t)work->count * (part + 1u) / work->parts);
    narrow(&call, work, begin, end, part + 1u == work->parts);
    work->status[part] = neutronKernels[work->kind](work->machine, &call);
}

int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters) {
    const NeutronThreads *threads = machine->threads;
    if (threads == NULL || threads->count < 2) return neutronKernels[kind](machine, parameters);
    Work work = {.machine = machine, .parameters = parameters, .kind = kind, .form = (NeutronForm)neutron_forms[kind]};
    uint32_t most = shares(&work);
    /* One for each thread: every part sets up the kernel anew, and a thread finds in its cache what it wrote before. */
    work.parts = threads->count < MAX_PARTS ? threads->count : MAX_PARTS;
    if (most < work.parts) work.parts = most;
    if (work.parts < 2) return neutronKernels[kind](machine, parameters);
    threads->run(threads->context, work.parts, run_part, &work);
    for (uint32_t i = 0; i < work.parts; ++i) NEUTRON_TRY(work.status[i]);
    return NEUTRON_STATUS_OK;
}

#endif
