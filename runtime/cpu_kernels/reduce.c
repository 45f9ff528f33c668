/* Sums, softmax and layer norm, in float and in the portable kernels' order. */
#include "cpu_kernels.h"
#include "exponential.h"

#include <math.h>

#define UNROLL _Pragma("GCC unroll 4")

static float sum_of(const CpuWalk *walk, const float *in, bool from_zero) {
    size_t index[CPU_RANK] = {0}, at[CPU_READ] = {0};
    const size_t rank = walk->rank;
    const size_t count = rank > 0 ? walk->size[rank - 1] : 1, step = rank > 0 ? walk->step[0][rank - 1] : 1;
    float sum = from_zero ? 0.0f : in[0];
    size_t done = from_zero ? 0 : 1;
    do {
        const float *value = in + at[0] + done * step;
        size_t n = count - done;
        done = 0;
        for (; n >= 4; n -= 4, value += 4 * step) {
            sum += value[0];
            sum += value[step];
            sum += value[2 * step];
            sum += value[3 * step];
        }
        for (; n > 0; --n, value += step) sum += *value;
    } while (cpu_walk_next(walk, 1, index, at));
    return sum;
}

void cpu_sum(const CpuWalk *kept, const CpuWalk *reduced, const float *in, float *out, bool from_zero, float divisor) {
    size_t index[CPU_RANK] = {0}, at[CPU_READ] = {0};
    do *out++ = sum_of(reduced, in + at[0], from_zero) / divisor;
    while (cpu_walk_next(kept, 0, index, at));
}

static float largest(const float *in, size_t size, size_t step) {
    float found = in[0];
    UNROLL for (size_t i = step; i < size * step; i += step) {
        const float value = in[i];
        found = value < found ? found : value; /* std::max(value, found): with a NaN, the first */
    }
    return found;
}

/* The exponential of a value less the largest. It is above 0 only where one is a NaN, and then the sum is. */
static inline float below(float x) { return cpu_expf(x, -0.5f, true); }

/* The portable kernel computes every exponential twice; here the first is kept where the result will be. */
void cpu_softmax(const float *in, float *out, size_t size, size_t step) {
    const float most = largest(in, size, step);
    float sum = out[0] = below(in[0] - most);
    for (size_t i = step; i < size * step; i += step) sum = sum + (out[i] = below(in[i] - most));
    UNROLL for (size_t i = 0; i < size * step; i += step) out[i] = out[i] / sum;
}

void cpu_log_softmax(const float *in, float *out, size_t size, size_t step) {
    const float most = largest(in, size, step);
    float sum = below(in[0] - most);
    for (size_t i = step; i < size * step; i += step) sum = sum + below(in[i] - most);
    const float shift = logf(sum);
    for (size_t i = 0; i < size * step; i += step) out[i] = in[i] - most - shift;
}

float cpu_layer_norm(const float *in, const float *weight, const float *bias, float *out, size_t size, float epsilon,
                     float *inverse) {
    float sum = 0.0f, squares = 0.0f;
    for (size_t i = 0; i < size; ++i) {
        sum += in[i];
        squares += in[i] * in[i];
    }
    const float count = (float)size, mean = sum / count;
    const float variance = squares / count - mean * mean, deviation = sqrtf(variance + epsilon);
    if (weight != NULL && bias != NULL)
        for (size_t i = 0; i < size; ++i) out[i] = (in[i] - mean) / deviation * weight[i] + bias[i];
    else
        for (size_t i = 0; i < size; ++i)
            out[i] = (in[i] - mean) / deviation * (weight != NULL ? weight[i] : 1.0f) + (bias != NULL ? bias[i] : 0.0f);
    /* The portable kernel's quotient is in double precision and rounded to float: the same bits, since no quotient of two
     * floats lies so near a border between two floats that the first rounding crosses it. */
    *inverse = 1.0f / deviation;
    return mean;
}
