/* One row of ADD: the inner part that has a vectorised twin. */
#ifndef NEUTRON_ADD_H
#define NEUTRON_ADD_H

#include "elementwise.h"

void neutron_add_row(const void *parameters, const NeutronRow *row);

void neutron_add_row_portable(const void *parameters, const NeutronRow *row);

#endif
