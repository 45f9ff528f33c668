/* Threads that walk through a program together.
 *
 * Layers take microseconds, and a word written by one core takes a good part of one to arrive at another. So nobody
 * hands out work: every thread goes through all calls, finds the same parts, and takes the one of its own number;
 * all that threads tell each other is which parts they have done. What a thread has not even begun when the others
 * wait for it, another takes: a thread that sleeps, or never comes, costs its work and no more.
 *
 * Others wait only for parts that somebody has taken, and a thread never leaves with a part that it has taken and not
 * done: it keeps a list of them (`held`), and whatever makes it leave, the list is worked off. So nobody waits for ever.
 *
 * Calls that are not worth being split, one behind the other, are one piece of work for whoever takes the first.
 */
#include "parallel.h"

#ifdef NEUTRON_THREADED

#include <stdatomic.h>

#include "split.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() __asm__ volatile("yield")
#endif

#define MAX_PARTS 64u
#define LINE 128u    /* bytes that caches move together */
#define PATIENCE 64u /* pauses before a part that is not done is looked at: a microsecond or two */
#define SPINS 4000u  /* and before other programs are let run */

/* One part of every piece of work. The first word is written by who takes it, nearly always the same thread, and read
 * by others only when they lose patience; they wait for the second. */
typedef struct {
    _Alignas(LINE) atomic_ullong taken; /* the number of the last piece of work of which this part is taken, */
    _Alignas(LINE) atomic_ullong done;  /* or done */
} Part;

typedef struct {
    const NeutronMachine *machine;
    NeutronWalk *walk;
    atomic_int status;  /* of the first part that failed */
    atomic_uint joined; /* threads that have come */
    Part parts[MAX_PARTS];
} Team;

struct NeutronMember {
    Team *team;
    uint32_t number; /* the parts of its own */
    uint32_t before; /* parts of the last piece of work */
    bool alone;      /* the others seem to be away: no use waiting */
    enum { SHARED, MINE, THEIRS } last;
    uint64_t held;           /* the parts of the present piece of work that it has taken and not done, a bit each */
    unsigned long long work; /* the number of the last piece of work, from 1 */
};

static bool is_reached(const atomic_ullong *word, unsigned long long number) {
    return atomic_load_explicit(word, memory_order_acquire) >= number;
}

static void rest(const NeutronMachine *machine, uint32_t times) {
    if (times < SPINS || machine->threads->yield == NULL) PAUSE();
    else machine->threads->yield();
}

/* Take a part, when all of the piece of work before are done. */
static bool take(const NeutronMachine *machine, struct NeutronMember *m, uint32_t part) {
    Part *parts = m->team->parts;
    atomic_ullong *taken = &parts[part].taken;
    unsigned long long found = atomic_load_explicit(taken, memory_order_relaxed);
    if (found >= m->work) return false;
    for (uint32_t i = 0; i < m->before; ++i) {
        for (uint32_t times = 0; !is_reached(&parts[i].done, m->work - 1u); ++times) rest(machine, times);
    }
    const bool mine =
        atomic_compare_exchange_strong_explicit(taken, &found, m->work, memory_order_relaxed, memory_order_relaxed);
    if (mine) m->held |= UINT64_C(1) << part;
    return mine;
}

/* Take a part of another's if nobody has for a while. */
static bool take_over(const NeutronMachine *machine, struct NeutronMember *m, uint32_t part) {
    const Part *p = &m->team->parts[part];
    for (uint32_t i = 0; i < PATIENCE && !m->alone; ++i) {
        if (is_reached(&p->done, m->work)) return false;
        PAUSE();
    }
    m->alone = take(machine, m, part);
    return m->alone;
}

/* The status of the first that fails is the run's. */
static void note(Team *team, int32_t status) {
    int none = NEUTRON_STATUS_OK;
    if (status != NEUTRON_STATUS_OK) {
        atomic_compare_exchange_strong_explicit(&team->status, &none, status, memory_order_relaxed,
                                                memory_order_relaxed);
    }
}

/* A part that was taken is done, or has failed. */
static void finish(struct NeutronMember *m, uint32_t part, int32_t status) {
    note(m->team, status);
    m->held &= ~(UINT64_C(1) << part);
    atomic_store_explicit(&m->team->parts[part].done, m->work, memory_order_release);
}

static void finish_all(struct NeutronMember *m, int32_t status) {
    for (uint32_t part = 0; m->held != 0; ++part) {
        if (m->held >> part & 1u) finish(m, part, status);
    }
}

/* The next piece of work. */
static void go_on(struct NeutronMember *m, uint32_t parts_before) {
    m->before = parts_before;
    ++m->work;
}

