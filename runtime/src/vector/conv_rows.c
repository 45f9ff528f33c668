/* A convolution as products whose parts are the rows (or the taps) of the
 * window, read where they lie.
 *
 * Input rows that need padding are first copied, padding and all, into a ring
 * that holds as many as the windows of some output rows span: each row is
 * copied once, not once for each window it is in. Parts that are no multiple of
 * 4 bytes (few channels) are read on to the next multiple, and the weights are
 * spread to match, with zeros there.
 */
#include "conv_rows.h"

#include <string.h>

#include "product.h"

#define MAX_PARTS 128u
#define MAX_LINES 16u /* output rows computed in one product */
#define WORTH_SKIPPING \
    (768u * 16u)  /* groups of products, for all channels, that cost more than a  \
                  call by itself */
#define BEYOND 4u /* a part may be read so many bytes too far */

typedef struct {
    const NeutronWindow *w;
    const NeutronView *view;
    const int8_t *input;
    uint32_t planes;
    size_t plane; /* bytes from one to the next in the input */
    int32_t zero; /* padding, flipped */
    void (*copy)(int8_t *to, const int8_t *from, size_t bytes);
    uint32_t batch;
    int32_t x;        /* first column of the first window */
    uint32_t columns; /* from there to the last column of the last window */
    uint32_t span;    /* rows a window spans */
    uint32_t held;    /* rows in the ring: what the windows of several output rows span */
    int direct;       /* rows need no padding and are used where they are */
    int8_t *ring;
    size_t plane_bytes; /* of a row in the ring, for one plane */
    size_t row_bytes;   /* for all, one after the other */
    int32_t next;       /* the first row that was never in the ring */
    int32_t first;      /* a row, and its place in the ring */
    uint32_t first_slot;
} Rows;

/* The ring is made of padding; here come the columns that lie inside the input.
 */
static void fill_row(const Rows *r, int32_t y, int8_t *to) {
    const NeutronWindow *w = r->w;
    const size_t in_c = w->in_c;
    if (y < 0 || y >= (int32_t)w->in_h) {
        memset(to, r->zero, r->row_bytes);
        return;
    }
    int32_t end = r->x + (int32_t)r->columns, x = r->x < 0 ? 0 : r->x;
    if (end > (int32_t)w->in_w) end = (int32_t)w->in_w;
    if (x >= end) return;
    const int8_t *from = r->input + neutron_row_offset(r->view, w->in_h, r->batch, (uint32_t)y);
    from += (size_t)x * r->view->pixel;
    to += (size_t)(x - r->x) * in_c;
    size_t count = (size_t)(end - x);
    for (uint32_t c = 0; c < r->planes; ++c, to += r->plane_bytes) {
        const int8_t *plane = from + c * r->plane;
        if (r->view->pixel == in_c) {
            r->copy(to, plane, count * in_c);
        } else {
            for (size_t i = 0; i < count; ++i) r->copy(to + i * in_c, plane + i * r->view->pixel, in_c);
        }
    }
}

/* Where row y is in the ring, for y from r->first on and less than `held`
 * further. */
static inline int8_t *slot(const Rows *r, int32_t y) {
    uint32_t i = r->first_slot + (uint32_t)(y - r->first);
    return r->ring + (size_t)(i < r->held ? i : i - r->held) * r->row_bytes;
}

/* Row y of the input, from column r->x on. */
static inline const int8_t *row_at(const Rows *r, int32_t y) {
    if (!r->direct) return slot(r, y);
    return r->input + neutron_row_offset(r->view, r->w->in_h, r->batch, (uint32_t)y) + (size_t)r->x * r->view->pixel;
}

/* Rows y .. end - 1, no more than the ring holds. */
static void fill_ring(Rows *r, int32_t y, int32_t end) {
    if (r->direct) return;
    if (y >= r->next) { /* nothing to keep */
        r->next = r->first = y;
        r->first_slot = 0;
    }
    r->first_slot = (r->first_slot + (uint32_t)(y - r->first)) % r->held;
    r->first = y;
    for (; r->next < end; ++r->next) fill_row(r, r->next, slot(r, r->next));
}

