/* The CMSDK UART of Arm's mps2-an505 and mps3-an547 boards. */
#include "uart.h"

#include "board.h"

#ifdef __ARM_FEATURE_MVE
#define UART 0x59303000u
#else
#define UART 0x50200000u
#endif
#define REGISTER(offset) (*(volatile uint32_t *)(UART + (offset)))
#define AIRCR (*(volatile uint32_t *)0xE000ED0Cu)

enum { DATA = 0x00, STATE = 0x04, CONTROL = 0x08, DIVIDER = 0x10 };
enum { TRANSMIT_FULL = 1, RECEIVE_FULL = 2 };

void uart_start(void) {
    board_allow_device(UART, UART + 0x1000u);
    REGISTER(DIVIDER) = 16u;
    REGISTER(CONTROL) = 3u; /* transmit and receive */
}

bool uart_get(uint8_t *byte) {
    if ((REGISTER(STATE) & RECEIVE_FULL) == 0) return false;
    *byte = (uint8_t)REGISTER(DATA);
    return true;
}

void uart_put(uint8_t byte) {
    while ((REGISTER(STATE) & TRANSMIT_FULL) != 0) {}
    REGISTER(DATA) = byte;
}

void uart_reset_processor(void) {
    __asm__ volatile("dsb" ::: "memory");
    AIRCR = 0x05FA0004u;
    for (;;) {}
}
