/* cpu_expf beside the C library's expf, or with -DTANH cpu_tanhf beside tanhf, for the floats whose bits are from FIRST to
 * LAST, every STEP-th. Under QEMU it prints how many differ. */
#include "exponential.h"
#include "semihosting.h"

#ifndef STEP
#define STEP 1
#endif

int main(void) {
  uint32_t wrong = 0, seen = 0;
  for (uint64_t bits = FIRST; bits <= LAST; bits += STEP, ++seen) {
    const uint32_t own = (uint32_t)bits;
    float x;
    memcpy(&x, &own, sizeof x);
#ifdef TANH
    const float a = cpu_tanhf(x), b = tanhf(x);
#else
    const float a = cpu_expf(x, x < 0.0f ? -0.5f : 0.5f, false), b = expf(x);
#endif
    wrong += memcmp(&a, &b, sizeof a) != 0 && (a == a || b == b);
  }
  semihosting_number(seen);
  semihosting_text(" values, ");
  semihosting_number(wrong);
  semihosting_text(" differ\n");
  semihosting_exit(wrong == 0);
}
