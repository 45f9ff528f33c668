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

/* As many values as can be done exactly, step by step. */
static uint32_t add_exactly(const NeutronAddParams *p, const NeutronRow *row) {
    const Operand a = make_operand(p->a_zero, p->left_shift, p->a_multiplier, p->a_shift);
    const Operand b = make_operand(p->b_zero, p->left_shift, p->b_multiplier, p->b_shift);
    const int positive = p->clamp_min >= p->output_zero; /* as in avx512.h */
    if (p->output_multiplier < 0 || p->output_shift < -30 || p->output_shift > -1) return 0;
    if (a.half && b.half) return positive ? add(p, row, &a, &b, 1, 1, 1) : add(p, row, &a, &b, 1, 1, 0);
    if (a.half && b.narrow) return positive ? add(p, row, &a, &b, 1, 0, 1) : add(p, row, &a, &b, 1, 0, 0);
    if (a.narrow && b.half) return positive ? add(p, row, &a, &b, 0, 1, 1) : add(p, row, &a, &b, 0, 1, 0);
    if (a.narrow && b.narrow) return positive ? add(p, row, &a, &b, 0, 0, 1) : add(p, row, &a, &b, 0, 0, 0);
    return 0;
}

/* The sum in one go: floor((a * a_factor + b * b_factor + constant) / 2^bits), which is the result unless the sum is
 * so near to an integer that one of the roundings may have crossed it. */
typedef struct {
    int32_t a, b, constant; /* the last one less `doubt` */
    int32_t bits, doubt;
} Direct;

/* 2^n, for n as they occur here. */
static double power(int32_t n) {
    const uint64_t bits = (uint64_t)(1023 + n) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double size(double x) { return x < 0 ? -x : x; }

static int32_t nearest(double x) { return (int32_t)(x < 0 ? x - 0.5 : x + 0.5); }

/* False if sums may be too large. */
static int make_direct(const NeutronAddParams *p, Direct *d) {
    const int32_t left = (int32_t)p->left_shift;
    if (p->a_zero < -128 || p->a_zero > 127 || p->b_zero < -128 || p->b_zero > 127 || p->output_zero < -128 ||
        p->output_zero > 127 || left > 22 || p->a_shift > 0 || p->a_shift < -31 || p->b_shift > 0 || p->b_shift < -31 ||
        p->output_shift > -4 || p->output_shift < -30) {
        return 0;
    }
    /* What 1 in an operand is in the sum of both, and what 1 in that is in the result. */
    const double a = p->a_multiplier * power(left + p->a_shift - 31);
    const double b = p->b_multiplier * power(left + p->b_shift - 31);
    const double scale = p->output_multiplier * power(p->output_shift - 31);
    if (255.0 * (size(a) + size(b)) > 1073741824.0) return 0;
    const double offset = 0.5 + p->output_zero - (p->a_zero * a + p->b_zero * b) * scale;
    const double largest = 128.0 * (size(a) + size(b)) * size(scale) + size(offset) + 1.0;
    for (d->bits = 22; d->bits >= 18; --d->bits) {
        if (largest * power(d->bits) < 2147000000.0) {
            d->a = nearest(a * scale * power(d->bits));
            d->b = nearest(b * scale * power(d->bits));
            /* Factors are wrong by 1/2 and operands at most 128, the constant by 1/2; each operand was rounded by less
             * than 1, the sum by 1/2 before its last shift. */
            const double wrong = 129.0 + 2.0 * size(scale) * power(d->bits) + 0.5 * power(d->bits + p->output_shift);
            d->doubt = (int32_t)wrong + 2;
            d->constant = nearest(offset * power(d->bits)) - d->doubt;
            return d->doubt < 4096;
        }
    }
    return 0;
}

/* Blocks of 64 values from the first on, and how many values those are. Blocks with a doubtful sum are done again, step
 * by step; if most of them are, as where scales are powers of 2, that is left to the caller from the start. */
static uint32_t add_directly(const NeutronAddParams *p, const NeutronRow *row) {
    Direct d;
    if (!make_direct(p, &d)) return 0;
    const __m512i a = _mm512_set1_epi32(d.a), b = _mm512_set1_epi32(d.b), constant = _mm512_set1_epi32(d.constant);
    const __m512i twice = _mm512_set1_epi32(2 * d.doubt);
    const __m128i bits = _mm_cvtsi32_si128(d.bits);
    const __m512i low = _mm512_set1_epi8((char)p->clamp_min), high = _mm512_set1_epi8((char)p->clamp_max);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    uint32_t i = 0, doubtful = 0;
    for (; i + 64u <= row->count; i += 64u) {
        __m512i x[4], differ = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (uint32_t r = 0; r < 4; ++r) {
            const int8_t *from = row->a + i + 16u * r, *other = row->b + i + 16u * r;
            const __m512i first = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
            const __m512i second = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)other));
            const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(_mm512_mullo_epi32(first, a), constant),
                                                 _mm512_mullo_epi32(second, b));
            x[r] = _mm512_sra_epi32(sum, bits);
            const __m512i above = _mm512_sra_epi32(_mm512_add_epi32(sum, twice), bits);
            differ = _mm512_ternarylogic_epi32(differ, x[r], above, 0xF6); /* differ | (x ^ above) */
        }
        if (_mm512_test_epi32_mask(differ, differ)) {
            const NeutronRow block = {row->a + i, row->b + i, row->out + i, 1, 1, 1, 64};
            if (++doubtful > 4u && doubtful > i / 256u) return i;
            if (add_exactly(p, &block) < 64u) return i;
            continue;
        }
        __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3]));
        bytes = _mm512_permutexvar_epi32(order, bytes);
        _mm512_storeu_si512(row->out + i, _mm512_min_epi8(_mm512_max_epi8(bytes, low), high));
    }
    return i;
}

static NeutronRow behind(const NeutronRow *row, uint32_t done) {
    NeutronRow rest = *row;
    rest.a += done;
    rest.b += done;
    rest.out += done;
    rest.count -= done;
    return rest;
}

void neutron_add_row_avx512(const void *parameters, const NeutronRow *row) {
    const NeutronAddParams *p = (const NeutronAddParams *)parameters;
    NeutronRow rest = *row;
    if (row->a_stride == 1 && row->b_stride == 1 && row->out_stride == 1) {
        if (rest.count >= 512u) rest = behind(&rest, add_directly(p, &rest)); /* or else it is not worth its start */
        if (rest.count >= 64u) rest = behind(&rest, add_exactly(p, &rest));
    }
    if (rest.count > 0) neutron_add_row_avx2(parameters, &rest);
}
