/* The matrix product for cores with the DSP extension: two rows by two channels at a time.
 *
 * A word of four bytes is spread over two registers (even and odd bytes), which takes as long as multiplying it;
 * each spread word is therefore used twice. More rows or channels would not fit the registers. */
#include "dsp.h"

#ifdef NEUTRON_DSP

#include "gemm.h"

#define FULL_STEP (NEUTRON_BLOCK * NEUTRON_GROUP)
#define UNROLL 4u
#define OUTLINE static __attribute__((noinline)) /* off the hot path: one copy, as flash is dear */

/* Sums of two rows and two channels. */
typedef struct {
    int32_t s00, s01, s10, s11;
} Sums;

/* One group of each: words of both rows, and of two neighbouring channels. */
NEUTRON_INLINE Sums group_2x2(Sums s, const int8_t *a0, const int8_t *a1, const int8_t *weights) {
    uint32_t word0 = neutron_word(__builtin_assume_aligned(weights, 4));
    uint32_t word1 = neutron_word(__builtin_assume_aligned(weights + NEUTRON_GROUP, 4));
    int16x2_t even0 = neutron_even(word0), odd0 = neutron_odd(word0);
    int16x2_t even1 = neutron_even(word1), odd1 = neutron_odd(word1);
    uint32_t word = neutron_word(a0);
    int16x2_t even = neutron_even(word), odd = neutron_odd(word);
    s.s00 = __smlad(odd, odd0, __smlad(even, even0, s.s00));
    s.s01 = __smlad(odd, odd1, __smlad(even, even1, s.s01));
    word = neutron_word(a1);
    even = neutron_even(word), odd = neutron_odd(word);
    s.s10 = __smlad(odd, odd0, __smlad(even, even0, s.s10));
    s.s11 = __smlad(odd, odd1, __smlad(even, even1, s.s11));
    return s;
}

/* group_2x2 of a full block in 19 instructions. Written by hand because thirteen of the fourteen registers are in use:
 * left to itself, the compiler spills the sums. */
#define GROUP_2X2                           \
    "ldrd %[w0], %[w1], [%[w]], #32\n\t"    \
    "ldr %[x], [%[a0]], #4\n\t"             \
    "sxtb16 %[e0], %[w0]\n\t"               \
    "sxtb16 %[w0], %[w0], ror #8\n\t"       \
    "sxtb16 %[e1], %[w1]\n\t"               \
    "sxtb16 %[w1], %[w1], ror #8\n\t"       \
    "sxtb16 %[e], %[x]\n\t"                 \
    "sxtb16 %[x], %[x], ror #8\n\t"         \
    "smlad %[s00], %[e], %[e0], %[s00]\n\t" \
    "smlad %[s01], %[e], %[e1], %[s01]\n\t" \
    "smlad %[s00], %[x], %[w0], %[s00]\n\t" \
    "smlad %[s01], %[x], %[w1], %[s01]\n\t" \
    "ldr %[x], [%[a1]], #4\n\t"             \
    "sxtb16 %[e], %[x]\n\t"                 \
    "sxtb16 %[x], %[x], ror #8\n\t"         \
    "smlad %[s10], %[e], %[e0], %[s10]\n\t" \
    "smlad %[s11], %[e], %[e1], %[s11]\n\t" \
    "smlad %[s10], %[x], %[w0], %[s10]\n\t" \
    "smlad %[s11], %[x], %[w1], %[s11]\n\t"

/* Four groups of a full block at a time, until a0 reaches `end`. */
NEUTRON_INLINE Sums dot_full(Sums s, const int8_t **a0, const int8_t **a1, const int8_t **weights, const int8_t *end) {
    _Static_assert(FULL_STEP == 32, "the step in GROUP_2X2");
    uint32_t w0, w1, e0, e1, e, x;
    const int8_t *const stop = end;
    __asm__ volatile(
        "1:\n\t" GROUP_2X2 GROUP_2X2 GROUP_2X2 GROUP_2X2
        "ldr %[x], %[stop]\n\t"
        "cmp %[a0], %[x]\n\t"
        "bne 1b\n\t"
        : [s00] "+r"(s.s00), [s01] "+r"(s.s01), [s10] "+r"(s.s10), [s11] "+r"(s.s11), [a0] "+r"(*a0), [a1] "+r"(*a1),
          [w] "+r"(*weights), [w0] "=&r"(w0), [w1] "=&r"(w1), [e0] "=&r"(e0), [e1] "=&r"(e1), [e] "=&r"(e), [x] "=&r"(x)
        : [stop] "m"(stop)
        : "cc", "memory");
    return s;
}

