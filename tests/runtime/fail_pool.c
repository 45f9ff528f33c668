/* A pool of threads whose allocations and threads fail, each once and from there on: null, or a pool that runs all
 * parts all the same. Linked with --wrap for calloc and pthread_create. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "neutron_pool.h"

#define THREADS 4u
#define PARTS 97u

static unsigned asked, fail_at;

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) { return asked++ >= fail_at ? NULL : __real_calloc(count, bytes); }

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *argument) {
    return asked++ >= fail_at ? 11 : __real_pthread_create(thread, how, start, argument);
}

static atomic_uint seen[PARTS];

static void part(void *argument, uint32_t number) {
    (void)argument;
    atomic_fetch_add(&seen[number], 1);
}

int main(void) {
    unsigned none = 0, fewer = 0;
    for (fail_at = 0;; ++fail_at) {
        asked = 0;
        NeutronPool *pool = neutron_pool_create(THREADS);
        const unsigned failed = asked > fail_at;
        none += pool == NULL;
        fewer += pool != NULL && failed;
        if (pool == NULL && !failed) return 1;
        const NeutronThreads *threads = neutron_pool_threads(pool);
        for (unsigned round = 1; threads != NULL && round <= 50; ++round) {
            threads->run(threads->context, PARTS, part, NULL);
            for (unsigned i = 0; i < PARTS; ++i) {
                if (atomic_exchange(&seen[i], 0) != 1) return 2;
            }
        }
        neutron_pool_destroy(pool);
        if (!failed) break;
    }
    printf("%u without a pool, %u with fewer threads\n", none, fewer);
    return 0;
}
