/* ADD for AVX-512, 64 values at a time. */
#include "avx512.h"
#include "x86.h"

#define INLINE static inline __attribute__((always_inline))

/* One operand: (value - zero) * 2^left_shift, scaled by a multiplier of 0 to 1/2.
 *
 * For the larger scale of the two it is 1/2 exactly: a shift. Else, with d = 31 - left_shift and s the shift to the
 * right, both roundings together are floor((v m + 2^(d-1) + 2^(d-1+s) - (v < 0) 2^d) / 2^(d+s)), as in avx512.h, for
 * v = value - zero. v has 9 bits: m is cut at bit d + s, so that both products fit 32 bits, and the constants hold
 * what the zero point adds. */
typedef struct {
    int half, narrow; /* which of the two, if one */
    __m128i left;     /* half: the shift; else d + s */
    __m512i high, low, add, zero, if_negative;
    int32_t constant; /* to be added to the result */
} Operand;

static Operand make_operand(int32_t zero, uint32_t left_shift, int32_t multiplier, int32_t shift) {
    Operand o = {.half = multiplier == (INT32_C(1) << 30) && shift == 0 && left_shift > 0};
    if (o.half) {
        o.left = _mm_cvtsi32_si128((int)left_shift - 1);
        o.constant = -zero * (1 << (left_shift - 1u));
        return o;
    }
    const int32_t d = 31 - (int32_t)left_shift, bits = d - shift;
    o.narrow = multiplier >= 0 && shift <= -1 && shift >= -31 && bits <= 22;
    if (!o.narrow) return o;
    const int32_t high = multiplier >> bits, low = multiplier & ((1 << bits) - 1);
    o.left = _mm_cvtsi32_si128(bits);
    o.high = _mm512_set1_epi32(high);
    o.low = _mm512_set1_epi32(low);
    o.add = _mm512_set1_epi32((1 << (d - 1)) + (1 << (bits - 1)) - zero * low);
    o.zero = _mm512_set1_epi32(zero);
    o.if_negative = _mm512_set1_epi32(1 << d);
    o.constant = -zero * high;
    return o;
}

INLINE __m512i operand(const int8_t *from, const Operand *o, int half) {
    const __m512i x = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
    if (half) return _mm512_sll_epi32(x, o->left);
    __m512i low = _mm512_add_epi32(_mm512_mullo_epi32(x, o->low), o->add);
    low = _mm512_mask_sub_epi32(low, _mm512_cmplt_epi32_mask(x, o->zero), low, o->if_negative);
    return _mm512_add_epi32(_mm512_mullo_epi32(x, o->high), _mm512_sra_epi32(low, o->left));
}

INLINE uint32_t add(const NeutronAddParams *p, const NeutronRow *row, const Operand *left, const Operand *right,
                    int a_half, int b_half, int positive) {
    const Operand a = *left, b = *right; /* copies, which no store can change */
    NeutronRightScale16 scale =
        neutron_scale16(_mm512_set1_epi32(p->output_multiplier), _mm512_set1_epi32(p->output_shift)).short_way;
    if (positive) neutron_for_positive16(&scale);
    const __m512i constant = _mm512_set1_epi32(a.constant + b.constant + NEUTRON_RIGHT_OFFSET);
    const __m512i zero = _mm512_set1_epi16((int16_t)p->output_zero);
    const __m512i low = _mm512_set1_epi8((char)p->clamp_min), high = _mm512_set1_epi8((char)p->clamp_max);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    uint32_t i = 0;
    for (; i + 64u <= row->count; i += 64u) {
        __m512i x[4];
#pragma GCC unroll 4
        for (uint32_t r = 0; r < 4; ++r) {
            const uint32_t at = i + 16u * r;
            __m512i sum = _mm512_add_epi32(operand(row->a + at, &a, a_half), operand(row->b + at, &b, b_half));
            x[r] = neutron_scale_right16(_mm512_add_epi32(sum, constant), &scale, positive);
        }
        __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(x[0], x[1]), zero);
        __m512i second = _mm512_adds_epi16(_mm512_packs_epi32(x[2], x[3]), zero);
        __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
        _mm512_storeu_si512(row->out + i, _mm512_min_epi8(_mm512_max_epi8(bytes, low), high));
    }
    return i;
}

void neutron_add_row_avx512(const void *parameters, const NeutronRow *row) {
    const NeutronAddParams *p = (const NeutronAddParams *)parameters;
    NeutronRow rest = *row;
    if (row->a_stride == 1 && row->b_stride == 1 && row->out_stride == 1 && row->count >= 64u) {
        const Operand a = make_operand(p->a_zero, p->left_shift, p->a_multiplier, p->a_shift);
        const Operand b = make_operand(p->b_zero, p->left_shift, p->b_multiplier, p->b_shift);
        const int right_only = p->output_multiplier >= 0 && p->output_shift >= -30 && p->output_shift <= -1;
        const int positive = p->clamp_min >= p->output_zero; /* as in avx512.h */
        uint32_t done = 0;
        if (right_only && a.half && b.half)
            done = positive ? add(p, row, &a, &b, 1, 1, 1) : add(p, row, &a, &b, 1, 1, 0);
        else if (right_only && a.half && b.narrow)
            done = positive ? add(p, row, &a, &b, 1, 0, 1) : add(p, row, &a, &b, 1, 0, 0);
        else if (right_only && a.narrow && b.half)
            done = positive ? add(p, row, &a, &b, 0, 1, 1) : add(p, row, &a, &b, 0, 1, 0);
        else if (right_only && a.narrow && b.narrow)
            done = positive ? add(p, row, &a, &b, 0, 0, 1) : add(p, row, &a, &b, 0, 0, 0);
        rest.a += done;
        rest.b += done;
        rest.out += done;
        rest.count -= done;
    }
    if (rest.count > 0) neutron_add_row_avx2(parameters, &rest);
}