/* Add the products of `groups` groups, and of one more whose values are `last`, of both rows, unless it is NULL;
 * `step` bytes from one group of a channel to the next. */
NEUTRON_INLINE Sums dot_2x2(Sums s, const int8_t *a0, const int8_t *a1, const int8_t *weights, uint32_t groups,
                            size_t step, const uint32_t *last) {
    if (step == FULL_STEP && groups >= UNROLL) {
        s = dot_full(s, &a0, &a1, &weights, a0 + groups / UNROLL * UNROLL * NEUTRON_GROUP);
        groups %= UNROLL;
    }
    for (;; --groups) {
        if (groups == 0) {
            if (last == NULL) return s;
            a0 = (const int8_t *)&last[0], a1 = (const int8_t *)&last[1];
            groups = 1, last = NULL;
        }
        s = group_2x2(s, a0, a1, weights);
        a0 += NEUTRON_GROUP, a1 += NEUTRON_GROUP, weights += step;
    }
}

/* sums[channel] += products, for `count` (1 or 4) channels of one row. */
NEUTRON_INLINE void dot_1xn(const int8_t *a, const int8_t *weights, uint32_t groups, size_t step, uint32_t count,
                            int32_t *sums) {
    int32_t s[4];
#pragma GCC unroll 4
    for (uint32_t j = 0; j < count; ++j) s[j] = sums[j];
    const int8_t *end = a + (size_t)groups * NEUTRON_GROUP;
    for (; a != end; a += NEUTRON_GROUP, weights += step) {
        uint32_t word = neutron_word(a);
        int16x2_t even = neutron_even(word), odd = neutron_odd(word);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < count; ++j) {
            uint32_t w = neutron_word(__builtin_assume_aligned(weights + j * NEUTRON_GROUP, 4));
            s[j] = __smlad(odd, neutron_odd(w), __smlad(even, neutron_even(w), s[j]));
        }
    }
#pragma GCC unroll 4
    for (uint32_t j = 0; j < count; ++j) sums[j] = s[j];
}

/* The same for any number of channels. */
OUTLINE void dot_1(const int8_t *a, const int8_t *weights, uint32_t groups, size_t step, uint32_t channels,
                   int32_t *sums) {
    uint32_t j = 0;
    for (; j + 4u <= channels; j += 4u) dot_1xn(a, weights + j * NEUTRON_GROUP, groups, step, 4, sums + j);
    for (; j < channels; ++j) dot_1xn(a, weights + j * NEUTRON_GROUP, groups, step, 1, sums + j);
}

void neutron_dot(const int8_t *a, const int8_t *weights, uint32_t groups, uint32_t channels, uint32_t *sums) {
    dot_1(a, weights, groups, (size_t)channels * NEUTRON_GROUP, channels, (int32_t *)sums);
}

void neutron_requantize(const int32_t *sums, const int32_t *multiplier, const int32_t *shift, uint32_t n, int32_t zero,
                        int32_t low, int32_t high, int8_t *out) {
    for (uint32_t j = 0; j < n; ++j) {
        out[j] = (int8_t)neutron_requantize_one(sums[j], multiplier[j], shift[j], zero, low, high);
    }
}

/* The last k % 4 values of a row, then zeros. */
NEUTRON_INLINE uint32_t last_word(const NeutronGemm *g, const int8_t *a, uint32_t tail) {
    uint32_t word = 0;
    for (uint32_t i = 0; i < tail; ++i) word |= (uint32_t)(uint8_t)a[g->k - tail + i] << 8u * i;
    return word;
}

OUTLINE void store(const NeutronGemm *g, uint32_t row, uint32_t channel, int32_t sum) {
    if (g->raw) {
        g->raw[(size_t)row * g->n + channel] = sum;
    } else {
        neutron_requantize(&sum, g->multiplier + channel, g->shift + channel, 1, g->zero, g->low, g->high,
                           g->out + row * g->out_pitch + channel);
    }
}

