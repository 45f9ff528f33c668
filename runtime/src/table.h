/* The rows of TABLE: the inner part that has vectorised twins. */
#ifndef NEUTRON_TABLE_H
#define NEUTRON_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* out[r][i] = table[in[r][i]] for rows of `length` bytes; where out is in, all rows are. */
typedef struct {
    const uint8_t *table; /* of 256 bytes */
    const uint8_t *in;
    uint8_t *out;
    size_t in_pitch, out_pitch;
    uint32_t rows, length;
} NeutronTableRows;

/* The best implementation for this machine. */
void neutron_table_rows(const NeutronTableRows *t);

void neutron_table_rows_portable(const NeutronTableRows *t);

#endif
