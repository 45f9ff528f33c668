/* What the application wants from the board: memory protection, a clock, the stack's high-water mark. */
#ifndef FIRMWARE_BOARD_H
#define FIRMWARE_BOARD_H

#include <stdbool.h>
#include <stdint.h>

/* From now on only code, SRAM and microcode can be accessed, and the weights while they are open. */
void board_protect(void);

/* Whether the weights in flash may be read. The NPU cannot read flash: with weights that are prefetched, only
 * the copy callback may, and anything else that touches them faults. */
void board_open_weights(bool open);

/* Ticks of the processor's clock since reset. */
uint64_t board_ticks(void);

/* The most stack that was in use since reset. */
uint32_t board_stack_bytes(void);

#endif
