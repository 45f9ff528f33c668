/* ADD for AVX-512, 64 values at a time. */
#include "avx512.h"
#include "x86.h"

#define INLINE static inline __attribute__((always_inline))

/* One operand: (value - zero) * 2^left_shift, scaled. */
typedef struct {
    NeutronPlain16 scale;
    __m512i more; /* what is added to the shifted value */
    __m128i left;
    int half, plain; /* the scale is 1/2, which the operand of the larger scale has: no rounding; or the short way */
} Operand;

/* `offset` is added to a half that is not scaled any more. */
static Operand make_operand(int32_t zero, uint32_t left_shift, int32_t multiplier, int32_t shift, int32_t offset) {
    const NeutronScale16 scale = neutron_scale16(_mm512_set1_epi32(multiplier), _mm512_set1_epi32(shift));
    Operand o = {.scale = scale.short_way, .plain = scale.plain};
    o.half = multiplier == (INT32_C(1) << 30) && shift == 0 && left_shift > 0;
    const int left = (int)left_shift - o.half;
    o.more = _mm512_set1_epi32((o.half ? offset : NEUTRON_PLAIN_OFFSET) - zero * (1 << left));
    o.left = _mm_cvtsi32_si128(left);
    return o;
}

/* At most 255 * 2^20 goes in, so that the short way may be taken wherever the shift allows. */
INLINE __m512i operand(const int8_t *from, const Operand *o, int half) {
    __m512i x = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
    x = _mm512_add_epi32(_mm512_sll_epi32(x, o->left), o->more);
    return half ? x : neutron_plain16(x, &o->scale);
}

INLINE uint32_t add(const NeutronAddParams *p, const NeutronRow *row, const Operand *left, const Operand *right,
                    int a_half, int b_half) {
    const Operand a = *left, b = *right; /* copies, which no store can change */
    const NeutronPlain16 scale =
        neutron_scale16(_mm512_set1_epi32(p->output_multiplier), _mm512_set1_epi32(p->output_shift)).short_way;
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
            if (!a_half && !b_half) sum = _mm512_add_epi32(sum, _mm512_set1_epi32(NEUTRON_PLAIN_OFFSET));
            x[r] = neutron_plain16(sum, &scale);
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
        const Operand a = make_operand(p->a_zero, p->left_shift, p->a_multiplier, p->a_shift, NEUTRON_PLAIN_OFFSET);
        const Operand b = make_operand(p->b_zero, p->left_shift, p->b_multiplier, p->b_shift,
                                       a.half ? 0 : NEUTRON_PLAIN_OFFSET);
        const int plain = p->output_multiplier >= 0 && p->output_shift >= -30 && p->output_shift <= -1;
        uint32_t done = 0;
        if (plain && a.half && b.half) done = add(p, row, &a, &b, 1, 1);
        else if (plain && a.half && b.plain) done = add(p, row, &a, &b, 1, 0);
        else if (plain && a.plain && b.half) done = add(p, row, &a, &b, 0, 1);
        else if (plain && a.plain && b.plain) done = add(p, row, &a, &b, 0, 0);
        rest.a += done;
        rest.b += done;
        rest.out += done;
        rest.count -= done;
    }
    if (rest.count > 0) neutron_add_row_avx2(parameters, &rest);
}
