/* Semihosting: files and text of the machine that runs the emulator (or the debugger). */
#ifndef FIRMWARE_SEMIHOSTING_H
#define FIRMWARE_SEMIHOSTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { SEMIHOSTING_READ = 1, SEMIHOSTING_WRITE = 5 } SemihostingMode; /* "rb", "wb" */

/* A handle, or -1. */
int32_t semihosting_open(const char *name, SemihostingMode mode);
bool semihosting_read(int32_t file, void *data, size_t bytes);
bool semihosting_write(int32_t file, const void *data, size_t bytes);
void semihosting_close(int32_t file);

void semihosting_text(const char *text);
void semihosting_number(uint64_t value);
void semihosting_hex(uint32_t value);

__attribute__((noreturn)) void semihosting_exit(bool ok);

#ifdef __cplusplus
}
#endif

#endif
