/* A file of its own: another size of a pool is a matter of compiling this one, without ExecuTorch's headers. */
#include "pools.h"

#include "neutron_pools.h"

#define POOL(name, size)                                                                                \
  static uint8_t name##_data[(size) != 0 ? (size) : 1] __attribute__((section(".pools"), aligned(16))); \
  const FirmwarePool name = {#size, name##_data, size}

POOL(firmware_method_pool, NEUTRON_METHOD_BYTES);
POOL(firmware_planned_pool, NEUTRON_PLANNED_BYTES);
POOL(firmware_temporary_pool, NEUTRON_TEMPORARY_BYTES);
POOL(firmware_io_pool, NEUTRON_IO_BYTES);

const uint32_t firmware_lookup_bytes = NEUTRON_LOOKUP_BYTES;
