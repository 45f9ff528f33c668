/* What the firmware would print, kept for the next answer: in memory that a reset of the processor leaves alone. */
#ifndef FIRMWARE_CONSOLE_H
#define FIRMWARE_CONSOLE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void console_clear(void);
const char *console_text(uint32_t *bytes);

/* What is being done: the code of the error, if it ends in a fault. */
void console_set_doing(uint8_t code);

/* After a reset: whether a fault was its cause, and what was being done. Asked once. */
bool console_crashed(uint8_t *code);

#ifdef __cplusplus
}
#endif

#endif
