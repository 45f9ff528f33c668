/* WEAVE: runs of bytes ordered by plane and row become ordered by row and plane, in place.
 *
 * The permutation is followed cycle by cycle, a piece of each run at a time; a bit for each run says that it is done.
 */
#include "kernel.h"

#define PIECE_BYTES 256u

static int32_t check(const NeutronMachine *machine, const NeutronWeaveParams *p) {
    NEUTRON_REQUIRE(p->data.rows == 0);
    neutron_count(machine, (uint64_t)p->planes * p->rows, (uint64_t)p->length + NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->data, (uint64_t)p->planes * p->rows * p->length, 1, NEUTRON_WRITE);
}

static void weave(const NeutronWeaveParams *p, uint8_t *data, uint32_t bytes) {
    uint8_t kept[PIECE_BYTES], done[NEUTRON_WEAVE_MOST_RUNS / 8u] = {0};
    const size_t length = p->length;
    for (uint32_t first = 0; first < p->planes * p->rows; ++first) {
        if (((uint32_t)done[first / 8u] >> first % 8u & 1u) != 0) continue;
        memcpy(kept, data + first * length, bytes);
        uint32_t to = first;
        for (;;) {
            done[to / 8u] |= (uint8_t)(1u << to % 8u);
            uint32_t from = to % p->planes * p->rows + to / p->planes;
            if (from == first) break;
            memcpy(data + to * length, data + from * length, bytes);
            to = from;
        }
        memcpy(data + to * length, kept, bytes);
    }
}

static int32_t run(const NeutronMachine *machine, const NeutronWeaveParams *p) {
    uint8_t *data = neutron_write(machine, p->data);
    for (uint32_t at = 0; at < p->length; at += PIECE_BYTES) {
        weave(p, data + at, p->length - at < PIECE_BYTES ? p->length - at : PIECE_BYTES);
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_weave, NeutronWeaveParams, check, run)
