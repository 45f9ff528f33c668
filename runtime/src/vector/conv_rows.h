/* CONV_2D without gathering every window: the vectorised twin of the loop in kernels/conv_2d.c. */
#ifndef NEUTRON_CONV_ROWS_H
#define NEUTRON_CONV_ROWS_H

#include "kernel.h"

#define NEUTRON_NOT_BY_ROWS (-1)

/* Run the convolution if this CPU and its shape allow; else NEUTRON_NOT_BY_ROWS, and nothing is done. `memory` is for the rows of a
 * window. An input of several planes is given as an image of the channels in one, with the distance to the next;
 * the weights are then in the order plane, row, column, channel of the window. */
int32_t neutron_conv_rows(const NeutronMachine *machine, const NeutronConv2DParams *p, uint32_t planes, size_t plane,
                          int8_t *memory, size_t bytes);

#endif
