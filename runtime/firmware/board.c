/* Start-up, faults, memory protection and the clock of a Cortex-M33 or M55 (ARMv8-M main line). */
#include "board.h"

#include <stddef.h>
#include <string.h>

#include "semihosting.h"

extern uint8_t __stack_start[], __stack_end[], __data_start[], __data_end[], __data_load[], __bss_start[], __bss_end[];
extern uint8_t __vectors_start[], __vectors_end[], __code_start[], __code_end[], __flash_start[], __flash_end[];
extern uint8_t __sram_start[], __sram_end[];
extern void (*const __init_array_start[])(void), (*const __init_array_end[])(void);

int main(void);
void firmware_reset(void);

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SCB_CFSR REGISTER(0xE000ED28u)
#define SCB_MMFAR REGISTER(0xE000ED34u)
#define MPU_CTRL REGISTER(0xE000ED94u)
#define MPU_RNR REGISTER(0xE000ED98u)
#define MPU_RBAR REGISTER(0xE000ED9Cu)
#define MPU_RLAR REGISTER(0xE000EDA0u)
#define MPU_MAIR0 REGISTER(0xE000EDC0u)

#define STACK_PAINT 0xA5A5A5A5u
#define MMARVALID (1u << 7)
#define MSTKERR (1u << 4)

static uint32_t closed_start, closed_end; /* the piece of the flash that is closed */

/* --- the clock: one that needs no interrupt, so that the stack's use is the application's alone --- */

#ifdef __ARM_FEATURE_MVE /* mps3-an547: the 64-bit counter of the subsystem, at 32 MHz, and a timer's view of it */
#define CLOCK_START 0x58000000u
#define CLOCK_END 0x58101000u
#define TICKS_PER_MICROSECOND 32u

static void start_clock(void) { REGISTER(0x58100000u) = 1u; }

uint64_t board_ticks(void) {
    uint32_t high, low;
    do { /* once more if the lower half went round in between */
        high = REGISTER(CLOCK_START + 4u);
        low = REGISTER(CLOCK_START);
    } while (high != REGISTER(CLOCK_START + 4u));
    return (uint64_t)high << 32 | low;
}
#else /* mps2-an505: a timer that counts down from 2^32 at 20 MHz; it is read more often than it goes round */
#define CLOCK_START 0x50000000u
#define CLOCK_END 0x50001000u
#define TICKS_PER_MICROSECOND 20u

static uint32_t clock_rounds, clock_before;

static void start_clock(void) {
    REGISTER(CLOCK_START + 8u) = REGISTER(CLOCK_START + 4u) = 0xFFFFFFFFu; /* reload, value */
    REGISTER(CLOCK_START) = 1u;
}

uint64_t board_ticks(void) {
    uint32_t now = 0xFFFFFFFFu - REGISTER(CLOCK_START + 4u);
    clock_rounds += now < clock_before;
    clock_before = now;
    return (uint64_t)clock_rounds << 32 | now;
}
#endif

uint32_t board_ticks_per_microsecond(void) { return TICKS_PER_MICROSECOND; }

/* --- start-up --- */

__attribute__((used, noinline)) static void start(void) {
    /* Paint the stack below this frame, to see later how deep it went. */
    volatile uint32_t *here = (volatile uint32_t *)__builtin_frame_address(0) - 16;
    for (volatile uint32_t *at = (volatile uint32_t *)(void *)__stack_start; at < here; ++at) *at = STACK_PAINT;
    memcpy(__data_start, __data_load, (size_t)(__data_end - __data_start));
    memset(__bss_start, 0, (size_t)(__bss_end - __bss_start));
    start_clock();
    for (void (*const *at)(void) = __init_array_start; at != __init_array_end; ++at) (*at)();
    semihosting_exit(main() == 0);
}

/* The FPU (on a Cortex-M55 MVE too) comes before all C code: the compiler uses its registers to move memory. */
__attribute__((naked)) void firmware_reset(void) {
    __asm__ volatile(
        "ldr r0, =0xE000ED88\n ldr r1, [r0]\n orr r1, r1, #(0xF << 20)\n str r1, [r0]\n dsb\n isb\n"
        "b start\n");
}

uint32_t board_stack_bytes(void) {
    const uint32_t *at = (const uint32_t *)(const void *)__stack_start;
    while (at < (const uint32_t *)(const void *)__stack_end && *at == STACK_PAINT) ++at;
    return (uint32_t)(__stack_end - (const uint8_t *)at);
}

/* --- faults --- */

