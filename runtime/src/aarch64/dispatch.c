/* Chooses the inner parts this CPU can run. The answer is asked for at every call: it costs a few cycles, and
 * remembering it would need a writable global. */
#include "neon.h"

#ifdef __linux__
#include <sys/auxv.h>
#endif

static int has_dot_products(void) {
#if defined(__APPLE__) || defined(__ARM_FEATURE_DOTPROD) /* every Mac with an Arm core has them */
    return 1;
#elif defined(__linux__)
    const unsigned long dot_products = 1ul << 20; /* HWCAP_ASIMDDP */
    return (getauxval(AT_HWCAP) & dot_products) != 0;
#else
    return 0;
#endif
}

const NeutronProductCode *neutron_product_code(void) {
    return has_dot_products() ? &neutron_product_dot : &neutron_product_neon;
}

void neutron_depthwise(const NeutronDepthwise *d) { neutron_depthwise_neon(d); }

void neutron_add_row(const void *parameters, const NeutronRow *row) { neutron_add_row_neon(parameters, row); }

void neutron_table_rows(const NeutronTableRows *t) { neutron_table_rows_neon(t); }
