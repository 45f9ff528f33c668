/* Chooses the inner parts this CPU can run. The answer is asked for at every call: it costs a few cycles, and
 * remembering it would need a writable global. */
#include "depthwise_rows.h"
#include "scale_doubles.h"
#include "table_rows.h"
#include "vector/product.h"
#include "x86.h"

/* Tests build with NEUTRON_NO_VNNI to reach the AVX2 product on a CPU that has more, and with NEUTRON_VNNI_256 to reach
 * that of AVX-VNNI. */
static int has_vnni(void) {
#if defined(NEUTRON_NO_VNNI) || defined(NEUTRON_VNNI_256)
    return 0;
#else
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
#endif
}

#ifndef NEUTRON_NO_AVX_VNNI /* the compiler does not know it */
static int has_avx_vnni(void) {
#if defined(NEUTRON_NO_VNNI)
    return 0;
#elif defined(NEUTRON_VNNI_256)
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
#else
    return __builtin_cpu_supports("avxvnni");
#endif
}
#endif

const NeutronProductCode *neutron_product_code(void) {
    if (has_vnni()) return &neutron_product_vnni;
#ifndef NEUTRON_NO_AVX_VNNI
    if (has_avx_vnni()) return &neutron_product_avx_vnni;
#endif
    return __builtin_cpu_supports("avx2") ? &neutron_product_avx2 : NULL;
}

void neutron_depthwise(const NeutronDepthwise *d) {
    if (__builtin_cpu_supports("avx2")) {
        neutron_depthwise_avx2(d);
    } else {
        neutron_depthwise_portable(d);
    }
}

int neutron_depthwise_rows(const NeutronMachine *machine, const NeutronDepthwiseConv2DParams *p) {
    const NeutronWindow *w = &p->window;
    int shape = w->kernel_h == 3 && w->kernel_w == 3 && w->dilation_h == 1 && w->dilation_w == 1 &&
                w->in_c == w->out_c && (w->stride_w == 1 || w->stride_w == 2);
    if (!shape || !has_vnni()) return 0;
    const int8_t *input = (const int8_t *)neutron_read(machine, p->input.ref);
    const int8_t *weights = (const int8_t *)neutron_read(machine, p->weights);
    const int32_t *channels = (const int32_t *)(const void *)neutron_read(machine, p->channels);
    int8_t *output = (int8_t *)neutron_write(machine, p->output.ref);
    if (!neutron_depthwise_narrow_vnni(p, input, weights, channels, output)) {
        neutron_depthwise_rows_vnni(p, input, weights, channels, output);
    }
    return 1;
}

uint32_t neutron_scale_doubles(const int32_t *sums, const double *scales, uint32_t count, int32_t zero, int32_t low,
                               int32_t high, int8_t *out) {
    return has_vnni() ? neutron_scale_doubles_avx512(sums, scales, count, zero, low, high, out) : 0u;
}

void neutron_add_row(const void *parameters, const NeutronRow *row) {
    if (has_vnni()) {
        neutron_add_row_avx512(parameters, row);
    } else if (__builtin_cpu_supports("avx2")) {
        neutron_add_row_avx2(parameters, row);
    } else {
        neutron_add_row_portable(parameters, row);
    }
}

void neutron_table_rows(const NeutronTableRows *t) {
    if (has_vnni() && __builtin_cpu_supports("avx512vbmi")) {
        neutron_table_rows_vbmi(t);
    } else if (__builtin_cpu_supports("avx2")) {
        neutron_table_rows_avx2(t);
    } else {
        neutron_table_rows_portable(t);
    }
}