/* Packed weights of n channels, each `runs` runs of `run` values, with every
 * run padded to whole groups. */
static void spread_weights(const int8_t *from, uint32_t n, uint32_t runs, uint32_t run, int8_t *to) {
    const uint32_t groups = (uint32_t)neutron_groups(runs * run), each = (uint32_t)neutron_groups(run);
    for (uint32_t j = 0; j < n; j += NEUTRON_BLOCK) {
        const uint32_t lanes = n - j < NEUTRON_BLOCK ? n - j : NEUTRON_BLOCK;
        for (uint32_t i = 0; i < runs * each; ++i, to += lanes * NEUTRON_GROUP) {
            uint32_t at = i / each * run + i % each * NEUTRON_GROUP, left = run - i % each * NEUTRON_GROUP;
            uint32_t group = at / NEUTRON_GROUP, bits = at % NEUTRON_GROUP * 8u;
            uint64_t mask = left >= NEUTRON_GROUP ? UINT32_MAX : (UINT64_C(1) << 8u * left) - 1u;
            const int8_t *first = from + (size_t)group * lanes * NEUTRON_GROUP;
            for (uint32_t lane = 0; lane < lanes; ++lane) {
                uint32_t low, high = 0;
                memcpy(&low, first + lane * NEUTRON_GROUP, sizeof low);
                if (group + 1u < groups) memcpy(&high, first + (lanes + lane) * NEUTRON_GROUP, sizeof high);
                uint32_t word = (uint32_t)(((uint64_t)high << 32 | low) >> bits & mask);
                memcpy(to + lane * NEUTRON_GROUP, &word, sizeof word);
            }
        }
        from += (size_t)groups * lanes * NEUTRON_GROUP;
    }
}

/* What every row of the output has in common. */
typedef struct {
    Rows rows;
    NeutronProduct product;
    const NeutronProductCode *code;
    uint32_t columns_apart; /* parts in a row of the window: 1, or its taps */
    size_t part_step;       /* bytes between them */
    size_t plane_step;      /* and between those of two planes */
    uint32_t run;           /* bytes of a part that belong to the window */
    int8_t *spread;         /* room for spread weights, or null if they are used as they
                       are */
    uint32_t at_once;       /* channels that fit there */
    uint32_t lines;         /* output rows done together */
} Plan;

/* Output rows oy .. oy + count - 1 of channels j and on; `first` and `last`
 * rows of the window are left out at its top and bottom. */
static void output_rows(Plan *plan, const NeutronView *view, int8_t *output, uint32_t oy, uint32_t count,
                        uint32_t first, uint32_t last) {
    const NeutronWindow *w = plan->rows.w;
    NeutronProduct *p = &plan->product;
    const int8_t *parts[MAX_PARTS * MAX_LINES];
    int8_t *lines[MAX_LINES];
    int32_t y = (int32_t)(oy * w->stride_h) - w->pad_top;
    fill_ring(&plan->rows, first ? 0 : y, /* with dilation the next output row may begin above this one's first tap */
              y + (int32_t)((count - 1u) * w->stride_h + plan->rows.span) - (int32_t)(last * w->dilation_h));
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; ++i, y += (int32_t)w->stride_h) {
        for (uint32_t c = 0; c < plan->rows.planes; ++c) {
            for (uint32_t ky = first; ky < w->kernel_h - last; ++ky) {
                const int8_t *row = row_at(&plan->rows, y + (int32_t)(ky * w->dilation_h)) + c * plan->plane_step;
                for (uint32_t kx = 0; kx < plan->columns_apart; ++kx) parts[found++] = row + kx * plan->part_step;
            }
        }
        lines[i] = output + neutron_row_offset(view, w->out_h, plan->rows.batch, oy + i);
    }
    p->lines = lines;
    p->line_count = count;
    p->g.m = w->out_w;
    p->parts = parts;
    p->part_count = found / count;
    plan->code->run(p);
}

