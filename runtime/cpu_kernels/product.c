/* Float matrix products and convolutions. Every sum adds its products one by one in the portable kernels' order; four sums
 * advance side by side. */
#include "cpu_kernels.h"

void cpu_matmul(const float *a, const float *b, float *out, size_t m, size_t n, size_t p) {
    for (size_t i = 0; i < m; ++i, a += n) {
        size_t j = 0;
        for (; j + 4 <= p; j += 4) {
            float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
            const float *right = b + j;
            for (size_t k = 0; k < n; ++k, right += p) {
                const float left = a[k];
                s0 += left * right[0];
                s1 += left * right[1];
                s2 += left * right[2];
                s3 += left * right[3];
            }
            out[0] = s0;
            out[1] = s1;
            out[2] = s2;
            out[3] = s3;
            out += 4;
        }
        for (; j < p; ++j) {
            float sum = 0.0f;
            const float *right = b + j;
            for (size_t k = 0; k < n; ++k, right += p) sum += a[k] * *right;
            *out++ = sum;
        }
    }
}

void cpu_scale_add(float *out, const float *add, size_t step, size_t count, float alpha, float beta) {
    for (; count > 0; --count, ++out, add += step) *out = *out * alpha + *add * beta;
}

/* Taps of a window that lie in the input along one dimension: from..to. */
static void valid(const CpuWindow *w, int d, ptrdiff_t start, ptrdiff_t *from, ptrdiff_t *to) {
    const ptrdiff_t step = w->dilation[d];
    const ptrdiff_t before = start < 0 ? (-start + step - 1) / step : 0;
    const ptrdiff_t inside = start < w->in[d] ? (w->in[d] - 1 - start) / step + 1 : 0;
    *to = inside < w->kernel[d] ? inside : w->kernel[d];
    *from = before < *to ? before : *to;
}

typedef struct {
    const float *in, *weight;
    ptrdiff_t in_lane, weight_lane; /* from one of the four sums to the next */
    ptrdiff_t channels, rows, columns;
    ptrdiff_t in_x, in_row, in_channel; /* to the next tap; then from the end of a row, and of a channel, to the next */
    ptrdiff_t weight_x, weight_row, weight_channel;
} Taps;

/* Four sums: of four places in the input, or with four filters; or one. */
static inline __attribute__((always_inline)) void add_taps(const Taps *t, float sum[4], const bool ins,
                                                           const bool weights, const ptrdiff_t in_x,
                                                           const ptrdiff_t weight_x, const ptrdiff_t columns) {
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    const float *i0 = t->in, *i1 = i0 + t->in_lane, *i2 = i1 + t->in_lane, *i3 = i2 + t->in_lane;
    const float *w0 = t->weight, *w1 = w0 + t->weight_lane, *w2 = w1 + t->weight_lane, *w3 = w2 + t->weight_lane;
#define ADVANCE(in_by, weight_by)                                             \
    do {                                                                      \
        i0 += (in_by), w0 += (weight_by);                                     \
        if (ins) i1 += (in_by), i2 += (in_by), i3 += (in_by);                 \
        if (weights) w1 += (weight_by), w2 += (weight_by), w3 += (weight_by); \
    } while (0)
#define TAP(k)                                                                           \
    do {                                                                                 \
        const float in = i0[(k) * in_x], weight = w0[(k) * weight_x];                    \
        s0 += in * weight;                                                               \
        if (ins || weights) {                                                            \
            s1 += (ins ? i1[(k) * in_x] : in) * (weights ? w1[(k) * weight_x] : weight); \
            s2 += (ins ? i2[(k) * in_x] : in) * (weights ? w2[(k) * weight_x] : weight); \
            s3 += (ins ? i3[(k) * in_x] : in) * (weights ? w3[(k) * weight_x] : weight); \
        }                                                                                \
    } while (0)
    for (ptrdiff_t c = t->channels; c > 0; --c) {
        for (ptrdiff_t y = t->rows; y > 0; --y) {
            if (columns == 3) {
                TAP(0);
                TAP(1);
                TAP(2);
                ADVANCE(t->in_row + 3 * in_x, t->weight_row + 3 * weight_x);
                continue;
            }
            for (ptrdiff_t x = columns; x > 0; --x) {
                TAP(0);
                ADVANCE(in_x, weight_x);
            }
            ADVANCE(t->in_row, t->weight_row);
        }
        ADVANCE(t->in_channel, t->weight_channel);
    }
#undef TAP
#undef ADVANCE
    sum[0] = s0, sum[1] = s1, sum[2] = s2, sum[3] = s3;
}

/* Each a function of its own, for the registers' sake. */
typedef void AddTaps(const Taps *t, float sum[4]);
#define ADD_TAPS(NAME, ...) \
    static __attribute__((noinline)) void NAME(const Taps *t, float sum[4]) { add_taps(t, sum, __VA_ARGS__); }
