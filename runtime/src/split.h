/* Splitting a kernel call into parts that may run at the same time. */
#ifndef NEUTRON_SPLIT_H
#define NEUTRON_SPLIT_H

#include "kernel.h"

/* What the parts of a call are. */
typedef enum {
    NEUTRON_AXIS_NONE,     /* the call stays whole */
    NEUTRON_AXIS_ROWS,     /* of a feature map, or of whatever the form calls rows */
    NEUTRON_AXIS_PIXELS,   /* of a feature map whose rows lie behind one another */
    NEUTRON_AXIS_CHANNELS, /* of a pool, or of a product */
    NEUTRON_AXIS_LENGTH,   /* of the one run of bytes there is */
    NEUTRON_AXIS_DIM       /* one dimension of a walk or a move */
} NeutronAxis;

typedef struct {
    uint32_t kind;
    NeutronForm form;
    NeutronAxis axis;
    uint32_t dim;   /* of NEUTRON_AXIS_DIM */
    uint32_t each;  /* pixels, channels or bytes that count as one: what vector code does at a time */
    uint32_t count; /* what is shared out */
    uint32_t parts; /* at least 1 */
} NeutronSplit;

/* Into how many parts, `most` or fewer, a call is worth being split, and how. */
NeutronSplit neutron_split(uint32_t kind, const void *parameters, uint32_t most);

/* Run one part. The parts write to different places, and read what none of them writes. */
int32_t neutron_run_part(const NeutronSplit *split, const NeutronMachine *machine, const void *parameters,
                         uint32_t part);

#endif
