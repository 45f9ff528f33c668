/* The matrix product through the implementation this CPU can run. */
#include "product.h"

static void through(const NeutronProductCode *code, const NeutronGemm *g) {
    int32_t start[NEUTRON_PRODUCT_CHANNELS];
    NeutronProduct p = {.g = *g, .parts = &g->a, .part_count = 1, .part_bytes = g->k};
    if (g->m >= NEUTRON_FEW_ROWS) p.start = start;
    size_t channel_bytes = neutron_groups(g->k) * NEUTRON_GROUP;
    for (uint32_t j = 0; j < g->n; j += p.g.n) {
        p.g.n = g->n - j < NEUTRON_PRODUCT_CHANNELS ? g->n - j : NEUTRON_PRODUCT_CHANNELS;
        p.g.weights = g->weights + j * channel_bytes;
        p.g.bias = g->bias + j;
        if (g->raw == NULL) {
            p.g.multiplier = g->multiplier + j;
            p.g.shift = g->shift + j;
            p.g.out = g->out + j;
        }
        if (p.start) code->start(p.g.weights, g->k, p.g.n, p.g.bias, start);
        code->run(&p);
    }
}

void neutron_gemm(const NeutronGemm *g) {
    const NeutronProductCode *code = neutron_product_code();
    if (code && (g->raw == NULL || g->n <= NEUTRON_PRODUCT_CHANNELS)) {
        through(code, g);
    } else {
        neutron_gemm_portable(g);
    }
}