/* Rows of the window of output row oy that lie above the input, and below. */
static void outside(const Plan *plan, uint32_t oy, uint32_t *above, uint32_t *below) {
    const NeutronWindow *w = plan->rows.w;
    const int32_t y = (int32_t)(oy * w->stride_h) - w->pad_top;
    *above = *below = 0;
    if (y >= 0 && y + (int32_t)plan->rows.span <= (int32_t)w->in_h) return;
    uint32_t end;
    neutron_taps(y, w->kernel_h, w->dilation_h, w->in_h, above, &end);
    *below = w->kernel_h - end;
}

/* Output rows of one image, for the channels whose product is prepared. Rows of
 * the window that are padding are left out, if the code can do that: what they
 * add is the same for all pixels of a row. */
static int32_t image_rows(const NeutronMachine *machine, Plan *plan, const NeutronView *view, int8_t *output) {
    const NeutronWindow *w = plan->rows.w;
    NeutronProduct *p = &plan->product;
    const int32_t *start = p->start;
    int32_t without[NEUTRON_PRODUCT_CHANNELS];
    const uint32_t row = (uint32_t)neutron_groups(p->part_bytes) * plan->columns_apart;
    const int can_skip = plan->code->skip && p->flipped && plan->rows.planes == 1 && w->out_w >= 4u;
    plan->rows.next = INT32_MIN;
    for (uint32_t oy = w->y0, count; oy < w->y1; oy += count) {
        uint32_t above = 0, below = 0, none = 1;
        NEUTRON_TRY(neutron_check_stop(machine));
        if (can_skip) outside(plan, oy, &above, &below);
        if ((above || below) && above + below < w->kernel_h) {
            const uint32_t all = row * w->kernel_h;
            plan->code->skip(p->g.weights, p->g.k, p->g.n, 0, above * row, (int8_t)plan->rows.zero, start, without);
            plan->code->skip(p->g.weights, p->g.k, p->g.n, all - below * row, all, (int8_t)plan->rows.zero, without,
                             without);
            p->start = without;
            p->skipped = above * row;
            output_rows(plan, view, output, oy, count = 1, above, below);
            p->start = start;
            p->skipped = 0;
            continue;
        }
        for (count = 1; count < plan->lines && oy + count < w->y1 && none; count += none) {
            if (can_skip) outside(plan, oy + count, &above, &below);
            none = above + below == 0;
        }
        output_rows(plan, view, output, oy, count, 0, 0);
    }
    return NEUTRON_STATUS_OK;
}

/* Decide how the window is cut into parts; whether its rows must be copied may
 * depend on that. */
static void cut_window(Plan *plan, const NeutronConv2DParams *p) {
    const NeutronWindow *w = &p->window;
    int joined = w->dilation_w == 1 && (!plan->rows.direct || p->input.pixel == w->in_c);
    plan->columns_apart = joined ? 1u : w->kernel_w;
    plan->run = joined ? w->kernel_w * w->in_c : w->in_c; /* below 2^28: see neutron_check_window */
    plan->product.part_bytes = plan->run;
    if (plan->run % NEUTRON_GROUP == 0 || plan->rows.planes * w->kernel_h * plan->columns_apart == 1) return;
    plan->product.part_bytes = (uint32_t)neutron_groups(plan->run) * NEUTRON_GROUP;
    if (plan->rows.direct) { /* nothing may be read behind the input */
        plan->rows.direct = 0;
        cut_window(plan, p);
    }
}

/* Decide how the window is read and what the memory is for; false if there is
 * not enough. `copied`: rows are copied even if they need no padding. */
