/* Float operators, element by element, with and without broadcasting. */
#include "cpu_kernels.h"
#include "exponential.h"

#include <math.h>

#define UNROLL _Pragma("GCC unroll 4")

#define BINARY(NAME, TYPE, RESULT)                                                                        \
    void cpu_##NAME(const float *a, size_t a_step, const float *b, size_t b_step, void *to, size_t count, \
                    float alpha) {                                                                        \
        TYPE *out = to;                                                                                   \
        (void)alpha;                                                                                      \
        if (a_step == 1 && b_step == 1)                                                                   \
            for (; count >= 4; count -= 4, a += 4, b += 4, out += 4) UNROLL for (int i = 0; i < 4; ++i) { \
                    const float x = a[i], y = b[i];                                                       \
                    out[i] = RESULT;                                                                      \
                }                                                                                         \
        for (; count > 0; --count, a += a_step, b += b_step) {                                            \
            const float x = *a, y = *b;                                                                   \
            *out++ = RESULT;                                                                              \
        }                                                                                                 \
    }

BINARY(add, float, x + alpha * y)
BINARY(sub, float, x - alpha * y)
BINARY(mul, float, x *y)
BINARY(div, float, x / y)
/* A NaN of either wins; of equals the first, which tells 0 from -0. */
BINARY(minimum, float, x <= y || x != x ? x : y)
BINARY(maximum, float, x >= y || x != x ? x : y)

BINARY(eq, bool, x == y)
BINARY(ne, bool, x != y)
BINARY(lt, bool, x < y)
BINARY(le, bool, x <= y)
BINARY(gt, bool, x > y)
BINARY(ge, bool, x >= y)

void cpu_walk_add(CpuWalk *walk, size_t size, size_t first_step, size_t second_step, size_t third_step) {
    if (size == 1) return;
    const size_t step[CPU_READ] = {first_step, second_step, third_step};
    size_t at = walk->rank;
    bool behind = at > 0;
    for (int i = 0; behind && i < CPU_READ; ++i) behind = walk->step[i][at - 1] == size * step[i];
    if (behind) size *= walk->size[--at];
    walk->size[at] = size;
    for (int i = 0; i < CPU_READ; ++i) walk->step[i][at] = step[i];
    walk->rank = at + 1;
}

bool cpu_walk_next(const CpuWalk *walk, size_t inner, size_t index[CPU_RANK], size_t at[CPU_READ]) {
    for (size_t d = walk->rank > inner ? walk->rank - inner : 0; d-- > 0;) {
        for (int i = 0; i < CPU_READ; ++i) at[i] += walk->step[i][d];
        if (++index[d] < walk->size[d]) return true;
        for (int i = 0; i < CPU_READ; ++i) at[i] -= walk->size[d] * walk->step[i][d];
        index[d] = 0;
    }
    return false;
}

void cpu_broadcast(CpuBinary *row, const CpuWalk *walk, const float *a, const float *b, void *out, size_t out_bytes,
                   float alpha) {
    size_t index[CPU_RANK] = {0}, at[CPU_READ] = {0};
    char *to = out;
    const size_t last = walk->rank - 1;
    const size_t count = walk->rank > 0 ? walk->size[last] : 1;
    const size_t a_step = walk->rank > 0 ? walk->step[0][last] : 1, b_step = walk->rank > 0 ? walk->step[1][last] : 1;
    do {
        row(a + at[0], a_step, b + at[1], b_step, to, count, alpha);
        to += count * out_bytes;
    } while (cpu_walk_next(walk, 1, index, at));
}

void cpu_where(const CpuWalk *walk, const bool *condition, const float *a, const float *b, float *out) {
    size_t index[CPU_RANK] = {0}, at[CPU_READ] = {0}, step[CPU_READ];
    const size_t rank = walk->rank, count = rank > 0 ? walk->size[rank - 1] : 1;
    for (int i = 0; i < CPU_READ; ++i) step[i] = rank > 0 ? walk->step[i][rank - 1] : 0;
    do {
        const bool *which = condition + at[0];
        const float *first = a + at[1], *second = b + at[2];
        for (size_t n = count; n > 0; --n, which += step[0], first += step[1], second += step[2])
            *out++ = *which ? *first : *second;
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
/* In the portable kernels quotients in double precision, rounded to float: the same bits, see cpu_layer_norm. */
UNARY(rsqrt, 1.0f / sqrtf(x))
UNARY(reciprocal, 1.0f / x)

/* Calls of the C library: unrolling would only make them larger. */
#define FUNCTION(NAME, RESULT)                                   \
    void cpu_##NAME(const float *in, float *out, size_t count) { \
        for (; count > 0; --count) {                             \
            const float x = *in++;                               \
            *out++ = RESULT;                                     \
        }                                                        \
    }

FUNCTION(exp, cpu_expf(x, x < 0.0f ? -0.5f : 0.5f, false))
FUNCTION(tanh, cpu_tanhf(x))
FUNCTION(sigmoid, 1.0f / (1.0f + cpu_expf(-x, x < 0.0f ? 0.5f : -0.5f, false)))

void cpu_clamp(const float *in, float *out, size_t count, float low, float high) {
    for (; count > 0; --count) {
        float x = *in++;
        x = x < low ? low : x;
        *out++ = high < x ? high : x;
    }
}
