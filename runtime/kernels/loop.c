/* LOOP: the calls behind it, its body, run again and again on addresses that move on.
 *
 * Each time a call runs as a copy in which only the addresses that move differ. They move by the same distance each
 * time, so that whatever holds for the first, the second and the last time (bounds of regions, alignment) holds for
 * all: the check phase goes through those. Constants stay where they are.
 */
#include <stddef.h>

#include "kernel.h"
#include "parallel.h"

/* A record of the body, first word included: an ISLAND with its code is the largest. */
typedef union {
    uint32_t word;
    uint8_t bytes[4 + sizeof(NeutronCallCopy) + NEUTRON_ISLAND_CODE * sizeof(NeutronInstruction)];
} Record;

static uint32_t word_at(const uint8_t *record) { return *(const uint32_t *)(const void *)record; }

/* Whether a record of this kind has an address at this byte of its parameters. */
static bool is_address(uint32_t kind, uint32_t at) {
    switch (kind << 16 | at) {
#define ADDRESS(kind, Type, member) case (uint32_t)NEUTRON_KERNEL_##kind << 16 | (uint32_t)offsetof(Type, member):
        NEUTRON_FOR_EACH_ADDRESS(ADDRESS)
#undef ADDRESS
        return true;
        default: return false;
    }
}

static int32_t check_moves(uint32_t kind, const uint8_t *record, const NeutronMove *moves, uint32_t count,
                           uint32_t times) {
    for (uint32_t i = 0; i < count; ++i) {
        NEUTRON_REQUIRE(is_address(kind, moves[i].at) && (i == 0 || moves[i - 1].at < moves[i].at));
        const NeutronRef *ref = (const NeutronRef *)(const void *)(record + 4 + moves[i].at);
        NEUTRON_REQUIRE(ref->region != NEUTRON_REGION_WEIGHTS && ref->region != NEUTRON_REGION_PREFETCH);
        int64_t last = (int64_t)ref->offset + (int64_t)(times - 1u) * moves[i].stride;
        if (last < 0 || last > (int64_t)UINT32_MAX) return NEUTRON_STATUS_BOUNDS;
    }
    return NEUTRON_STATUS_OK;
}

/* The records are all there and of kernels that can be repeated; every move has its address in one of them. */
static int32_t check_body(const NeutronMachine *machine, const NeutronLoopParams *p, const NeutronMove *moves) {
    const NeutronHeader *h = machine->header;
    const uint8_t *record = (const uint8_t *)(moves + p->count), *end = (const uint8_t *)h + h->microcode_bytes;
    uint32_t first = 0;
    for (uint32_t i = 0; i < p->body; ++i) {
        if (end - record < 4) return NEUTRON_STATUS_CALL;
        uint32_t kind = word_at(record) & 0xFFFFu, size = word_at(record) >> 16, behind = first;
        NEUTRON_REQUIRE(kind < NEUTRON_KERNEL_KINDS && kind != NEUTRON_KERNEL_LOOP && kind != NEUTRON_KERNEL_CASCADE);
        if (!neutron_is_record(kind, size) || size > sizeof(Record) || end - record < (ptrdiff_t)size) {
            return NEUTRON_STATUS_CALL;
        }
        if (neutronKernels[kind] == NULL) return NEUTRON_STATUS_KERNEL_MISSING;
        while (behind < p->count && moves[behind].call == i) ++behind;
        NEUTRON_TRY(check_moves(kind, record, moves + first, behind - first, p->times));
        first = behind;
        record += size;
    }
    NEUTRON_REQUIRE(first == p->count);
    return NEUTRON_STATUS_OK;
}

/* Go through the body for the time-th time; in the check phase check what would run. */
static int32_t go_through(const NeutronMachine *machine, const NeutronLoopParams *p, const NeutronMove *moves,
                          uint32_t time) {
    const NeutronHooks *hooks = machine->phase == NEUTRON_PHASE_RUN ? machine->hooks : NULL;
    const uint8_t *record = (const uint8_t *)(moves + p->count);
    const NeutronMove *move = moves, *end = moves + p->count;
    for (uint32_t i = 0; i < p->body; ++i) {
        uint32_t kind = word_at(record) & 0xFFFFu, size = word_at(record) >> 16, call = machine->call + 1u + i;
        const uint8_t *parameters = record + 4;
        Record copy;
        if (move < end && move->call == i && time > 0) {
            memcpy(copy.bytes, record, size);
            parameters = copy.bytes + 4;
            for (; move < end && move->call == i; ++move) {
                NeutronRef *ref = (NeutronRef *)(void *)(copy.bytes + 4 + move->at);
                ref->offset = (uint32_t)((int64_t)ref->offset + (int64_t)time * move->stride);
            }
        }
        if (hooks && hooks->trace) hooks->trace(hooks->context, call, kind, 1);
        NEUTRON_TRY(machine->phase == NEUTRON_PHASE_RUN ? neutron_call(machine, kind, parameters)
                                                        : neutronKernels[kind](machine, parameters));
        if (hooks && hooks->trace) hooks->trace(hooks->context, call, kind, 0);
        record += size;
    }
    return NEUTRON_STATUS_OK;
}

int32_t neutron_loop(const NeutronMachine *machine, const void *parameters) {
    const NeutronLoopParams *p = (const NeutronLoopParams *)parameters;
    const NeutronMove *moves = (const NeutronMove *)(const void *)(p + 1);
    if (machine->phase == NEUTRON_PHASE_CHECK) {
        uint32_t size = word_at((const uint8_t *)parameters - 4) >> 16; /* the driver knows that it is all there */
        static const uint8_t ranges[] = {NeutronLoopParams_RANGES};
        NEUTRON_REQUIRE(neutron_in_range(p, ranges));
        NEUTRON_REQUIRE(p->count == (size - neutron_record_bytes[NEUTRON_KERNEL_LOOP]) / sizeof(NeutronMove));
        NEUTRON_TRY(check_body(machine, p, moves));
        const uint64_t before = *machine->work;
        const uint32_t checked[3] = {0, p->times > 1u ? 1u : 0u, p->times - 1u};
        for (uint32_t i = 0; i < 3; ++i) {
            *machine->work = before; /* each time takes as long as the last */
            NEUTRON_TRY(go_through(machine, p, moves, checked[i]));
        }
        *machine->work = neutron_plus(before, neutron_times(*machine->work - before, p->times));
        return NEUTRON_STATUS_OK;
    }
    for (uint32_t time = 0; time < p->times; ++time) NEUTRON_TRY(go_through(machine, p, moves, time));
    return NEUTRON_STATUS_OK;
}