static int make_plan(Plan *plan, const NeutronConv2DParams *p, int copied, int8_t *memory, size_t bytes) {
    const NeutronWindow *w = &p->window;
    Rows *r = &plan->rows;
    r->x = -w->pad_left;
    r->columns = (w->out_w - 1u) * w->stride_w + (w->kernel_w - 1u) * w->dilation_w + 1u;
    r->span = (w->kernel_h - 1u) * w->dilation_h + 1u;
    int32_t top = (int32_t)(w->y0 * w->stride_h) - w->pad_top;
    int32_t bottom = (int32_t)((w->y1 - 1u) * w->stride_h) - w->pad_top + (int32_t)r->span;
    r->direct = !copied && r->x >= 0 && r->x + (int32_t)r->columns <= (int32_t)w->in_w && top >= 0 &&
                bottom <= (int32_t)w->in_h;
    cut_window(plan, p);
    uint64_t parts = (uint64_t)w->kernel_h * plan->columns_apart * r->planes;
    if (parts > MAX_PARTS) return 0;
    plan->lines = w->y1 - w->y0 < MAX_LINES ? w->y1 - w->y0 : MAX_LINES;
    size_t left = bytes;
    if (!r->direct) {
        r->plane_bytes = (size_t)r->columns * w->in_c;
        r->row_bytes = r->plane_bytes * r->planes;
        if (bytes < BEYOND || r->row_bytes > bytes) return 0; /* and so no product below is too large */
        left -= BEYOND;
        if (r->row_bytes * r->span > left) return 0;
        /* Half of what is left, or less, lets several output rows be done together.
     */
        uint64_t more = (left - r->row_bytes * r->span) / 2u / ((uint64_t)r->row_bytes * w->stride_h);
        if (more < plan->lines - 1u) plan->lines = (uint32_t)more + 1u;
        r->held = r->span + (plan->lines - 1u) * w->stride_h;
        left -= r->row_bytes * r->held;
        r->ring = memory;
    }
    size_t pixel = r->direct ? p->input.pixel : w->in_c;
    plan->part_step = (size_t)w->dilation_w * pixel;
    plan->plane_step = r->direct ? r->plane : r->plane_bytes;
    plan->product.g.a_pitch = (size_t)w->stride_w * pixel;
    plan->product.g.k = (uint32_t)parts * plan->product.part_bytes;
    plan->spread = NULL;
    plan->at_once = NEUTRON_PRODUCT_CHANNELS;
    if (plan->product.part_bytes != plan->run) {
        size_t fit = left / plan->product.g.k / NEUTRON_BLOCK * NEUTRON_BLOCK;
        if (fit == 0) return 0;
        if (fit < plan->at_once) plan->at_once = (uint32_t)fit;
        plan->spread = memory + (bytes - left);
    }
    return 1;
}

static int32_t convolve(const NeutronMachine *machine, const NeutronConv2DParams *p, uint32_t planes, size_t plane,
                        int8_t *memory, size_t bytes) {
    const NeutronWindow *w = &p->window;
    Plan plan;
    plan.rows.planes = planes;
    plan.rows.plane = plane;
    plan.code = neutron_product_code();
    if (plan.code == NULL) return NEUTRON_NOT_BY_ROWS;
    /* Flipped once, and not for each window they are in. */
    int copied = plan.code->flip != 0 && w->kernel_h * w->kernel_w > 1u;
    if (!(copied && make_plan(&plan, p, 1, memory, bytes)) && !make_plan(&plan, p, 0, memory, bytes)) {
        return NEUTRON_NOT_BY_ROWS;
    }
    plan.rows.w = w;
    plan.rows.view = &p->input;
    plan.rows.input = (const int8_t *)neutron_read(machine, p->input.ref);
    plan.rows.copy = plan.code->copy;
    plan.rows.zero = p->input_zero ^ plan.code->flip;
    plan.product.flipped = !plan.rows.direct;
    if (!plan.rows.direct) memset(memory, plan.rows.zero, plan.rows.row_bytes * plan.rows.held);
    const int32_t *channels = (const int32_t *)(const void *)neutron_read(machine, p->channels);
    const int8_t *weights = (const int8_t *)neutron_read(machine, p->weights);
    int8_t *output = (int8_t *)neutron_write(machine, p->output.ref);
    int32_t start[NEUTRON_PRODUCT_CHANNELS];
    NeutronGemm *g = &plan.product.g;
    g->raw = NULL;
    g->out_pitch = p->output.pixel;
    g->zero = p->output_zero;
    g->low = p->clamp_min;
    g->high = p->clamp_max;
    plan.product.start = start;
    plan.product.skipped = 0;
    size_t channel_bytes = neutron_groups(planes * w->kernel_h * w->kernel_w * w->in_c) * NEUTRON_GROUP;
    for (uint32_t j = 0; j < w->out_c; j += g->n) {
        g->n = w->out_c - j < plan.at_once ? w->out_c - j : plan.at_once;
        g->weights = weights + j * channel_bytes;
        if (plan.spread) {
            spread_weights(g->weights, g->n, g->k / plan.product.part_bytes, plan.run, plan.spread);
            g->weights = plan.spread;
        }
        g->bias = channels + j;
        g->multiplier = channels + w->out_c + j;
        g->shift = channels + 2u * w->out_c + j;
        plan.code->start(g->weights, g->k, g->n, g->bias, start);
        for (uint32_t b = 0; b < w->batch; ++b) {
            plan.rows.batch = b;
            NEUTRON_TRY(image_rows(machine, &plan, &p->output, output + j));
        }
    }
    return NEUTRON_STATUS_OK;
}

