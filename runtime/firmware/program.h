/* The delegates of a program, as `openneutron firmware` puts them into program.S. */
#ifndef FIRMWARE_PROGRAM_H
#define FIRMWARE_PROGRAM_H

#include <stdint.h>

typedef struct {
    const void *microcode;
    uint32_t microcode_bytes;
    const void *weights;
    uint32_t weights_bytes;
} FirmwareDelegate;

extern const FirmwareDelegate firmware_delegates[];

#endif
