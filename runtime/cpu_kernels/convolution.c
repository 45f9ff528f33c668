/* Float convolutions, transposed or not. Every sum adds its products one by one in the portable kernels' order; up to 16 sums,
 * of four places with four filters, advance side by side. */
#include "cpu_kernels.h"

#define UNROLL _Pragma("GCC unroll 4")

/* One dimension of the image, for outputs that use the same taps if the image has no end: all of a convolution's, every
 * stride-th of a transposed one's. */
typedef struct {
    ptrdiff_t outputs, out_at, out_step;
    ptrdiff_t start, stride; /* where in the input the first output's taps begin; from output to output */
    ptrdiff_t size, taps, dilation;
    ptrdiff_t weight_at, weight_step; /* of the first tap; from tap to tap */
} Axis;

/* Outputs one behind the other whose taps from..to lie in the input. */
typedef struct {
    ptrdiff_t at, count, from, to;
} Run;

/* What the outputs of a rectangle share: their taps in three loops from the outermost to the innermost, and steps from place
 * to place, along the longer side, from filter to filter, and from row to row of places. */
typedef struct {
    ptrdiff_t count[3], in_by[3], weight_by[3];
    ptrdiff_t in_lane, out_lane, weight_filter, out_filter;
    ptrdiff_t places, rows, in_row, out_row;
    bool bias_first;
} Taps;

/* `groups` times as many places, with as many filters; the bias may be null. */
typedef void Add(const Taps *t, const float *in, const float *weight, const float *bias, float *out, ptrdiff_t groups);

static inline __attribute__((always_inline)) void add_taps(const Taps *t, const float *first, const float *weights,
                                                           const float *bias, float *out, ptrdiff_t groups,
                                                           const int filters, const int places) {
    const ptrdiff_t in_lane = t->in_lane, weight_filter = t->weight_filter;
    const ptrdiff_t in_x = t->in_by[2], weight_x = t->weight_by[2], columns = t->count[2];
    const ptrdiff_t in_row = t->in_by[1] - columns * in_x, weight_row = t->weight_by[1] - columns * weight_x;
    const ptrdiff_t in_plane = t->in_by[0] - t->count[1] * t->in_by[1];
    const ptrdiff_t weight_plane = t->weight_by[0] - t->count[1] * t->weight_by[1];
    for (; groups > 0; --groups, first += places * in_lane, out += places * t->out_lane) {
        const float *in = first, *weight = weights;
        float sum[4][4];
        UNROLL for (int f = 0; f < filters; ++f) {
            const float start = t->bias_first && bias != NULL ? bias[f] : 0.0f;
            UNROLL for (int p = 0; p < places; ++p) sum[f][p] = start;
        }
        for (ptrdiff_t i = t->count[0]; i > 0; --i, in += in_plane, weight += weight_plane)
            for (ptrdiff_t j = t->count[1]; j > 0; --j, in += in_row, weight += weight_row)
                for (ptrdiff_t k = columns; k > 0; --k, in += in_x, weight += weight_x) {
                    const float *from = in, *with = weight;
                    float factor[4];
                    UNROLL for (int f = 0; f < filters; ++f, with += weight_filter) factor[f] = *with;
                    UNROLL for (int p = 0; p < places; ++p, from += in_lane) {
                        const float value = *from;
                        UNROLL for (int f = 0; f < filters; ++f) sum[f][p] += value * factor[f];
                    }
                }
        float *to = out;
        UNROLL for (int f = 0; f < filters; ++f, to += t->out_filter) {
            if (!t->bias_first && bias != NULL) UNROLL for (int p = 0; p < places; ++p) sum[f][p] += bias[f];
            UNROLL for (int p = 0; p < places; ++p) to[p * t->out_lane] = sum[f][p];
        }
    }
}

/* Each a function of its own, for the registers' sake. */
#define ADD(NAME, FILTERS, PLACES)                                                                                     \
    static __attribute__((noinline)) void NAME(const Taps *t, const float *in, const float *weight, const float *bias, \
                                               float *out, ptrdiff_t groups) {                                         \
        add_taps(t, in, weight, bias, out, groups, FILTERS, PLACES);                                                   \
    }
