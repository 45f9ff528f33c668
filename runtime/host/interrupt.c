/* A language's own handler only notes the signal, and acts on it when the run has returned: too late for a long one. */
#define _POSIX_C_SOURCE 200809L /* sigaction */

#include "neutron_interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

static volatile uint32_t interrupted;
static atomic_int watching;
static struct sigaction before;

static void on_interrupt(int number, siginfo_t *info, void *context) {
    __atomic_store_n(&interrupted, 1u, __ATOMIC_RELAXED);
    if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
    else before.sa_handler(number);
}

const volatile uint32_t *neutron_watch_interrupts(void) {
    struct sigaction now;
    __atomic_store_n(&interrupted, 0u, __ATOMIC_RELAXED);
    if (atomic_exchange(&watching, 1) != 0 || sigaction(SIGINT, NULL, &before) != 0) return &interrupted;
    if (!(before.sa_flags & SA_SIGINFO) && (before.sa_handler == SIG_IGN || before.sa_handler == SIG_DFL)) {
        return &interrupted;
    }
    memset(&now, 0, sizeof now);
    now.sa_sigaction = on_interrupt;
    now.sa_mask = before.sa_mask;
    now.sa_flags = before.sa_flags | SA_SIGINFO;
    (void)sigaction(SIGINT, &now, NULL);
    return &interrupted;
}

void neutron_unwatch_interrupts(void) {
    struct sigaction now;
    if (atomic_load(&watching) == 0) return;
    if (sigaction(SIGINT, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_interrupt) {
        (void)sigaction(SIGINT, &before, NULL); /* unless somebody has put another in its place */
    }
    atomic_store(&watching, 0);
}