/* A call that stays whole: the first of several is taken, or left, with all that follow. */
static int32_t call_whole(const NeutronMachine *machine, struct NeutronMember *m, uint32_t kind,
                          const void *parameters) {
    if (m->last == SHARED) {
        const bool mine = m->number == 0 ? take(machine, m, 0) : take_over(machine, m, 0);
        m->last = mine ? MINE : THEIRS;
    }
    return m->last == MINE ? neutronKernels[kind](machine, parameters) : NEUTRON_STATUS_OK;
}

static int32_t call_together(const NeutronMachine *machine, struct NeutronMember *m, uint32_t kind,
                             const void *parameters) {
    if (kind == NEUTRON_KERNEL_CASCADE || kind == NEUTRON_KERNEL_LOOP) { /* has calls of its own */
        return neutronKernels[kind](machine, parameters);
    }
    NEUTRON_TRY(atomic_load_explicit(&m->team->status, memory_order_relaxed));
    const uint32_t count = machine->threads->count;
    const NeutronSplit split = neutron_split(kind, parameters, count < MAX_PARTS ? count : MAX_PARTS);
    if (split.parts < 2) return call_whole(machine, m, kind, parameters);
    if (m->last != SHARED) {
        finish_all(m, NEUTRON_STATUS_OK);
        m->last = SHARED;
        go_on(m, 1);
    }
    uint32_t part = m->number % split.parts, taken = 0;
    if (m->alone && atomic_load_explicit(&m->team->joined, memory_order_relaxed) == 1) { /* nobody has come yet */
        while (taken < split.parts && take(machine, m, (part + taken) % split.parts)) ++taken;
    }
    if (taken == split.parts) {
        const int32_t status = neutronKernels[kind](machine, parameters);
        finish_all(m, status);
        go_on(m, split.parts);
        return status;
    }
    for (uint32_t i = 0; i < split.parts; ++i, part = (part + 1u) % split.parts) {
        const bool mine = i < taken || (part == m->number ? take(machine, m, part) : take_over(machine, m, part));
        if (!mine) continue;
        const int32_t status = neutron_run_part(&split, machine, parameters, part);
        finish(m, part, status);
        NEUTRON_TRY(status);
    }
    go_on(m, split.parts);
    return NEUTRON_STATUS_OK;
}

static void walk_as_member(void *argument, uint32_t part) {
    Team *team = (Team *)argument;
    atomic_fetch_add_explicit(&team->joined, 1, memory_order_relaxed);
    struct NeutronMember member = {.team = team, .number = part, .work = 1};
    NeutronMachine machine = *team->machine;
    machine.member = &member;
    const int32_t status = team->walk(&machine);
    note(team, status); /* it may hold nothing, and have left all the same: a run that was stopped */
    finish_all(&member, status);
}

int32_t neutron_walk_together(const NeutronMachine *machine, NeutronWalk *walk) {
    const NeutronThreads *threads = machine->threads;
    const uint32_t count = threads->count < MAX_PARTS ? threads->count : MAX_PARTS;
    Team team;
    team.machine = machine;
    team.walk = walk;
    atomic_init(&team.status, NEUTRON_STATUS_OK);
    atomic_init(&team.joined, 0);
    for (uint32_t i = 0; i < count; ++i) {
        atomic_init(&team.parts[i].taken, 0);
        atomic_init(&team.parts[i].done, 0);
    }
    threads->run(threads->context, count, walk_as_member, &team);
    return atomic_load_explicit(&team.status, memory_order_relaxed);
}

/* --- a single call --- */

typedef struct {
    const NeutronMachine *machine;
    const void *parameters;
    NeutronSplit split;
    int32_t status[MAX_PARTS];
} Call;

static void run_part(void *argument, uint32_t part) {
    Call *call = (Call *)argument;
    call->status[part] = neutron_run_part(&call->split, call->machine, call->parameters, part);
}

int32_t neutron_call(const NeutronMachine *machine, uint32_t kind, const void *parameters) {
    const NeutronThreads *threads = machine->threads;
    NEUTRON_TRY(neutron_check_stop(machine));
    if (threads == NULL || threads->count < 2) return neutronKernels[kind](machine, parameters);
    if (machine->member != NULL) return call_together(machine, machine->member, kind, parameters);
    /* Hooks are the calling thread's, and want to know when a call begins and ends. */
    Call call = {.machine = machine, .parameters = parameters};
    call.split = neutron_split(kind, parameters, threads->count < MAX_PARTS ? threads->count : MAX_PARTS);
    if (call.split.parts < 2) return neutronKernels[kind](machine, parameters);
    threads->run(threads->context, call.split.parts, run_part, &call);
    for (uint32_t i = 0; i < call.split.parts; ++i) NEUTRON_TRY(call.status[i]);
    return NEUTRON_STATUS_OK;
}

#endif