ADD(add_4_filters_4_places, 4, 4)
ADD(add_4_filters, 4, 1)
ADD(add_4_places, 1, 4)
ADD(add_one, 1, 1)

/* A whole rectangle with one filter of at most 3 x 3 that stays in registers, four places side by side: where they lie one
 * behind the other (lane 1), six values of a row serve twelve products. The last four places may overlap those before, which
 * get the same value again. */
static inline __attribute__((always_inline)) void add_window(const Taps *t, const float *in, const float *weight,
                                                             const float *bias, float *out, const ptrdiff_t lane,
                                                             const int rows, const int columns) {
    const ptrdiff_t down = t->in_by[1], by = t->weight_by[1], out_lane = t->out_lane, last = t->places - 4;
    float factor[3][3];
    UNROLL for (int y = 0; y < rows; ++y, weight += by) UNROLL for (int x = 0; x < columns; ++x) factor[y][x] =
        weight[x];
    const bool after = !t->bias_first && bias != NULL;
    const float given = bias != NULL ? *bias : 0.0f, start = after ? 0.0f : given;
    for (ptrdiff_t row = 0; row < t->rows; ++row, in += t->in_row, out += t->out_row)
        for (ptrdiff_t at = 0;; at = at + 4 < last ? at + 4 : last) {
            float s0 = start, s1 = start, s2 = start, s3 = start, *to = out + at * out_lane;
            const float *from = in + at * lane;
            UNROLL for (int y = 0; y < rows; ++y, from += down) UNROLL for (int x = 0; x < columns; ++x) {
                s0 += from[x] * factor[y][x];
                s1 += from[x + lane] * factor[y][x];
                s2 += from[x + 2 * lane] * factor[y][x];
                s3 += from[x + 3 * lane] * factor[y][x];
            }
            if (after) s0 += given, s1 += given, s2 += given, s3 += given;
            to[0] = s0;
            to[out_lane] = s1;
            to[2 * out_lane] = s2;
            to[3 * out_lane] = s3;
            if (at == last) break;
        }
}

typedef void Window(const Taps *t, const float *in, const float *weight, const float *bias, float *out);
#define WINDOW(NAME, LANE, ROWS, COLUMNS)                                                                              \
    static __attribute__((noinline)) void NAME(const Taps *t, const float *in, const float *weight, const float *bias, \
                                               float *out) {                                                           \
        add_window(t, in, weight, bias, out, LANE, ROWS, COLUMNS);                                                     \
    }
WINDOW(add_3x3, 1, 3, 3)
WINDOW(add_2x3, 1, 2, 3)
WINDOW(add_3x2_downwards, t->in_lane, 3, 2)

static inline void clip(const Axis *a, ptrdiff_t output, ptrdiff_t *from, ptrdiff_t *to) {
    const ptrdiff_t start = a->start + output * a->stride;
    *from = 0, *to = a->taps;
    if (start < 0) *from = (-start + a->dilation - 1) / a->dilation;
    if (start + (a->taps - 1) * a->dilation >= a->size)
        *to = start < a->size ? (a->size - 1 - start) / a->dilation + 1 : 0;
    if (*from > *to) *from = *to;
}

static Run run_at(const Axis *a, ptrdiff_t at) {
    Run run = {.at = at, .count = 1};
    clip(a, at, &run.from, &run.to);
    for (; at + run.count < a->outputs; ++run.count) {
        ptrdiff_t from, to;
        clip(a, at + run.count, &from, &to);
        if (from != run.from || to != run.to) break;
    }
    return run;
}

static inline void loop(Taps *t, int at, ptrdiff_t count, ptrdiff_t in_by, ptrdiff_t weight_by) {
    t->count[at] = count, t->in_by[at] = in_by, t->weight_by[at] = weight_by;
}

