/* The loops against the plainest code that says the same, without ExecuTorch. Against its kernels: tests/cpu_kernels of
 * OpenNeutron, with compare.cpp beside this file. */
#include "cpu_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned failures, state = 1;

static float value(void) { /* of many magnitudes, with infinities, NaN and denormals */
  state = state * 1664525u + 1013904223u;
  if (state >> 28 != 0)
    return (float)(int)(state >> 8) / 65536.0f - 100.0f;
  const unsigned bits = state * 2654435761u;
  float found;
  memcpy(&found, &bits, sizeof found);
  return found;
}

static void same(const char* what, const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (memcmp(&a[i], &b[i], sizeof *a) != 0 && (a[i] == a[i] || b[i] == b[i])) {
      printf("%s: %zu is %.9g, not %.9g\n", what, i, (double)a[i], (double)b[i]);
      ++failures;
      return;
    }
}

static void quantize(float inverse, int zero) {
  static float in[1 << 16];
  static int8_t out[1 << 16];
  for (unsigned i = 0; i < 1 << 16; ++i) {
    const unsigned bits = i << 16 | 0x8000;
    memcpy(&in[i], &bits, sizeof bits);
  }
  cpu_quantize_s8(in, out, 1 << 16, inverse, zero, -128, 127);
  for (unsigned i = 0; i < 1 << 16; ++i) {
    const float sum = (float)zero + nearbyintf(inverse * in[i]);
    if (!(fabsf(sum) < 0x1p62f))
      continue; /* what such a conversion gives is the target's */
    const long long wanted = (long long)sum;
    if (out[i] != (wanted < -128 ? -128 : wanted > 127 ? 127 : wanted)) {
      printf("quantize %.9g: %d\n", (double)in[i], out[i]);
      ++failures;
      return;
    }
  }
}

static void multiply(size_t m, size_t n, size_t p) {
  float a[256], b[256], found[256], wanted[256];
  for (size_t i = 0; i < 256; ++i)
    a[i] = value(), b[i] = value();
  cpu_matmul(a, b, found, m, n, p);
  for (size_t i = 0; i < m * p; ++i) {
    float sum = 0.0f;
    for (size_t k = 0; k < n; ++k)
      sum += a[i / p * n + k] * b[k * p + i % p];
    wanted[i] = sum;
  }
  same("matmul", found, wanted, m * p);
}

static void gelu(void) {
  static float in[1 << 16], found[1 << 16], wanted[1 << 16];
  size_t left = 0;
  for (unsigned i = 0; i < 1 << 16; ++i) {
    const unsigned bits = i << 16 | 0x3FF7;
    memcpy(&in[i], &bits, sizeof bits);
    wanted[i] = (float)(0.5 * in[i] * (1 + erf(in[i] * 0.70710678118654752440)));
  }
  for (size_t at = 0; at < 1 << 16; ++at, ++left) {
    at += cpu_gelu(in + at, found + at, (1 << 16) - at);
    if (at < 1 << 16)
      found[at] = wanted[at];
  }
  same("gelu", found, wanted, 1 << 16);
  if (left > 1 << 13) { /* below -6, and denormals */
    printf("gelu leaves %zu values\n", left);
    ++failures;
  }
}

static void turn(size_t rows, size_t columns) {
  float in[256], found[256], wanted[256];
  for (size_t i = 0; i < 256; ++i)
    in[i] = value();
  CpuWalk walk = {0};
  cpu_walk_add(&walk, columns, 1, 0, 0);
  cpu_walk_add(&walk, rows, columns, 0, 0);
  cpu_gather(&walk, in, found, sizeof(float));
  for (size_t i = 0; i < rows * columns; ++i)
    wanted[i] = in[i % rows * columns + i / rows];
  same("transpose", found, wanted, rows * columns);
}

static void convolve(ptrdiff_t side, ptrdiff_t kernel, ptrdiff_t stride, ptrdiff_t padding, ptrdiff_t channels) {
  static float in[4096], weight[4096], bias[8], found[4096], wanted[4096];
  for (size_t i = 0; i < 4096; ++i)
    in[i] = value(), weight[i] = value(), bias[i % 8] = value();
  const ptrdiff_t result = (side + 2 * padding - kernel) / stride + 1, taps = kernel * kernel;
  const CpuWindow w = {1,
                       1,
                       2,
                       (size_t)channels,
                       {side, side},
                       {result, result},
                       {kernel, kernel},
                       {stride, stride},
                       {padding, padding},
                       {1, 1},
                       {2 * side * side, side * side, side, 1},
                       {channels * result * result, result * result, result, 1},
                       {2 * taps, taps, kernel, 1}};
  cpu_convolution(&w, in, weight, bias, found);
  float* to = wanted;
  for (ptrdiff_t c = 0; c < channels; ++c)
    for (ptrdiff_t i = 0; i < result * result; ++i) {
      float sum = 0.0f;
      for (ptrdiff_t k = 0; k < 2 * taps; ++k) {
        const ptrdiff_t y = i / result * stride + k % taps / kernel - padding;
        const ptrdiff_t x = i % result * stride + k % kernel - padding;
        if (y >= 0 && y < side && x >= 0 && x < side)
          sum += in[(k / taps * side + y) * side + x] * weight[c * 2 * taps + k];
      }
      *to++ = sum + bias[c];
    }
  same("convolution", found, wanted, (size_t)(channels * result * result));
}

int main(void) {
  gelu();
  for (int zero = -128; zero < 128; zero += 51)
    quantize(2.0f, zero), quantize(81.3f, zero), quantize(1e30f, zero), quantize(1e-39f, zero);
  for (size_t m = 1; m < 4; ++m)
    for (size_t n = 1; n < 10; ++n)
      for (size_t p = 1; p < 10; ++p)
        multiply(m, n, p), turn(n, p), turn(n, 25);
  for (ptrdiff_t side = 1; side < 12; ++side)
    for (ptrdiff_t kernel = 1; kernel < 4; ++kernel)
      for (ptrdiff_t stride = 1; stride < 3; ++stride)
        for (ptrdiff_t channels = 1; channels < 9; ++channels)
          convolve(side, kernel, stride, kernel / 2, channels);
  printf("%u failures\n", failures);
  return failures == 0 ? 0 : 1;
}
