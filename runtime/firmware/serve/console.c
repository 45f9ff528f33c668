#include "console.h"

#include <string.h>

#include "semihosting.h"
#include "uart.h"

#define CRASHED 0xC4A54ED1u

static struct {
    uint32_t crashed, length;
    uint8_t doing;
    char text[64 * 1024];
} console __attribute__((section(".pools"), aligned(16)));

void console_clear(void) { console.length = 0; }

const char *console_text(uint32_t *bytes) {
    *bytes = console.length <= sizeof console.text ? console.length : 0;
    return console.text;
}

void console_set_doing(uint8_t code) { console.doing = code; }

bool console_crashed(uint8_t *code) {
    bool crashed = console.crashed == CRASHED && console.length <= sizeof console.text;
    console.crashed = 0;
    *code = console.doing;
    if (!crashed) console.length = 0;
    return crashed;
}

/* These replace semihosting.c's: a board on a line has no debugger to print to. */
void semihosting_text(const char *text) {
    size_t length = strlen(text), room = sizeof console.text - console.length;
    if (length > room) length = room;
    memcpy(console.text + console.length, text, length);
    console.length += (uint32_t)length;
}

void semihosting_exit(bool ok) {
    (void)ok; /* a firmware that serves ends by a fault only */
    console.crashed = CRASHED;
    uart_reset_processor();
}
