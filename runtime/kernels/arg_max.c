/* ARG_MAX: index of the first largest (or smallest) int8 along the middle axis of a dense [outer][axis][inner];
 * int32 or int64 indices, dense [outer][inner]. */
#include "kernel.h"

static int32_t check(const NeutronMachine *machine, const NeutronArgMaxParams *p) {
    uint64_t results = (uint64_t)p->outer * p->inner;
    NEUTRON_REQUIRE((p->index_bytes == 4 || p->index_bytes == 8) && results <= UINT32_MAX);
    NEUTRON_TRY(neutron_check_bytes(machine, p->input, results * p->axis, 1, NEUTRON_READ));
    neutron_count(machine, neutron_times(results, p->axis), NEUTRON_ELEMENT_WORK);
    return neutron_check_bytes(machine, p->output, results * p->index_bytes, p->index_bytes, NEUTRON_WRITE);
}

static int32_t run(const NeutronMachine *machine, const NeutronArgMaxParams *p) {
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input);
    uint8_t *out = neutron_write(machine, p->output);
    for (uint32_t o = 0; o < p->outer; ++o, input += (size_t)p->axis * p->inner) {
        for (uint32_t i = 0; i < p->inner; ++i, out += p->index_bytes) {
            const int8_t *in = input + i;
            int8_t best = *in;
            uint32_t where = 0;
            for (uint32_t a = 1; a < p->axis; ++a) {
                int8_t value = in[(size_t)a * p->inner];
                if (p->minimum ? value < best : value > best) {
                    best = value;
                    where = a;
                }
            }
            uint64_t wide = where;
            memcpy(out, &wide, p->index_bytes); /* little endian, as the whole format */
        }
    }
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_arg_max, NeutronArgMaxParams, check, run)
