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

/* round(in * inverse) + zero, not below `low`, then not above `high`. `inverse` is 1.0f / scale; |zero| <= 2^21. What is too
 * large for an int32 is converted to an int64, or (narrow) to an int32 before the zero point is added. */
#define CPU_ZERO_LIMIT (1 << 21)
void cpu_quantize_s8(const float *in, int8_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                     int32_t high);
void cpu_quantize_u8(const float *in, uint8_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                     int32_t high);
void cpu_quantize_s16(const float *in, int16_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                      int32_t high);
void cpu_quantize_narrow_s8(const float *in, int8_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                            int32_t high);
void cpu_quantize_narrow_s16(const float *in, int16_t *out, size_t count, float inverse, int32_t zero, int32_t low,
                             int32_t high);

/* (in - zero) * scale. */
void cpu_dequantize_s8(const int8_t *in, float *out, size_t count, float scale, int32_t zero);
void cpu_dequantize_u8(const uint8_t *in, float *out, size_t count, float scale, int32_t zero);
void cpu_dequantize_s16(const int16_t *in, float *out, size_t count, float scale, int32_t zero);

/* Dimensions from the outermost to the innermost, with the steps of up to three tensors in elements; those that lie one
 * behind the other in all are one. The tensor that is written has no gaps and the order of the walk. */
#define CPU_RANK 16
#define CPU_READ 3
typedef struct {
    size_t rank, size[CPU_RANK], step[CPU_READ][CPU_RANK];
} CpuWalk;
void cpu_walk_add(CpuWalk *walk, size_t size, size_t first_step, size_t second_step, size_t third_step);
/* Goes on to the next row, that is the next index of all but the `inner` last dimensions; false after the last. */
bool cpu_walk_next(const CpuWalk *walk, size_t inner, size_t index[CPU_RANK], size_t at[CPU_READ]);

/* out[i] = a[i * a_step] op (alpha * b[i * b_step]), floats; comparisons write bools. Only add and sub know alpha. */
typedef void CpuBinary(const float *a, size_t a_step, const float *b, size_t b_step, void *out, size_t count,
                       float alpha);
CpuBinary cpu_add, cpu_sub, cpu_mul, cpu_div, cpu_minimum, cpu_maximum;
CpuBinary cpu_eq, cpu_ne, cpu_lt, cpu_le, cpu_gt, cpu_ge;
void cpu_broadcast(CpuBinary *row, const CpuWalk *walk, const float *a, const float *b, void *out, size_t out_bytes,
                   float alpha);
/* The value of `a` where the condition holds, of `b` elsewhere; the walk's steps are of the condition, a, b. */
void cpu_where(const CpuWalk *walk, const bool *condition, const float *a, const float *b, float *out);

typedef void CpuUnary(const float *in, float *out, size_t count);
CpuUnary cpu_relu, cpu_abs, cpu_neg, cpu_sqrt, cpu_rsqrt, cpu_reciprocal, cpu_exp, cpu_tanh, cpu_sigmoid;
/* 0.5 * x * (1 + erf(x / sqrt(2))). Returns how many it computed: it stops before a value that it cannot tell. */
size_t cpu_gelu(const float *in, float *out, size_t count);
/* Not below low, then not above high; neither is NaN. */
void cpu_clamp(const float *in, float *out, size_t count, float low, float high);

/* Elements of 1, 2, 4 or 8 bytes, wherever they lie, one behind the other; the walk's first steps are the input's, and
 * may be below 0 (wrapped around). */
void cpu_gather(const CpuWalk *walk, const void *in, void *out, size_t element_bytes);
/* Rows of some bytes; from row to row in both. */
void cpu_copy_rows(const void *in, void *out, size_t rows, size_t bytes, size_t in_step, size_t out_step);

/* The sum over `reduced` at every point of `kept` (first steps), divided by `divisor`. It starts with the first value, or
 * (from_zero) with 0, which differs for -0. */
void cpu_sum(const CpuWalk *kept, const CpuWalk *reduced, const float *in, float *out, bool from_zero, float divisor);
/* Over `size` values at distance `step`. */
void cpu_softmax(const float *in, float *out, size_t size, size_t step);
void cpu_log_softmax(const float *in, float *out, size_t size, size_t step);
/* A row; weight and bias may be null. Returns the mean and writes 1 / deviation. */
float cpu_layer_norm(const float *in, const float *weight, const float *bias, float *out, size_t size, float epsilon,
                     float *inverse);

/* out[m][p] = a[m][n] * b[n][p], every sum from 0 on in the order of n. */
void cpu_matmul(const float *a, const float *b, float *out, size_t m, size_t n, size_t p);
/* out[i] = out[i] * alpha + add[i * step] * beta */
void cpu_scale_add(float *out, const float *add, size_t step, size_t count, float alpha, float beta);

/* Channels are per group. Steps are those of [batch, channel, y, x]; a convolution's weights are [output, input, y, x], a
 * transposed one's [input, output, y, x]. */
typedef struct {
    size_t batches, groups, in_channels, out_channels;
    ptrdiff_t in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];
    ptrdiff_t in_step[4], out_step[4], weight_step[4];
    bool transposed; /* with a dilation of 1 */
} CpuWindow;
/* Every sum from 0 on in the order of input channel, y and x, then the bias; taps outside of the input are left out.
 * Transposed: from the bias on, in the order of y, x and input channel. */
void cpu_convolution(const CpuWindow *window, const float *in, const float *weight, const float *bias, float *out);

/* `batches` images of `out_channels`; `divisor` is 0 where it is the number of values, or of taps (with_padding). */
void cpu_average_pool(const CpuWindow *window, const float *in, float *out, bool with_padding, float divisor);
/* The first of the largest, and where it lies in its plane. */
void cpu_max_pool(const CpuWindow *window, const float *in, float *out, int64_t *indices);

/* Images of other sizes, with the channels' and pixels' steps; `scale` is the input's pixels for one of the output. */
void cpu_upsample_nearest(const CpuWindow *window, const float scale[2], const float *in, float *out);
void cpu_upsample_bilinear(const CpuWindow *window, const float scale[2], bool align_corners, const float *in,
                           float *out);

/* int8, as CMSIS-NN rounds it. An input: (value - zero) * 2^20 * multiplier / 2^31 / 2^-shift, shift <= 0. */
typedef struct {
    int32_t zero, multiplier, shift;
} CpuInput;
/* Divided by 2^right, which is from 1 to 22. */
typedef struct {
    int32_t zero, multiplier, right, low, high;
} CpuOutput;
/* What each value of two inputs adds to a sum; false where that may be too large. */
bool cpu_add_tables_s8(const CpuInput in[2], int32_t tables[2][256]);
void cpu_add_s8(int32_t tables[2][256], const CpuOutput *out, const int8_t *a, const int8_t *b, int8_t *to,
                size_t count);
void cpu_mul_s8(int32_t a_zero, int32_t b_zero, const CpuOutput *out, const int8_t *a, const int8_t *b, int8_t *to,
                size_t count);
/* Values more than `most` below a row's largest count for nothing. `table` keeps exponentials; false if a row's sum is too
 * large, where what is written is not to be used. */
typedef struct {
    int32_t multiplier, shift, most;
} CpuSoftmax;
bool cpu_softmax_s8(const CpuSoftmax *softmax, int32_t table[256], const int8_t *in, int8_t *out, size_t rows,
                    size_t size);

#ifdef __cplusplus
}
#endif

#endif
