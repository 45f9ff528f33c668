/* TABLE for x86-64, as neutron_table_rows. */
#ifndef NEUTRON_TABLE_ROWS_X86_H
#define NEUTRON_TABLE_ROWS_X86_H

#include "table.h"

void neutron_table_rows_avx2(const NeutronTableRows *t);
void neutron_table_rows_vbmi(const NeutronTableRows *t);

#endif
