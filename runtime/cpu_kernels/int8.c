/* int8 sums, products and softmax, with CMSIS-NN's roundings: a product of two 31-bit fractions to the nearest, ties up; a
 * division by a power of two to the nearest, ties away from zero. */
#include "cpu_kernels.h"

#define UNROLL _Pragma("GCC unroll 4")

#ifdef __ARM_FEATURE_SAT
#include <arm_acle.h>
#pragma GCC diagnostic ignored "-Wsign-conversion" /* inside __ssat */
#define SATURATE(value) __ssat(value, 8)
#else
#define SATURATE(value) clamp(value, INT8_MIN, INT8_MAX)
#endif

static inline int32_t clamp(int32_t value, int32_t low, int32_t high) {
    if (value < low) value = low;
    return value > high ? high : value;
}

/* The upper half of a * b, rounded: of twice a fraction and a fraction, their product. */
static inline int32_t upper_half(int32_t a, int32_t b) {
#ifdef __ARM_FEATURE_DSP
    int32_t result;
    __asm__("smmulr %0, %1, %2" : "=r"(result) : "r"(a), "r"(b));
    return result;
#else
    return (int32_t)(((int64_t)a * b + (INT64_C(1) << 31)) >> 32);
#endif
}

/* The same, and `more`. */
static inline int32_t upper_half_and(int32_t a, int32_t b, int32_t more) {
#ifdef __ARM_FEATURE_DSP
    int32_t result;
    __asm__("smmlar %0, %1, %2, %3" : "=r"(result) : "r"(a), "r"(b), "r"(more));
    return result;
#else
    return upper_half(a, b) + more;
#endif
}

static inline int32_t product(int32_t a, int32_t b) { return (int32_t)(((int64_t)a * b + (1 << 30)) >> 31); }

/* `exponent` is above 0. */
static inline int32_t divide(int32_t value, int exponent) {
    return (int32_t)(((int64_t)value + (value >> 31) + (INT64_C(1) << (exponent - 1))) >> exponent);
}

/* Twice what an input adds to the sum before that is scaled, for each of its values. Returns whether sums of it fit. */
static bool fill(int32_t table[256], const CpuInput *in) {
    const int32_t half = in->shift < 0 ? 1 << (-in->shift - 1) : 0;
    int32_t value = (INT8_MIN - in->zero) * (1 << 21);
    UNROLL for (int i = 0; i < 256; ++i, value += 1 << 21) {
        int32_t scaled = upper_half(value, in->multiplier);
        if (half != 0) scaled = (scaled + (scaled >> 31) + half) >> -in->shift;
        table[(uint8_t)(i + INT8_MIN)] = 2 * scaled;
    }
    const int32_t low = table[128], high = table[127]; /* of -128 and 127 */
    return low > -(1 << 30) && high < 1 << 30;
}

static inline __attribute__((always_inline)) int8_t scaled(int32_t twice, const CpuOutput *out, int32_t rounding,
                                                           const bool whole) {
    /* Ties away from zero: of a negative value one less is rounded. Where it is 0 by now, that gives 0 too. */
    const int32_t value = upper_half_and(twice, out->multiplier, rounding);
    const int32_t result = (value + (twice >> 31)) >> out->right;
    return (int8_t)(whole ? SATURATE(result) : clamp(result, out->low, out->high));
}

static inline int32_t rounding_of(const CpuOutput *out) {
    return (1 << (out->right - 1)) + out->zero * (1 << out->right);
}

static bool is_whole(const CpuOutput *out) { return out->low == INT8_MIN && out->high == INT8_MAX; }

/* Eight at a time, with the type's own bounds, which take one instruction; then the rest. */
#define EACH(RESULT)                                                                              \
    do {                                                                                          \
        const bool fast = is_whole(out);                                                          \
        for (; fast && count >= 8; count -= 8, a += 8, b += 8, to += 8)                           \
            _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) to[i] = RESULT(a[i], b[i], true); \
        for (; count > 0; --count, ++a, ++b, ++to) *to = RESULT(*a, *b, false);                   \
    } while (0)

