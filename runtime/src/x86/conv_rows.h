/* CONV_2D without gathering every window: the vectorised twin of the loop in kernels/conv_2d.c. */
#ifndef NEUTRON_CONV_ROWS_H
#define NEUTRON_CONV_ROWS_H

#include "kernel.h"

/* Run the convolution if this CPU and its shape allow; else 0, and nothing is done. `memory` is for the rows of a
 * window. */
int neutron_conv_rows(const NeutronMachine *machine, const NeutronConv2DParams *p, int8_t *memory, size_t bytes);

#endif
