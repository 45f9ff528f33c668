/* Float average and max pooling: the values of a window in the portable kernels' order. */
#include "cpu_kernels.h"

#define UNROLL _Pragma("GCC unroll 3")

/* The part of a window that lies in the input, from its first tap on; `whole` counts padding too, which ends with the input. */
typedef struct {
    ptrdiff_t at, taps, whole;
} Part;

static inline Part part_of(const CpuWindow *w, int d, ptrdiff_t output) {
    const ptrdiff_t start = output * w->stride[d] - w->padding[d], step = w->dilation[d], size = w->in[d];
    Part part = {start, w->kernel[d], w->kernel[d]};
    if (start >= 0 && start + (w->kernel[d] - 1) * step < size) return part;
    const ptrdiff_t most = size + w->padding[d] - start, before = start < 0 ? (-start + step - 1) / step : 0;
    ptrdiff_t end = start < size ? (size - 1 - start) / step + 1 : 0;
    if (end > w->kernel[d]) end = w->kernel[d];
    part.whole = most < w->kernel[d] ? most : w->kernel[d];
    part.at = start + before * step;
    part.taps = before < end ? end - before : 0;
    return part;
}

/* Windows side by side, of as many taps each; where the first begins and what they write. */
typedef struct {
    const CpuWindow *w;
    const float *in;
    float *out;
    int64_t *indices;
    Part y, x;
    ptrdiff_t count;
    float divisor; /* of an average; 0: as many as there are */
    bool with_padding;
} Run;

static inline __attribute__((always_inline)) void average(const Run *run, const ptrdiff_t rows,
                                                          const ptrdiff_t columns) {
    const CpuWindow *w = run->w;
    const ptrdiff_t step = w->in_step[3];
    const ptrdiff_t row = w->in_step[2] - columns * step, next = w->stride[1] * step, out_step = w->out_step[3];
    const ptrdiff_t taps = run->with_padding ? run->y.whole * run->x.whole : rows * columns;
    const float divisor = run->divisor != 0.0f ? run->divisor : (float)taps, *first = run->in;
    float *out = run->out;
    for (ptrdiff_t left = run->count; left > 0; --left, first += next, out += out_step) {
        const float *in = first + step;
        float sum = *first;
        UNROLL for (ptrdiff_t x = columns - 1; x > 0; --x, in += step) sum = *in + sum;
        UNROLL for (ptrdiff_t y = rows - 1; y > 0; --y) {
            in += row;
            UNROLL for (ptrdiff_t x = columns; x > 0; --x, in += step) sum = *in + sum;
        }
        *out = sum / divisor;
    }
}

static inline __attribute__((always_inline)) void largest(const Run *run, const ptrdiff_t rows,
                                                          const ptrdiff_t columns) {
    const CpuWindow *w = run->w;
    const ptrdiff_t step = w->dilation[1] * w->in_step[3];
    const ptrdiff_t row = w->dilation[0] * w->in_step[2], next = w->stride[1] * w->in_step[3];
    const ptrdiff_t out_step = w->out_step[3], right = w->dilation[1], down = w->dilation[0] * w->in[1];
    const bool none = rows == 0 || columns == 0;
    ptrdiff_t index = run->y.at * w->in[1] + run->x.at;
    const float *first = run->in;
    float *out = run->out;
    int64_t *indices = run->indices;
    for (ptrdiff_t left = run->count; left > 0; --left, first += next, index += w->stride[1]) {
        float most = none ? 0.0f : *first;
        ptrdiff_t best = none ? 0 : index, line = index;
        const float *from = first;
        UNROLL for (ptrdiff_t y = rows; y > 0; --y, from += row, line += down) {
            const float *in = from;
            ptrdiff_t at = line;
            UNROLL for (ptrdiff_t x = columns; x > 0; --x, in += step, at += right) if (*in > most) most = *in,
                                                                                                    best = at;
        }
        *out = most, *indices = best;
        out += out_step, indices += out_step;
    }
}

/* The commonest windows have a loop of their own. */
#define COMPUTE(NAME, WINDOW)                                      \
    static inline void NAME(const Run *run) {                      \
        const ptrdiff_t rows = run->y.taps, columns = run->x.taps; \
        if (rows == 2 && columns == 2) WINDOW(run, 2, 2);          \
        else if (rows == 3 && columns == 3) WINDOW(run, 3, 3);     \
        else WINDOW(run, rows, columns);                           \
    }
COMPUTE(averages, average)
COMPUTE(maxima, largest)

static inline __attribute__((always_inline)) void each(Run *run, const float *in, float *out, int64_t *indices,
                                                       void (*const compute)(const Run *)) {
    const CpuWindow *w = run->w;
    const ptrdiff_t room = w->in[1] - 1 - (w->kernel[1] - 1) * w->dilation[1] + w->padding[1];
    const ptrdiff_t fitting = room < 0 ? 0 : room / w->stride[1] + 1; /* windows that end in the input */
    const ptrdiff_t end = fitting < w->out[1] ? fitting : w->out[1];
    for (size_t batch = 0; batch < w->batches; ++batch)
        for (size_t channel = 0; channel < w->out_channels; ++channel) {
            const ptrdiff_t from = (ptrdiff_t)batch * w->out_step[0] + (ptrdiff_t)channel * w->out_step[1];
            const float *plane = in + (ptrdiff_t)batch * w->in_step[0] + (ptrdiff_t)channel * w->in_step[1];
            for (ptrdiff_t y = 0; y < w->out[0]; ++y) {
                run->y = part_of(w, 0, y);
                for (ptrdiff_t x = 0; x < w->out[1]; x += run->count) {
                    const ptrdiff_t at = from + y * w->out_step[2] + x * w->out_step[3];
                    run->x = part_of(w, 1, x);
                    run->count = x * w->stride[1] >= w->padding[1] && x < end ? end - x : 1;
                    run->in = plane + run->y.at * w->in_step[2] + run->x.at * w->in_step[3];
                    run->out = out + at;
                    run->indices = indices != NULL ? indices + at : NULL;
                    compute(run);
                }
            }
        }
}

void cpu_average_pool(const CpuWindow *w, const float *in, float *out, bool with_padding, float divisor) {
    Run run = {.w = w, .divisor = divisor, .with_padding = with_padding};
    each(&run, in, out, NULL, averages);
}

void cpu_max_pool(const CpuWindow *w, const float *in, float *out, int64_t *indices) {
    Run run = {.w = w};
    each(&run, in, out, indices, maxima);
}
