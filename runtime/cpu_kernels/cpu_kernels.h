/* Operators of ExecuTorch on a Cortex-M CPU: loops over plain memory, each bit for bit what ExecuTorch's portable
 * kernel computes (a NaN is a NaN: its bits are the compiler's choice there too). The files in executorch/ decide which
 * calls come here. No heap, no writable globals. */
#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* round(in * inverse) + zero, not below `low`, then not above `high`. `inverse` is 1.0f / scale; |zero| <= 2^21. */
#define CPU_ZERO_LIMIT (1 << 21)
void cpu_quantize_s8(const float *in, int8_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                     int32_t high);
void cpu_quantize_u8(const float *in, uint8_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                     int32_t high);
void cpu_quantize_s16(const float *in, int16_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                      int32_t high);

/* (in - zero) * scale. */
void cpu_dequantize_s8(const int8_t *in, float *out, size_t count, float scale, int32_t zero);
void cpu_dequantize_u8(const uint8_t *in, float *out, size_t count, float scale, int32_t zero);
void cpu_dequantize_s16(const int16_t *in, float *out, size_t count, float scale, int32_t zero);

#ifdef __cplusplus
}
#endif

#endif
