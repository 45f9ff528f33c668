/* What an application calls that is built with a program (`openneutron firmware FILE.pte ... --application F.c`).
 *
 * All methods are loaded before it starts, and work in one memory, one after the other: what is in a method's inputs
 * and outputs is gone when an input of another method is written or another one runs. */
#ifndef FIRMWARE_APPLICATION_H
#define FIRMWARE_APPLICATION_H

#include <stdbool.h>
#include <stdint.h>

#include "semihosting.h" /* files and text; a product has drivers in their place */

#ifdef __cplusplus
extern "C" {
#endif

/* The application's own: false if something failed, which it has printed as a line that begins with "error ". */
bool application(void);

/* The number of a method, from 0; -1 if the program has none of that name. */
int32_t method_find(const char* name);

/* The memory of a method's inputs and outputs, with its size; NULL if there is none. */
void* method_input(int32_t method, uint32_t index, uint32_t* bytes);
const void* method_output(int32_t method, uint32_t index, uint32_t* bytes);

/* Computes the outputs from the inputs; false if ExecuTorch reported an error, which is printed. */
bool method_run(int32_t method);

/* Lets what delegates remember start from its initial values at their next run: a sequence begins. What a program
 * remembers on the CPU stays. */
void methods_reset(void);

#ifdef __cplusplus
}
#endif

#endif