/* A loop of one round is no loop: the one around it is the innermost then. */
static void settle(Taps *t) {
    for (int round = 0; round < 2 && t->count[2] == 1; ++round) {
        for (int i = 2; i > 0; --i) loop(t, i, t->count[i - 1], t->in_by[i - 1], t->weight_by[i - 1]);
        loop(t, 0, 1, 0, 0);
    }
}

static Taps taps_of(const CpuWindow *w, const Axis *y, const Axis *x, const Run *rows, const Run *columns) {
    Taps t = {.places = columns->count, .rows = rows->count, .bias_first = w->transposed};
    const int channels = w->transposed ? 2 : 0, first = w->transposed ? 0 : 1;
    const ptrdiff_t in_y = w->in_step[2], in_x = w->in_step[3];
    loop(&t, channels, (ptrdiff_t)w->in_channels, w->in_step[1], w->weight_step[w->transposed ? 0 : 1]);
    loop(&t, first, rows->to - rows->from, y->dilation * in_y, y->weight_step);
    loop(&t, first + 1, columns->to - columns->from, x->dilation * in_x, x->weight_step);
    settle(&t);
    t.weight_filter = w->weight_step[w->transposed ? 1 : 0], t.out_filter = w->out_step[1];
    t.in_lane = x->stride * in_x, t.out_lane = x->out_step * w->out_step[3];
    t.in_row = y->stride * in_y, t.out_row = y->out_step * w->out_step[2];
    if (t.places < 4 && t.rows > t.places) { /* a narrow one is walked downwards */
        const Taps turned = t;
        t.places = turned.rows, t.rows = turned.places;
        t.in_lane = turned.in_row, t.in_row = turned.in_lane;
        t.out_lane = turned.out_row, t.out_row = turned.out_lane;
    }
    return t;
}

/* What a filter of 3 x 3 makes of the image, of its upper and lower edge, and of its sides; null for others. */
static Window *window_of(const Taps *t) {
    if (t->count[0] != 1 || t->in_by[2] != 1 || t->weight_by[2] != 1 || t->places < 4) return NULL;
    if (t->count[1] == 3 && t->count[2] == 2) return add_3x2_downwards;
    if (t->count[2] != 3 || t->in_lane != 1) return NULL;
    return t->count[1] == 3 ? add_3x3 : t->count[1] == 2 ? add_2x3 : NULL;
}

/* Some filters at all places. Two or three places that are left go with some before them, which get the same value again. */
static void fill(const Taps *t, ptrdiff_t filters, const float *in, const float *weight, const float *bias,
                 float *out) {
    Window *window = filters == 1 ? window_of(t) : NULL;
    if (window != NULL) return window(t, in, weight, bias, out);
    Add *four = filters == 4 ? add_4_filters_4_places : add_4_places, *one = filters == 4 ? add_4_filters : add_one;
    const ptrdiff_t left = t->places % 4, last = t->places - 4;
    for (ptrdiff_t row = 0; row < t->rows; ++row, in += t->in_row, out += t->out_row) {
        if (last >= 0) four(t, in, weight, bias, out, t->places / 4);
        if (last >= 0 && left > 1) four(t, in + last * t->in_lane, weight, bias, out + last * t->out_lane, 1);
        else if (left > 0)
            one(t, in + (t->places - left) * t->in_lane, weight, bias, out + (t->places - left) * t->out_lane, left);
    }
}

/* All filters, which two or three that are left share with some before them, of all images. */
static void rectangle(const CpuWindow *w, const Taps *t, const float *in, const float *weight, const float *bias,
                      float *out) {
    const size_t each = w->out_channels;
    const ptrdiff_t weight_group = (ptrdiff_t)(w->transposed ? w->in_channels : each) * w->weight_step[0];
    for (size_t batch = 0; batch < w->batches; ++batch, in += w->in_step[0], out += w->out_step[0])
        for (size_t group = 0; group < w->groups; ++group) {
            const float *from = in + (ptrdiff_t)(group * w->in_channels) * w->in_step[1];
            const float *weights = weight + (ptrdiff_t)group * weight_group;
            for (size_t filter = 0; filter < each;) {
                const size_t left = each - filter, back = left >= 4 || left == 1 || each < 4 ? 0 : 4 - left;
                const size_t filters = left + back >= 4 ? 4 : 1, at = filter - back, channel = group * each + at;
                fill(t, (ptrdiff_t)filters, from, weights + (ptrdiff_t)at * t->weight_filter,
                     bias != NULL ? bias + channel : NULL, out + (ptrdiff_t)channel * t->out_filter);
                filter = at + filters;
            }
        }
}

