/* What the applications want from the board: memory protection, a clock, the stack's high-water mark. */
#ifndef FIRMWARE_BOARD_H
#define FIRMWARE_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on code and flash can only be read, the SRAM only read and written, and nothing else accessed. */
void board_protect(void);

/* From now on a read of these bytes of the flash faults. The NPU cannot read flash: while a delegate with prefetched
 * weights runs, only the copy callback may. One piece at a time; its ends are rounded inwards to 32 bytes. */
void board_close_flash(const void *start, uint32_t bytes);
void board_open_flash(void);

/* From now on the flash may be written too, or not any more: a program is received there. */
void board_write_flash(bool allowed);

/* From now on these registers of a device may be accessed; one piece. */
void board_allow_device(uint32_t start, uint32_t end);

/* Ticks of the processor's clock since reset. */
uint64_t board_ticks(void);
uint32_t board_ticks_per_microsecond(void);

/* The most stack that was in use since reset. */
uint32_t board_stack_bytes(void);

#ifdef __cplusplus
}
#endif

#endif
