/* Ctrl-C for runs on a host: the signal sets the word that ends a run (NeutronRun.stop). */
#ifndef NEUTRON_INTERRUPT_H
#define NEUTRON_INTERRUPT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on SIGINT also sets the word that is returned, which is 0 now; the handler that was there is called, too. For
 * one thread at a time, which ends it with neutron_unwatch_interrupts. Where the signal is ignored, or ends the
 * process, it still does. */
const volatile uint32_t *neutron_watch_interrupts(void);

/* Put the handler back. */
void neutron_unwatch_interrupts(void);

#ifdef __cplusplus
}
#endif

#endif