/* All faults arrive here: none of the finer ones is enabled. The processor turns memory protection off meanwhile. */
__attribute__((used)) static void report_fault(const uint32_t *frame) {
    uint32_t cause = SCB_CFSR;
    semihosting_text("fault ");
    uint32_t address = SCB_MMFAR;
    bool known = (cause & MMARVALID) != 0; /* an access that the memory protection forbids */
    if (known && address >= closed_start && address < closed_end) {
        semihosting_text("access to weights in flash at ");
        semihosting_hex(address);
    } else if ((cause & MSTKERR) || (known && (uint32_t)(uintptr_t)__stack_start - address - 1u < 65536u)) {
        semihosting_text("the stack overflows: NEUTRON_STACK_BYTES is too small"); /* it is lowest in the SRAM */
    } else if (known) {
        semihosting_text("access to forbidden memory at ");
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

/* The stack may have no room left: report from its top, where nothing is needed any more but the frame. */
__attribute__((naked)) static void on_fault(void) {
    __asm__ volatile(
        "mrs r0, msp\n ldr r1, =__stack_end\n sub r2, r1, r0\n cmp r2, #1024\n it hi\n"
        "movhi sp, r1\n b report_fault\n");
}

/* The first is the stack pointer, the others are handlers: an array of functions would be the wrong type for one. */
typedef union {
    void *stack;
    void (*handler)(void);
} Vector;

__attribute__((section(".vectors"), used)) static const Vector vectors[16] = {
    {.stack = __stack_end},       {.handler = firmware_reset},  {.handler = on_fault}, {.handler = on_fault},
    {.handler = on_fault},        {.handler = on_fault},        {.handler = on_fault}, {.handler = on_fault},
    [11] = {.handler = on_fault}, [14] = {.handler = on_fault},
};

/* --- memory protection --- */

typedef enum { READ_WRITE = 0u, READ_ONLY = 2u } Access;
enum { REGION_VECTORS, REGION_CODE, REGION_SRAM, REGION_FLASH, REGION_FLASH_BEHIND, REGION_CLOCK, REGION_DEVICE };

static void barrier(void) { __asm__ volatile("dsb\n isb" ::: "memory"); }

static void region(uint32_t number, uint32_t start, uint32_t end, Access access, bool execute) {
    MPU_RNR = number;
    MPU_RLAR = 0;
    if (start >= end) return;
    MPU_RBAR = start | (uint32_t)access << 1 | (execute ? 0u : 1u);
    MPU_RLAR = (end - 32u) | 1u; /* attribute 0, enabled */
}

static uint32_t at(const uint8_t *address) { return (uint32_t)(uintptr_t)address; }

/* Regions must not overlap: the flash is the piece before what is closed and the piece behind. */
static void protect_flash(void) {
    region(REGION_FLASH, at(__flash_start), closed_start, READ_ONLY, false);
    region(REGION_FLASH_BEHIND, closed_end, at(__flash_end), READ_ONLY, false);
    barrier();
}

void board_close_flash(const void *start, uint32_t bytes) {
    uint32_t first = ((uint32_t)(uintptr_t)start + 31u) & ~31u, last = ((uint32_t)(uintptr_t)start + bytes) & ~31u;
    if (first >= last || first < at(__flash_start) || last > at(__flash_end)) return;
    closed_start = first;
    closed_end = last;
    protect_flash();
}

void board_open_flash(void) {
    closed_start = closed_end = at(__flash_end);
    protect_flash();
}

void board_write_flash(bool allowed) {
    board_open_flash();
    region(REGION_FLASH, at(__flash_start), at(__flash_end), allowed ? READ_WRITE : READ_ONLY, false);
    barrier();
}

void board_allow_device(uint32_t start, uint32_t end) {
    region(REGION_DEVICE, start, end, READ_WRITE, false);
    barrier();
}

void board_protect(void) {
    MPU_MAIR0 = 0x44u; /* normal memory, not cached */
    region(REGION_VECTORS, at(__vectors_start), at(__vectors_end), READ_ONLY, true);
    region(REGION_CODE, at(__code_start), at(__code_end), READ_ONLY, true);
    region(REGION_SRAM, at(__sram_start), at(__sram_end), READ_WRITE, false);
    region(REGION_CLOCK, CLOCK_START, CLOCK_END, READ_WRITE, false);
    board_open_flash();
    /* Without PRIVDEFENA what no region covers is forbidden to everybody; ARMv8-M has no other way to forbid
     * reading to privileged code. */
    MPU_CTRL = 1u;
    barrier();
}
