/* TABLE for AVX-512 VBMI: the whole table is in four registers, 64 values are looked up at a time. */
#include <immintrin.h>

#include "table_rows.h"

void neutron_table_rows_vbmi(const NeutronTableRows *t) {
    __m512i table[4];
    for (uint32_t i = 0; i < 4; ++i) table[i] = _mm512_loadu_si512(t->table + 64u * i);
    for (uint32_t r = 0; r < t->rows; ++r) {
        const uint8_t *from = t->in + r * t->in_pitch;
        uint8_t *to = t->out + r * t->out_pitch;
        for (uint32_t i = 0; i < t->length; i += 64u) {
            const uint32_t left = t->length - i;
            const __mmask64 mask = left < 64u ? (UINT64_C(1) << left) - 1u : ~UINT64_C(0);
            const __m512i x = _mm512_maskz_loadu_epi8(mask, from + i);
            const __m512i low = _mm512_permutex2var_epi8(table[0], x, table[1]);
            const __m512i high = _mm512_permutex2var_epi8(table[2], x, table[3]);
            _mm512_mask_storeu_epi8(to + i, mask, _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(x), high));
        }
    }
}