/* The sums of one channel for two rows. */
NEUTRON_INLINE void store_2(const NeutronGemm *g, uint32_t row, uint32_t channel, int32_t first, int32_t second) {
    int32_t multiplier = g->raw ? 0 : g->multiplier[channel], shift = g->raw ? 0 : g->shift[channel];
    if (!neutron_scales_down(multiplier, shift)) {
        store(g, row, channel, first);
        store(g, row + 1u, channel, second);
        return;
    }
    int32_t zero = g->zero, low = g->low, high = g->high;
    int8_t *out = g->out + row * g->out_pitch + channel;
    out[0] = (int8_t)neutron_clamp(neutron_scale_down(first, multiplier, (uint32_t)(-1 - shift)) + zero, low, high);
    out[g->out_pitch] =
        (int8_t)neutron_clamp(neutron_scale_down(second, multiplier, (uint32_t)(-1 - shift)) + zero, low, high);
}

/* Two rows of one block of channels, in pairs. */
NEUTRON_INLINE void block_2(const NeutronGemm *g, uint32_t row, const int8_t *a, uint32_t first, uint32_t channels,
                            const int8_t *block, size_t step) {
    uint32_t full = g->k / NEUTRON_GROUP, tail = g->k % NEUTRON_GROUP;
    const int8_t *b = a + g->a_pitch;
    uint32_t last[2] = {0, 0};
    if (tail) last[0] = last_word(g, a, tail), last[1] = last_word(g, b, tail);
    for (uint32_t j = 0; j + 2u <= channels; j += 2u) {
        const int8_t *weights = block + j * NEUTRON_GROUP;
        int32_t bias0 = g->bias[first + j], bias1 = g->bias[first + j + 1u];
        Sums s = dot_2x2((Sums){bias0, bias1, bias0, bias1}, a, b, weights, full, step, tail ? last : NULL);
        store_2(g, row, first + j, s.s00, s.s10);
        store_2(g, row, first + j + 1u, s.s01, s.s11);
    }
}

/* One row of channels `from` to the end of a block. */
static void block_1(const NeutronGemm *g, uint32_t row, const int8_t *a, uint32_t first, uint32_t from,
                    uint32_t channels, const int8_t *block) {
    uint32_t full = g->k / NEUTRON_GROUP, tail = g->k % NEUTRON_GROUP;
    size_t step = (size_t)channels * NEUTRON_GROUP;
    uint32_t last = tail ? last_word(g, a, tail) : 0u;
    const int8_t *weights = block + from * NEUTRON_GROUP;
    int32_t sums[NEUTRON_BLOCK];
    for (uint32_t j = from; j < channels; ++j) sums[j - from] = g->bias[first + j];
    dot_1(a, weights, full, step, channels - from, sums);
    if (tail) dot_1((const int8_t *)&last, weights + full * step, 1, step, channels - from, sums);
    for (uint32_t j = from; j < channels; ++j) store(g, row, first + j, sums[j - from]);
}

void neutron_gemm(const NeutronGemm *g) {
    size_t block_bytes = neutron_groups(g->k) * FULL_STEP;
    for (uint32_t j = 0; j < g->n; j += NEUTRON_BLOCK) {
        const int8_t *block = g->weights + j / NEUTRON_BLOCK * block_bytes;
        uint32_t channels = g->n - j < NEUTRON_BLOCK ? g->n - j : NEUTRON_BLOCK;
        uint32_t i = 0;
        for (; i + 2u <= g->m; i += 2u) {
            const int8_t *a = g->a + i * g->a_pitch;
            block_2(g, i, a, j, channels, block, (size_t)channels * NEUTRON_GROUP);
            if (channels % 2u) {
                block_1(g, i, a, j, channels - 1u, channels, block);
                block_1(g, i + 1u, a + g->a_pitch, j, channels - 1u, channels, block);
            }
        }
        if (i < g->m) block_1(g, i, g->a + i * g->a_pitch, j, 0, channels, block);
    }
}

#endif
