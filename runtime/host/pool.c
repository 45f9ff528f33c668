/* Threads that wait for parts of a kernel call. Calls follow one another within microseconds, so a thread first spins
 * for the next one; when none comes it sleeps. */
#include "neutron_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() (void)0
#endif

#define SPINS 4000u /* pauses, some dozens of microseconds, before a thread sleeps or lets others run */

#define MOST_SHARES 32u /* bits of half a ticket */

typedef struct {
    NeutronPool *pool;
    pthread_t thread;
    uint32_t number; /* from 1; the caller is 0 */
} Worker;

struct NeutronPool {
    NeutronThreads threads;
    Worker *workers; /* count - 1 of them: the caller works, too */
    uint32_t started;
    unsigned process; /* how often the process had forked: a child has the memory, but not the threads */
    atomic_flag busy;
    /* Which piece of work it is (upper half) and which shares of it are taken, a bit each (lower half; those that do
     * not exist are). Whoever sets a bit has the share, and knows that what was read of the work before belongs to it.
     */
    atomic_ullong ticket;
    atomic_uint parts, done;
    _Atomic(NeutronTask) task;
    _Atomic(void *) argument;
    atomic_uint sleepers;
    atomic_int stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

static atomic_uint forks;
static pthread_once_t watching = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add(&forks, 1); }

static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, count_fork); }

/* The first share from `number` on that nobody has taken; there is one. */
static uint32_t choose(uint32_t taken, uint32_t number, uint32_t shares) {
    uint32_t share = number % shares;
    while (taken >> share & 1u) share = share + 1u < shares ? share + 1u : 0u;
    return share;
}

/* Take shares of the present work until there are none; returns the work's number. A thread begins with the share of
 * its own number: what it wrote in the call before, and reads in this one, is in its cache. */
static unsigned long long take_shares(NeutronPool *pool, uint32_t number) {
    for (;;) {
        unsigned long long ticket = atomic_load(&pool->ticket);
        const uint32_t taken = (uint32_t)ticket;
        if (taken == UINT32_MAX) return ticket >> 32;
        const NeutronTask task = atomic_load_explicit(&pool->task, memory_order_relaxed);
        void *argument = atomic_load_explicit(&pool->argument, memory_order_relaxed);
        const uint32_t parts = atomic_load_explicit(&pool->parts, memory_order_relaxed);
        const uint32_t shares = parts < MOST_SHARES ? parts : MOST_SHARES, share = choose(taken, number, shares);
        if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket | 1ull << share)) continue;
        for (uint32_t part = share; part < parts; part += shares) task(argument, part);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
    }
}

static void wait_for_work(NeutronPool *pool, unsigned long long seen) {
    for (uint32_t i = 0; i < SPINS; ++i) {
        if (atomic_load(&pool->ticket) >> 32 != seen) return;
        PAUSE();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->ticket) >> 32 == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *work(void *argument) {
    const Worker *worker = (const Worker *)argument;
    while (!atomic_load(&worker->pool->stop)) wait_for_work(worker->pool, take_shares(worker->pool, worker->number));
    return NULL;
}

/* Publish a piece of work. No share of the one before is left, so that no thread can take what is changed here. */
static void begin(NeutronPool *pool, uint32_t parts, NeutronTask task, void *argument) {
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->parts, parts, memory_order_relaxed);
    atomic_store_explicit(&pool->task, task, memory_order_relaxed);
    atomic_store_explicit(&pool->argument, argument, memory_order_relaxed);
    unsigned long long number = (atomic_load(&pool->ticket) >> 32) + 1u;
    const uint32_t absent = parts < MOST_SHARES ? ~((UINT32_C(1) << parts) - 1u) : 0u;
    atomic_store(&pool->ticket, number << 32 | absent);
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void run(void *context, uint32_t parts, NeutronTask task, void *argument) {
    NeutronPool *pool = (NeutronPool *)context;
    if (atomic_load_explicit(&forks, memory_order_relaxed) != pool->process ||
        atomic_flag_test_and_set_explicit(&pool->busy, memory_order_acquire)) {
        for (uint32_t i = 0; i < parts; ++i) task(argument, i);
        return;
    }
    const uint32_t shares = parts < MOST_SHARES ? parts : MOST_SHARES;
    begin(pool, parts, task, argument);
    take_shares(pool, 0);
    for (uint32_t i = 0; atomic_load_explicit(&pool->done, memory_order_acquire) != shares; ++i) {
        if (i < SPINS) PAUSE();
        else sched_yield();
    }
    atomic_flag_clear_explicit(&pool->busy, memory_order_release);
}

static void yield(void) { (void)sched_yield(); }

NeutronPool *neutron_pool_create(uint32_t count) {
    if (count == 0) return NULL;
    NeutronPool *pool = (NeutronPool *)calloc(1, sizeof *pool);
    Worker *workers = (Worker *)calloc(count, sizeof *workers);
    if (pool == NULL || workers == NULL) {
        free(pool);
        free(workers);
        return NULL;
    }
    pthread_once(&watching, watch_forks);
    pool->process = atomic_load(&forks);
    pool->workers = workers;
    atomic_store(&pool->ticket, UINT32_MAX); /* nothing to take */
    pool->threads = (NeutronThreads){.context = pool, .count = count, .run = run, .yield = yield};
    atomic_flag_clear(&pool->busy);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (uint32_t i = 0; i + 1u < count; ++i) {
        workers[i].pool = pool;
        workers[i].number = i + 1u;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) break; /* fewer will do */
        ++pool->started;
    }
    return pool;
}

const NeutronThreads *neutron_pool_threads(const NeutronPool *pool) { return pool ? &pool->threads : NULL; }

void neutron_pool_destroy(NeutronPool *pool) {
    if (pool == NULL) return;
    if (atomic_load(&forks) == pool->process) {
        atomic_store(&pool->stop, 1);
        begin(pool, 0, NULL, NULL);
        for (uint32_t i = 0; i < pool->started; ++i) pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->workers);
    free(pool);
}