bool cpu_add_tables_s8(const CpuInput in[2], int32_t tables[2][256]) {
    const bool first = fill(tables[0], &in[0]), second = fill(tables[1], &in[1]);
    return first && second;
}

void cpu_add_s8(int32_t tables[2][256], const CpuOutput *out, const int8_t *a, const int8_t *b, int8_t *to,
                size_t count) {
    const int32_t *first = tables[0], *second = tables[1], rounding = rounding_of(out);
    const CpuOutput own = *out;
#define SUM(x, y, whole) scaled(first[(uint8_t)(x)] + second[(uint8_t)(y)], &own, rounding, whole)
    EACH(SUM);
}

void cpu_mul_s8(int32_t a_zero, int32_t b_zero, const CpuOutput *out, const int8_t *a, const int8_t *b, int8_t *to,
                size_t count) {
    const int32_t rounding = rounding_of(out), a_twice = 2 * a_zero;
    const CpuOutput own = *out;
#define PRODUCT(x, y, whole) scaled((2 * (x) - a_twice) * ((y) - b_zero), &own, rounding, whole)
    EACH(PRODUCT);
}

/* e^x for x <= 0 with 5 bits before the point, as a fraction. */
static __attribute__((noinline)) int32_t exponential(int32_t value) {
    static const int32_t factors[] = {1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242};
    if (value == 0) return INT32_MAX;
    const int32_t quarter = (value & 0xFFFFFF) - (1 << 24);
    const uint32_t rest = (uint32_t)quarter - (uint32_t)value;
    const int32_t x = quarter * 32 + (1 << 28), x2 = product(x, x);
    const int32_t cubic = divide(product(x2, x2), 2) + product(x2, x);
    int32_t result = 1895147668 + product(1895147668, x + divide(product(cubic, 715827883) + x2, 1));
    for (int i = 0; i < 7; ++i)
        if (rest >> (24 + i) & 1) result = product(result, factors[i]);
    return result;
}

/* 1 / (1 + x) for a fraction x, by three steps of Newton's. */
static int32_t reciprocal(int32_t value) {
    const int64_t sum = (int64_t)value + INT32_MAX;
    const int32_t half = (int32_t)((sum + (sum >= 0 ? 1 : -1)) / 2);
    int32_t x = 1515870810 + product(half, -1010580540);
    for (int i = 0; i < 3; ++i) {
        const int64_t more = (int64_t)product(x, (1 << 29) - product(half, x)) * 4;
        x += (int32_t)(more > INT32_MAX ? INT32_MAX : more < INT32_MIN ? INT32_MIN : more);
    }
    return x > INT32_MAX / 2 ? INT32_MAX : 2 * x;
}

static int8_t largest(const int8_t *in, size_t size) {
    int8_t found = *in;
    for (size_t i = 1; i < size; ++i) found = in[i] > found ? in[i] : found;
    return found;
}

bool cpu_softmax_s8(const CpuSoftmax *softmax, int32_t table[256], const int8_t *in, int8_t *out, size_t rows,
                    size_t size) {
    for (int i = 0; i < 256; ++i) table[i] = -1; /* not known yet */
    for (; rows > 0; --rows, in += size, out += size) {
        const int32_t most = largest(in, size);
        uint32_t sum = 0;
        for (size_t i = 0; i < size; ++i) {
            const int32_t below = most - in[i];
            int32_t found = table[below];
            if (found < 0) {
                const int32_t scaled = (int32_t)(0u - ((uint32_t)below << softmax->shift));
                found = below <= softmax->most ? exponential(product(scaled, softmax->multiplier)) : 0;
                table[below] = found;
            }
            sum += ((uint32_t)found + (1u << 11)) >> 12;
        }
        if (sum == 0 || sum >= 1u << 28) return false;
        const int headroom = __builtin_clz(sum), right = 35 - headroom;
        const int32_t scale = reciprocal((int32_t)((sum << headroom) - (1u << 31)));
        const uint32_t half = 1u << (right - 1);
        for (size_t i = 0; i < size; ++i) {
            const uint32_t value = ((uint32_t)product(scale, table[most - in[i]]) + half) >> right;
            out[i] = (int8_t)(value > 255 ? INT8_MAX : (int32_t)value - 128);
        }
    }
    return true;
}
