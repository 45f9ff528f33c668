/* Float matrix products. Every sum adds its products one by one in the portable kernels' order; four sums advance side by
 * side. */
#include "cpu_kernels.h"

void cpu_matmul(const float *a, const float *b, float *out, size_t m, size_t n, size_t p) {
    for (size_t i = 0; i < m; ++i, a += n) {
        size_t j = 0;
        for (; j + 4 <= p; j += 4) {
            float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
            const float *right = b + j;
            for (size_t k = 0; k < n; ++k, right += p) {
                const float left = a[k];
                s0 += left * right[0];
                s1 += left * right[1];
                s2 += left * right[2];
                s3 += left * right[3];
            }
            out[0] = s0;
            out[1] = s1;
            out[2] = s2;
            out[3] = s3;
            out += 4;
        }
        for (; j < p; ++j) {
            float sum = 0.0f;
            const float *right = b + j;
            for (size_t k = 0; k < n; ++k, right += p) sum += a[k] * *right;
            *out++ = sum;
        }
    }
}

void cpu_scale_add(float *out, const float *add, size_t step, size_t count, float alpha, float beta) {
    for (; count > 0; --count, ++out, add += step) *out = *out * alpha + *add * beta;
}