ADD_TAPS(add_filters_3, false, true, t->in_x, 1, 3)
ADD_TAPS(add_filters_unit, false, true, t->in_x, 1, t->columns)
ADD_TAPS(add_filters, false, true, t->in_x, t->weight_x, t->columns)
ADD_TAPS(add_places_3, true, false, 1, 1, 3)
ADD_TAPS(add_places, true, false, t->in_x, t->weight_x, t->columns)
ADD_TAPS(add_one, false, false, t->in_x, t->weight_x, t->columns)

/* The taps from x0 to x1 along x, from y0 to y1 along y, and who adds them. */
static AddTaps *prepare(const CpuWindow *w, ptrdiff_t y0, ptrdiff_t y1, ptrdiff_t x0, ptrdiff_t x1, bool ins,
                        bool weights, const float *weight, Taps *t) {
    const ptrdiff_t in_y = w->in_step[2] * w->dilation[0];
    t->weight = weight + y0 * w->weight_step[2] + x0 * w->weight_step[3];
    t->in_lane = w->stride[1] * w->in_step[3], t->weight_lane = w->weight_step[0];
    t->channels = (ptrdiff_t)w->in_channels, t->rows = y1 - y0, t->columns = x1 - x0;
    t->in_x = w->in_step[3] * w->dilation[1], t->weight_x = w->weight_step[3];
    t->in_row = in_y - t->columns * t->in_x, t->weight_row = w->weight_step[2] - t->columns * t->weight_x;
    t->in_channel = w->in_step[1] - t->rows * in_y, t->weight_channel = w->weight_step[1] - t->rows * w->weight_step[2];
    if (t->rows == 1 && t->columns == 1) { /* one tap a channel: channels are the inner loop */
        t->columns = t->channels, t->channels = 1;
        t->in_x = w->in_step[1], t->weight_x = w->weight_step[1];
        t->in_row = t->in_channel = t->weight_row = t->weight_channel = 0;
    }
    const bool three = t->columns == 3 && t->weight_x == 1;
    if (weights) return three ? add_filters_3 : t->weight_x == 1 ? add_filters_unit : add_filters;
    if (ins) return three && t->in_x == 1 ? add_places_3 : add_places;
    return add_one;
}

/* One row of the output, of one channel or of four. */
static __attribute__((noinline)) void row_of(const CpuWindow *w, const float *in, const float *weight,
                                             const float *bias, float *out, ptrdiff_t top, bool weights) {
    ptrdiff_t y0, y1;
    valid(w, 0, top, &y0, &y1);
    in += (top + y0 * w->dilation[0]) * w->in_step[2];
    /* The last output, all of whose taps along x lie in the input, and the first. */
    const ptrdiff_t room = w->in[1] - (w->kernel[1] - 1) * w->dilation[1] - 1 + w->padding[1];
    const ptrdiff_t most = room < 0 ? -1 : room / w->stride[1], last = most < w->out[1] ? most : w->out[1] - 1;
    const ptrdiff_t first = (w->padding[1] + w->stride[1] - 1) / w->stride[1];
    const bool ins = !weights && last - first >= 3;
    Taps whole, part;
    AddTaps *add_whole = prepare(w, y0, y1, 0, w->kernel[1], ins, weights, weight, &whole);
    for (ptrdiff_t x = 0; x < w->out[1];) {
        const bool inside = x >= first && x <= last;
        const int lanes = weights || (ins && inside) ? 4 : 1;
        if (ins && inside && x + 3 > last) x = last - 3; /* some are computed again, and the same */
        const ptrdiff_t start = x * w->stride[1] - w->padding[1];
        float sum[4];
        if (inside) {
            whole.in = in + start * w->in_step[3];
            add_whole(&whole, sum);
        } else {
            ptrdiff_t x0, x1;
            valid(w, 1, start, &x0, &x1);
            AddTaps *add = prepare(w, y0, y1, x0, x1, false, weights, weight, &part);
            part.in = in + (start + x0 * w->dilation[1]) * w->in_step[3];
            add(&part, sum);
        }
        float *to = out + x * w->out_step[3];
        const ptrdiff_t step = weights ? w->out_step[1] : w->out_step[3];
        for (int l = 0; l < lanes; ++l, to += step) *to = bias != NULL ? sum[l] + bias[weights ? l : 0] : sum[l];
        x += weights ? 1 : lanes;
    }
}

void cpu_convolution(const CpuWindow *w, const float *in, const float *weight, const float *bias, float *out) {
    const size_t channels = w->groups * w->out_channels;
    for (size_t batch = 0; batch < w->batches; ++batch, in += w->in_step[0], out += w->out_step[0])
        for (size_t channel = 0, by; channel < channels; channel += by) {
            const bool weights = w->out_channels - channel % w->out_channels >= 4;
            const ptrdiff_t c = (ptrdiff_t)channel, first = (ptrdiff_t)(channel / w->out_channels * w->in_channels);
            by = weights ? 4 : 1;
            for (ptrdiff_t y = 0; y < w->out[0]; ++y)
                row_of(w, in + first * w->in_step[1], weight + c * w->weight_step[0], bias != NULL ? bias + c : NULL,
                       out + c * w->out_step[1] + y * w->out_step[2], y * w->stride[0] - w->padding[0], weights);
        }
}
