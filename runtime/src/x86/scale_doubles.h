/* Sums of a fully connected layer to bytes, scaled in double precision: twin of the loop in
 * kernels/fully_connected.c. */
#ifndef NEUTRON_SCALE_DOUBLES_H
#define NEUTRON_SCALE_DOUBLES_H

#include <stdint.h>

/* out[i] = clamp(round(sums[i] * scales[i]) + zero) for the first values; how many, 0 where this CPU cannot. */
uint32_t neutron_scale_doubles(const int32_t *sums, const double *scales, uint32_t count, int32_t zero, int32_t low,
                               int32_t high, int8_t *out);

uint32_t neutron_scale_doubles_avx512(const int32_t *sums, const double *scales, uint32_t count, int32_t zero,
                                      int32_t low, int32_t high, int8_t *out);

#endif
