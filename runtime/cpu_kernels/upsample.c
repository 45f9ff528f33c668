/* Float images made larger or smaller: the nearest value, or between four of them. A pixel's place is found once for all
 * channels. */
#include "cpu_kernels.h"

/* Where an output's values lie along a dimension, in elements, and their weights. */
typedef struct {
    ptrdiff_t at[2];
    float weight[2];
} Source;

static Source nearest(const CpuWindow *w, int d, ptrdiff_t output, float scale) {
    const ptrdiff_t found = (ptrdiff_t)((float)output * scale), last = w->in[d] - 1;
    return (Source){.at = {(found < last ? found : last) * w->in_step[d + 2]}};
}

static Source between(const CpuWindow *w, int d, ptrdiff_t output, float scale, bool align_corners) {
    const ptrdiff_t step = w->in_step[d + 2], last = w->in[d] - 1;
    if (w->in[d] == w->out[d]) return (Source){{output * step, output * step}, {1.0f, 0.0f}};
    float place = (float)output * scale;
    if (!align_corners) {
        place = scale * ((float)output + 0.5f) - 0.5f;
        place = place < 0.0f ? 0.0f : place;
    }
    ptrdiff_t first = (ptrdiff_t)place;
    first = first < last ? first : last;
    float second = place - (float)first;
    second = second > 1.0f ? 1.0f : second;
    return (Source){{first * step, (first + (first < last)) * step}, {1.0f - second, second}};
}

void cpu_upsample_nearest(const CpuWindow *w, const float scale[2], const float *in, float *out) {
    const ptrdiff_t in_step = w->in_step[1], out_step = w->out_step[1];
    for (ptrdiff_t row = 0; row < w->out[0]; ++row) {
        const Source y = nearest(w, 0, row, scale[0]);
        for (ptrdiff_t column = 0; column < w->out[1]; ++column) {
            const Source x = nearest(w, 1, column, scale[1]);
            const float *from = in + y.at[0] + x.at[0];
            float *to = out + row * w->out_step[2] + column * w->out_step[3];
            for (size_t batch = 0; batch < w->batches; ++batch, from += w->in_step[0], to += w->out_step[0]) {
                const float *value = from;
                float *place = to;
                _Pragma("GCC unroll 4") for (size_t c = w->out_channels; c > 0;
                                             --c, value += in_step, place += out_step) *place = *value;
            }
        }
    }
}

void cpu_upsample_bilinear(const CpuWindow *w, const float scale[2], bool align_corners, const float *in, float *out) {
    const ptrdiff_t in_step = w->in_step[1], out_step = w->out_step[1];
    for (ptrdiff_t row = 0; row < w->out[0]; ++row) {
        const Source y = between(w, 0, row, scale[0], align_corners);
        for (ptrdiff_t column = 0; column < w->out[1]; ++column) {
            const Source x = between(w, 1, column, scale[1], align_corners);
            const float left = x.weight[0], right = x.weight[1], above = y.weight[0], below = y.weight[1];
            for (size_t batch = 0; batch < w->batches; ++batch) {
                const float *top_left = in + (ptrdiff_t)batch * w->in_step[0] + y.at[0] + x.at[0];
                const float *bottom_left = top_left - y.at[0] + y.at[1];
                const float *top_right = top_left - x.at[0] + x.at[1], *bottom_right = bottom_left - x.at[0] + x.at[1];
                float *place = out + (ptrdiff_t)batch * w->out_step[0] + row * w->out_step[2] + column * w->out_step[3];
                for (size_t c = w->out_channels; c > 0; --c) {
                    const float top = *top_left * left + *top_right * right;
                    const float bottom = *bottom_left * left + *bottom_right * right;
                    *place = top * above + bottom * below;
                    top_left += in_step, top_right += in_step, bottom_left += in_step, bottom_right += in_step;
                    place += out_step;
                }
            }
        }
    }
}