/* Of a transposed convolution: the outputs phase, phase + stride, ... Their inputs go up while their taps go down. */
static Axis axis_of(const CpuWindow *w, int d, ptrdiff_t phase) {
    Axis a = {.size = w->in[d]};
    const ptrdiff_t weight_step = w->weight_step[d + 2];
    if (w->transposed) {
        const ptrdiff_t stride = w->stride[d], lowest = (phase + w->padding[d]) % stride;
        a.outputs = phase < w->out[d] ? (w->out[d] - 1 - phase) / stride + 1 : 0;
        a.out_at = phase, a.out_step = stride;
        a.taps = lowest < w->kernel[d] ? (w->kernel[d] - 1 - lowest) / stride + 1 : 0;
        a.start = (phase + w->padding[d]) / stride - a.taps + 1, a.stride = 1, a.dilation = 1;
        a.weight_at = (lowest + (a.taps - 1) * stride) * weight_step, a.weight_step = -stride * weight_step;
        if (a.taps == 0) a.weight_at = 0;
    } else {
        a.outputs = w->out[d], a.out_step = 1;
        a.taps = w->kernel[d], a.start = -w->padding[d], a.stride = w->stride[d], a.dilation = w->dilation[d];
        a.weight_step = weight_step;
    }
    return a;
}

static void convolve(const CpuWindow *w, const Axis *y, const Axis *x, const float *in, const float *weight,
                     const float *bias, float *out) {
    for (ptrdiff_t row = 0; row < y->outputs;) {
        const Run rows = run_at(y, row);
        for (ptrdiff_t column = 0; column < x->outputs;) {
            const Run columns = run_at(x, column);
            const Taps t = taps_of(w, y, x, &rows, &columns);
            const ptrdiff_t in_y = y->start + row * y->stride + rows.from * y->dilation;
            const ptrdiff_t in_x = x->start + column * x->stride + columns.from * x->dilation;
            const ptrdiff_t weight_at =
                y->weight_at + rows.from * y->weight_step + x->weight_at + columns.from * x->weight_step;
            rectangle(w, &t, in + in_y * w->in_step[2] + in_x * w->in_step[3], weight + weight_at, bias,
                      out + (y->out_at + row * y->out_step) * w->out_step[2] +
                          (x->out_at + column * x->out_step) * w->out_step[3]);
            column += columns.count;
        }
        row += rows.count;
    }
}

void cpu_convolution(const CpuWindow *given, const float *in, const float *weight, const float *bias, float *out) {
    CpuWindow w = *given;
    bool points = !w.transposed; /* one tap and no gaps: a row may be as long as the image */
    for (int d = 0; d < 2; ++d) points = points && w.kernel[d] == 1 && w.stride[d] == 1 && w.padding[d] == 0;
    if (points && w.in_step[2] == w.in[1] * w.in_step[3] && w.out_step[2] == w.out[1] * w.out_step[3]) {
        w.in[1] *= w.in[0], w.out[1] *= w.out[0];
        w.in[0] = w.out[0] = 1;
    }
    const ptrdiff_t phases[2] = {w.transposed ? w.stride[0] : 1, w.transposed ? w.stride[1] : 1};
    for (ptrdiff_t i = 0; i < phases[0]; ++i) {
        const Axis y = axis_of(&w, 0, i);
        for (ptrdiff_t j = 0; j < phases[1]; ++j) {
            const Axis x = axis_of(&w, 1, j);
            convolve(&w, &y, &x, in, weight, bias, out);
        }
    }
}
