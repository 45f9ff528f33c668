/* Float operators, element by element, with and without broadcasting. */
#include "cpu_kernels.h"
#include "exponential.h"

#include <math.h>

#define UNROLL _Pragma("GCC unroll 4")

#define BINARY(NAME, RESULT)                                                                                \
    void cpu_##NAME(const float *a, size_t a_step, const float *b, size_t b_step, float *out, size_t count, \
                    float alpha) {                                                                          \
        (void)alpha;                                                                                        \
        if (a_step == 1 && b_step == 1)                                                                     \
            for (; count >= 4; count -= 4, a += 4, b += 4, out += 4) UNROLL for (int i = 0; i < 4; ++i) {   \
                    const float x = a[i], y = b[i];                                                         \
                    out[i] = RESULT;                                                                        \
                }                                                                                           \
        for (; count > 0; --count, a += a_step, b += b_step) {                                              \
            const float x = *a, y = *b;                                                                     \
            *out++ = RESULT;                                                                                \
        }                                                                                                   \
    }

BINARY(add, x + alpha * y)
BINARY(sub, x - alpha * y)
BINARY(mul, x *y)
BINARY(div, x / y)
/* A NaN of either wins; of equals the first, which tells 0 from -0. */
BINARY(minimum, x <= y || x != x ? x : y)
BINARY(maximum, x >= y || x != x ? x : y)

void cpu_walk_add(CpuWalk *walk, size_t size, size_t first_step, size_t second_step) {
    if (size == 1) return;
    size_t at = walk->rank;
    if (at > 0 && walk->step[0][at - 1] == size * first_step && walk->step[1][at - 1] == size * second_step)
        size *= walk->size[--at];
    walk->size[at] = size;
    walk->step[0][at] = first_step;
    walk->step[1][at] = second_step;
    walk->rank = at + 1;
}

bool cpu_walk_next(const CpuWalk *walk, size_t inner, size_t index[CPU_RANK], size_t at[2]) {
    for (size_t d = walk->rank > inner ? walk->rank - inner : 0; d-- > 0;) {
        at[0] += walk->step[0][d];
        at[1] += walk->step[1][d];
        if (++index[d] < walk->size[d]) return true;
        at[0] -= walk->size[d] * walk->step[0][d];
        at[1] -= walk->size[d] * walk->step[1][d];
        index[d] = 0;
    }
    return false;
}

void cpu_broadcast(CpuBinary *row, const CpuWalk *walk, const float *a, const float *b, float *out, float alpha) {
    size_t index[CPU_RANK] = {0}, at[2] = {0, 0};
    const size_t last = walk->rank - 1;
    const size_t count = walk->rank > 0 ? walk->size[last] : 1;
    const size_t a_step = walk->rank > 0 ? walk->step[0][last] : 1, b_step = walk->rank > 0 ? walk->step[1][last] : 1;
    do {
        row(a + at[0], a_step, b + at[1], b_step, out, count, alpha);
        out += count;
    } while (cpu_walk_next(walk, 1, index, at));
}

#define UNARY(NAME, RESULT)                                                                    \
    void cpu_##NAME(const float *in, float *out, size_t count) {                               \
        for (; count >= 4; count -= 4, in += 4, out += 4) UNROLL for (int i = 0; i < 4; ++i) { \
                const float x = in[i];                                                         \
                out[i] = RESULT;                                                               \
            }                                                                                  \
        for (; count > 0; --count) {                                                           \
            const float x = *in++;                                                             \
            *out++ = RESULT;                                                                   \
        }                                                                                      \
    }

UNARY(relu, x < 0.0f ? 0.0f : x)
UNARY(abs, x < 0.0f ? -x : x)
UNARY(neg, -x)
UNARY(sqrt, sqrtf(x))

/* Calls of the C library: unrolling would only make them larger. */
#define FUNCTION(NAME, RESULT)                                   \
    void cpu_##NAME(const float *in, float *out, size_t count) { \
        for (; count > 0; --count) {                             \
            const float x = *in++;                               \
            *out++ = RESULT;                                     \
        }                                                        \
    }

FUNCTION(exp, cpu_expf(x, x < 0.0f ? -0.5f : 0.5f, false))
FUNCTION(tanh, tanhf(x))
FUNCTION(sigmoid, 1.0f / (1.0f + cpu_expf(-x, x < 0.0f ? 0.5f : -0.5f, false)))

void cpu_clamp(const float *in, float *out, size_t count, float low, float high) {
    for (; count > 0; --count) {
        float x = *in++;
        x = x < low ? low : x;
        *out++ = high < x ? high : x;
    }
}
