/* The serial line of a firmware that takes programs. uart.c is for the boards QEMU emulates; for another board, write
 * these four functions. */
#ifndef FIRMWARE_UART_H
#define FIRMWARE_UART_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void uart_start(void);
bool uart_get(uint8_t *byte); /* false if none has come */
void uart_put(uint8_t byte);  /* waits until there is room */

/* The processor from its start; what is in `.pools` stays. */
__attribute__((noreturn)) void uart_reset_processor(void);

#ifdef __cplusplus
}
#endif

#endif