/* How many output rows of a map one pixel wide, as a 1-D convolution has it, may be taken as one row; 0 if this is no
 * such map, or that is no gain. Half of the memory is for their input. */
static uint32_t rows_as_one(const NeutronConv2DParams *p, size_t bytes) {
    const NeutronWindow *w = &p->window;
    if (w->batch != 1u || w->in_w != 1u || w->out_w != 1u || w->kernel_w != 1u || w->pad_left != 0) return 0;
    if (p->input.ref.rows != 0 || p->output.ref.rows != 0) return 0;
    const uint64_t room = bytes / 2u, span = (uint64_t)((w->kernel_h - 1u) * w->dilation_h + 1u) * w->in_c;
    if (span > room) return 0;
    const uint64_t most = (room - span) / ((uint64_t)w->stride_h * w->in_c) + 1u;
    const uint32_t rows = w->y1 - w->y0;
    return most < 8u || rows < 8u ? 0u : most < rows ? (uint32_t)most : rows;
}

/* Output rows y .. y + count - 1 of such a map as one row: products are of many pixels then. */
static NeutronConv2DParams as_one_row(const NeutronConv2DParams *p, uint32_t y, uint32_t count) {
    const NeutronWindow *w = &p->window;
    NeutronConv2DParams row = *p;
    row.input.pixel = p->input.row;
    row.output.pixel = p->output.row;
    row.output.ref.offset += y * p->output.row; /* the check phase has bounded it */
    row.window.in_h = row.window.out_h = row.window.y1 = row.window.kernel_h = 1u;
    row.window.stride_h = row.window.dilation_h = 1u;
    row.window.pad_top = 0;
    row.window.y0 = 0;
    row.window.in_w = w->in_h;
    row.window.out_w = count;
    row.window.kernel_w = w->kernel_h;
    row.window.stride_w = w->stride_h;
    row.window.dilation_w = w->dilation_h;
    row.window.pad_left = w->pad_top - (int32_t)(y * w->stride_h);
    return row;
}

int32_t neutron_conv_rows(const NeutronMachine *machine, const NeutronConv2DParams *p, uint32_t planes, size_t plane,
                          int8_t *memory, size_t bytes) {
    const NeutronWindow *w = &p->window;
    const uint32_t at_once = planes == 1u ? rows_as_one(p, bytes) : 0u;
    if (at_once == 0) return convolve(machine, p, planes, plane, memory, bytes);
    for (uint32_t y = w->y0, count; y < w->y1; y += count) {
        count = w->y1 - y < at_once ? w->y1 - y : at_once;
        const NeutronConv2DParams row = as_one_row(p, y, count);
        /* If the first fit the memory, so do those after it, which are no longer. */
        const int32_t done = convolve(machine, &row, 1u, 0, memory, bytes);
        if (done == NEUTRON_NOT_BY_ROWS) return convolve(machine, p, 1u, 0, memory, bytes);
        NEUTRON_TRY(done);
    }
    return NEUTRON_STATUS_OK;
}
