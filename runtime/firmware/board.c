/* Start-up, faults, memory protection and the clock of a Cortex-M33 (ARMv8-M main line). */
#include "board.h"

#include <stddef.h>
#include <string.h>

#include "semihosting.h"

extern uint8_t __stack_start[], __stack_end[], __data_start[], __data_end[], __data_load[], __bss_start[], __bss_end[];
extern uint8_t __code_start[], __code_end[], __sram_start[], __sram_end[];
extern uint8_t __microcode_start[], __microcode_end[], __weights_start[], __weights_end[];

int main(void);
void firmware_reset(void);

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SYST_CSR REGISTER(0xE000E010u)
#define SYST_RVR REGISTER(0xE000E014u)
#define SYST_CVR REGISTER(0xE000E018u)
#define SCB_ICSR REGISTER(0xE000ED04u)
#define SCB_CFSR REGISTER(0xE000ED28u)
#define SCB_MMFAR REGISTER(0xE000ED34u)
#define MPU_CTRL REGISTER(0xE000ED94u)
#define MPU_RNR REGISTER(0xE000ED98u)
#define MPU_RBAR REGISTER(0xE000ED9Cu)
#define MPU_RLAR REGISTER(0xE000EDA0u)
#define MPU_MAIR0 REGISTER(0xE000EDC0u)

#define STACK_PAINT 0xA5A5A5A5u

static volatile uint32_t clock_rounds; /* how often the 24-bit clock went round */

/* --- start-up --- */

void firmware_reset(void) {
    /* Paint the stack below this frame, to see later how deep it went. */
    volatile uint32_t *here = (volatile uint32_t *)__builtin_frame_address(0) - 16;
    for (volatile uint32_t *at = (volatile uint32_t *)(void *)__stack_start; at < here; ++at) *at = STACK_PAINT;
    memcpy(__data_start, __data_load, (size_t)(__data_end - __data_start));
    memset(__bss_start, 0, (size_t)(__bss_end - __bss_start));
    SYST_RVR = 0xFFFFFFu;
    SYST_CVR = 0;
    SYST_CSR = 7u; /* the processor's clock, an interrupt at 0, run */
    semihosting_exit(main() == 0);
}

uint32_t board_stack_bytes(void) {
    const uint32_t *at = (const uint32_t *)(const void *)__stack_start;
    while (*at == STACK_PAINT) ++at;
    return (uint32_t)(__stack_end - (const uint8_t *)at);
}

/* --- faults --- */

/* All faults arrive here: none of the finer ones is enabled. The processor turns memory protection off meanwhile. */
__attribute__((used)) static void report_fault(const uint32_t *frame) {
    uint32_t cause = SCB_CFSR;
    semihosting_text("fault ");
    if (cause & 0x80u) { /* MMARVALID: an access that the memory protection forbids */
        uint32_t address = SCB_MMFAR;
        bool weights = address >= (uintptr_t)__weights_start && address < (uintptr_t)__weights_end;
        semihosting_text(weights ? "access to weights in flash at " : "access to forbidden memory at ");
        semihosting_hex(address);
    } else {
        semihosting_text("with cause ");
        semihosting_hex(cause);
    }
    semihosting_text(" by the instruction at ");
    semihosting_hex(frame[6]);
    semihosting_text("\n");
    semihosting_exit(false);
}

__attribute__((naked)) static void on_fault(void) { __asm__ volatile("mrs r0, msp\n b report_fault\n"); }

static void on_clock(void) { ++clock_rounds; }

/* The first is the stack pointer, the others are handlers: an array of functions would be the wrong type for one. */
typedef union {
    void *stack;
    void (*handler)(void);
} Vector;

__attribute__((section(".vectors"), used)) static const Vector vectors[16] = {
    {.stack = __stack_end},  {.handler = firmware_reset}, {.handler = on_fault}, {.handler = on_fault},
    {.handler = on_fault},   {.handler = on_fault},       {.handler = on_fault}, {.handler = on_fault},
    [11] = {.handler = on_fault}, [14] = {.handler = on_fault}, [15] = {.handler = on_clock},
};

/* --- memory protection --- */

typedef enum { READ_WRITE = 0u, READ_ONLY = 2u } Access;
enum { REGION_CODE, REGION_SRAM, REGION_MICROCODE, REGION_WEIGHTS };

static void barrier(void) { __asm__ volatile("dsb\n isb" ::: "memory"); }

static void region(uint32_t number, const uint8_t *start, const uint8_t *end, Access access, bool execute, bool enable) {
    MPU_RNR = number;
    MPU_RLAR = 0;
    if (!enable || start == end) return;
    MPU_RBAR = (uint32_t)(uintptr_t)start | (uint32_t)access << 1 | (execute ? 0u : 1u);
    MPU_RLAR = ((uint32_t)(uintptr_t)end - 32u) | 1u; /* attribute 0, enabled */
}

void board_open_weights(bool open) {
    region(REGION_WEIGHTS, __weights_start, __weights_end, READ_ONLY, false, open);
    barrier();
}

void board_protect(void) {
    MPU_MAIR0 = 0x44u; /* normal memory, not cached */
    region(REGION_CODE, __code_start, __code_end, READ_ONLY, true, true);
    region(REGION_SRAM, __sram_start, __sram_end, READ_WRITE, false, true);
    region(REGION_MICROCODE, __microcode_start, __microcode_end, READ_ONLY, false, true);
    region(REGION_WEIGHTS, __weights_start, __weights_end, READ_ONLY, false, true);
    /* Without PRIVDEFENA what no region covers is forbidden to everybody; ARMv8-M has no other way to forbid
     * reading to privileged code. */
    MPU_CTRL = 1u;
    barrier();
}

/* --- the clock --- */

uint64_t board_ticks(void) {
    uint32_t rounds, value;
    do { /* once more if the clock went round in between */
        rounds = clock_rounds;
        value = SYST_CVR;
    } while (rounds != clock_rounds || (SCB_ICSR & 1u << 26) != 0);
    return (uint64_t)rounds << 24 | (0xFFFFFFu - value);
}
