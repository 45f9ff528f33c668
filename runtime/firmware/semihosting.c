/* Own calls rather than newlib's rdimon: no printf and no heap in the image, so that its size is the runtime's. */
#include "semihosting.h"

#include <string.h>

enum { SYS_OPEN = 0x01, SYS_CLOSE = 0x02, SYS_WRITE0 = 0x04, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT = 0x18 };
enum { STOPPED_APPLICATION_EXIT = 0x20026, STOPPED_RUN_TIME_ERROR = 0x20023 };

static int32_t call(uint32_t operation, uintptr_t argument) {
    register uint32_t r0 __asm__("r0") = operation;
    register uintptr_t r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return (int32_t)r0;
}

int32_t semihosting_open(const char *name, SemihostingMode mode) {
    uintptr_t block[3] = {(uintptr_t)name, (uintptr_t)mode, strlen(name)};
    return call(SYS_OPEN, (uintptr_t)block);
}

/* Reading and writing answer with the bytes that are left over. */
static bool transfer(uint32_t operation, int32_t file, uintptr_t data, size_t bytes) {
    uintptr_t block[3] = {(uintptr_t)file, data, bytes};
    return bytes == 0 || call(operation, (uintptr_t)block) == 0;
}

bool semihosting_read(int32_t file, void *data, size_t bytes) {
    return transfer(SYS_READ, file, (uintptr_t)data, bytes);
}

bool semihosting_write(int32_t file, const void *data, size_t bytes) {
    return transfer(SYS_WRITE, file, (uintptr_t)data, bytes);
}

void semihosting_close(int32_t file) {
    uintptr_t block[1] = {(uintptr_t)file};
    (void)call(SYS_CLOSE, (uintptr_t)block);
}

/* Weak: a firmware that serves over a line has its own. */
__attribute__((weak)) void semihosting_text(const char *text) { (void)call(SYS_WRITE0, (uintptr_t)text); }

void semihosting_number(uint64_t value) {
    char text[21];
    char *at = text + sizeof text - 1;
    *at = 0;
    do {
        *--at = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0);
    semihosting_text(at);
}

void semihosting_hex(uint32_t value) {
    char text[11] = "0x";
    for (uint32_t i = 0; i < 8; ++i) text[2 + i] = "0123456789abcdef"[value >> (28u - 4u * i) & 15u];
    text[10] = 0;
    semihosting_text(text);
}

__attribute__((weak)) void semihosting_exit(bool ok) {
    for (;;) (void)call(SYS_EXIT, ok ? STOPPED_APPLICATION_EXIT : STOPPED_RUN_TIME_ERROR);
}
