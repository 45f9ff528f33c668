/* The memory an ExecuTorch program works in; pools.c makes it as large as neutron_pools.h says. */
#ifndef FIRMWARE_POOLS_H
#define FIRMWARE_POOLS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char* name; /* of its size in neutron_pools.h */
  uint8_t* data;
  uint32_t bytes;
} FirmwarePool;

/* What ExecuTorch wants of the temporary pool to look up an operator; with less it takes the method's. */
extern const uint32_t firmware_lookup_bytes;

extern const FirmwarePool firmware_method_pool, firmware_planned_pool, firmware_temporary_pool, firmware_io_pool;

/* The program as a .pte, in flash. */
extern const uint8_t firmware_program[];
extern const uint32_t firmware_program_bytes;

#ifdef __cplusplus
}
#endif

#endif
