/* Splitting a kernel call between threads: a copy of the parameters for each part, narrowed to its share. */
#include "parallel.h"

#ifdef NEUTRON_THREADED

#include "gemm.h"

#define MAX_PARTS 64u

/* Parts for each thread: one that is held up leaves the rest to the others. */
#define PARTS_EACH 2u

/* Less work than this (multiplications, or bytes where there are none) is done before another thread has begun. */
#define LEAST_WORK 32768u

typedef union {
    struct {
        NeutronView input, output;
        NeutronWindow window;
    } window; /* where every window kernel has them: cascade.c asserts it */
    NeutronBroadcast walk;
    NeutronFullyConnectedParams fully_connected;
    NeutronConv2DParams conv_2d;
    NeutronConv2DPlanarParams conv_2d_planar;
    NeutronConv2DPointwiseParams conv_2d_pointwise;
    NeutronDepthwiseConv2DParams depthwise_conv_2d;
    NeutronAveragePool2DParams average_pool_2d;
    NeutronMaxPool2DParams max_pool_2d;
    NeutronAddParams add;
    NeutronMulParams mul;
} Call;

typedef enum { WHOLE, ROWS, ELEMENTS, CHANNELS } Share;

typedef struct {
    const NeutronMachine *machine;
    const void *parameters;
    uint32_t kind, parts, count, dim;
    Share share;
    int32_t status[MAX_PARTS];
} Work;

static Share share_of(uint32_t kind) {
    switch (kind) {
        case NEUTRON_KERNEL_CONV_2D:
        case NEUTRON_KERNEL_CONV_2D_PLANAR:
        case NEUTRON_KERNEL_CONV_2D_POINTWISE:
        case NEUTRON_KERNEL_DEPTHWISE_CONV_2D:
        case NEUTRON_KERNEL_AVERAGE_POOL_2D:
        case NEUTRON_KERNEL_MAX_POOL_2D: return ROWS;
        case NEUTRON_KERNEL_ADD:
        case NEUTRON_KERNEL_MUL: return ELEMENTS;
        case NEUTRON_KERNEL_FULLY_CONNECTED: return CHANNELS;
        default: return WHOLE;
    }
}

/* Into how many parts the rows, elements or blocks of channels may be shared out; 0 or 1: the call stays whole. */
static uint32_t shares(Work *work) {
    const Call *c = (const Call *)work->parameters; /* only the member of the kind is read */
    uint64_t each = 0;
    switch (work->share) {
        case ROWS: {
            const NeutronWindow *w = &c->window.window;
            work->count = w->y1 - w->y0;
            each = (uint64_t)w->batch * w->out_w * w->out_c * w->kernel_h * w->kernel_w;
            if (work->kind != NEUTRON_KERNEL_DEPTHWISE_CONV_2D) each *= w->in_c;
            break;
        }
        case ELEMENTS: {
            const NeutronBroadcast *w = &c->walk;
            each = 16; /* what an element costs, in multiplications */
            for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
                if (w->dims[d] > w->dims[work->dim]) work->dim = d;
            }
            for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) each *= d == work->dim ? 1u : w->dims[d];
            work->count = w->dims[work->dim];
            break;
        }
        case CHANNELS: {
            const NeutronFullyConnectedParams *p = &c->fully_connected;
            if (p->rows != 1) return 0; /* the distance between output rows is not a parameter */
            work->count = p->out_features / NEUTRON_BLOCK;
            each = (uint64_t)p->in_features * NEUTRON_BLOCK;
            break;
        }
        case WHOLE: return 0;
    }
    uint64_t worth = each * work->count / LEAST_WORK;
    return worth < work->count ? (uint32_t)worth : work->count;
}

static void move(NeutronRef *ref, int32_t stride, uint32_t steps) {
    ref->offset += (uint32_t)stride * steps; /* the check phase has bounded every element's address */
}

static void narrow(Call *c, const Work *work, uint32_t begin, uint32_t end, bool last) {
    switch (work->share) {
        case ROWS: {
            NeutronWindow *w = &c->window.window;
            w->y1 = w->y0 + end;
            w->y0 += begin;
            return;
        }
        case ELEMENTS: {
            NeutronBroadcast *w = &c->walk;
            move(&w->a, w->a_strides[work->dim], begin);
            move(&w->b, w->b_strides[work->dim], begin);
            move(&w->output, w->output_strides[work->dim], begin);
            w->dims[work->dim] = end - begin;
            return;
        }
        case CHANNELS: {
            NeutronFullyConnectedParams *p = &c->fully_connected;
            uint32_t first = begin * NEUTRON_BLOCK;
            p->out_features = (last ? p->out_features : end * NEUTRON_BLOCK) - first;
            move(&p->output, 1, first);
            move(&p->weights, (int32_t)(neutron_groups(p->in_features) * NEUTRON_GROUP), first);
            move(&p->bias, sizeof(int32_t), first);
            move(&p->scales, sizeof(double), first);
            return;
        }
        case WHOLE: return;
    }
}

static void run_part(void *argument, uint32_t part) {
    Work *work = (Work *)argument;
    Call call;
    memcpy(&call, work->parameters, neutron_record_bytes[work->kind] - 4u);
    uint32_t begin = (uint32_t)((uint64_t)work->count * part / work->parts);
    uint32_t end = (uint32_t)((uint64_t)work->count * (part + 1u) / work->parts);
    narrow(&call, work, begin, end, part + 1u == work->parts);
    work->status[part] = neutronKernels[work->kind](work->machine, &call);
}

int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters) {
    const NeutronThreads *threads = machine->threads;
    if (threads == NULL || threads->count < 2) return neutronKernels[kind](machine, parameters);
    Work work = {.machine = machine, .parameters = parameters, .kind = kind, .share = share_of(kind)};
    uint32_t most = shares(&work);
    work.parts = threads->count * PARTS_EACH < MAX_PARTS ? threads->count * PARTS_EACH : MAX_PARTS;
    if (most < work.parts) work.parts = most;
    if (work.parts < 2) return neutronKernels[kind](machine, parameters);
    threads->run(threads->context, work.parts, run_part, &work);
    for (uint32_t i = 0; i < work.parts; ++i) NEUTRON_TRY(work.status[i]);
    return NEUTRON_STATUS_OK;
}

#endif
