/* Chooses the inner parts this CPU can run. The answer is asked for at every call: it costs a few cycles, and
 * remembering it would need a writable global. */
#include "x86.h"

/* Tests build with NEUTRON_NO_VNNI to reach the AVX2 product on a CPU that has both. */
static int has_vnni(void) {
#ifdef NEUTRON_NO_VNNI
    return 0;
#else
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
#endif
}

void neutron_gemm(const NeutronGemm *g) {
    if (has_vnni()) {
        neutron_gemm_vnni(g);
    } else if (__builtin_cpu_supports("avx2")) {
        neutron_gemm_avx2(g);
    } else {
        neutron_gemm_portable(g);
    }
}

void neutron_depthwise(const NeutronDepthwise *d) {
    if (__builtin_cpu_supports("avx2")) {
        neutron_depthwise_avx2(d);
    } else {
        neutron_depthwise_portable(d);
    }
}

void neutron_add_row(const void *parameters, const NeutronRow *row) {
    if (__builtin_cpu_supports("avx2")) {
        neutron_add_row_avx2(parameters, row);
    } else {
        neutron_add_row_portable(parameters, row);
    }
}
