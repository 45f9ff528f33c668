/* MAX_POOL_2D: int8 maximum over the taps inside the input, clamped. Feature maps as in conv_2d.c. */
#include "dsp.h"
#include "pool.h"

static int32_t check(const NeutronMachine *machine, const NeutronMaxPool2DParams *p) {
    return neutron_check_pool(machine, &p->window, &p->input, &p->output, p->clamp_min, p->clamp_max);
}

#if defined(__x86_64__) || defined(__aarch64__)
#define VECTOR_BYTES 16u
typedef int8_t Bytes __attribute__((vector_size(VECTOR_BYTES)));

static inline Bytes larger(Bytes a, Bytes b) {
    const Bytes first = (Bytes)(a > b);
    return (a & first) | (b & ~first);
}

static inline Bytes load(const int8_t *from) {
    Bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return bytes;
}

static inline Bytes all(int32_t value) { return (Bytes){0} + (int8_t)value; }
#endif

/* best[c] = max(best[c], in[c]) */
static inline void take_larger(int8_t *best, const int8_t *in, uint32_t channels) {
    uint32_t c = 0;
#ifdef NEUTRON_DSP
    for (; c + 4u <= channels; c += 4u) {
        uint32_t word = neutron_max4(neutron_word(in + c), neutron_word(best + c));
        memcpy(best + c, &word, sizeof word);
    }
#endif
    for (; c < channels; ++c) best[c] = in[c] > best[c] ? in[c] : best[c];
}

/* The first tap of row y, channel c. */
static inline const int8_t *row_of(const NeutronMaxPool2DParams *p, const int8_t *input, uint32_t b, uint32_t y,
                                   const NeutronTaps *taps, uint32_t c) {
    return input + neutron_row_offset(&p->input, p->window.in_h, b, y) + (size_t)taps->x0 * p->input.pixel + c;
}

#ifdef VECTOR_BYTES
/* One or two registers of channels, which the results never leave. */
static inline __attribute__((always_inline)) void largest(const NeutronMaxPool2DParams *p, const int8_t *input,
                                                          uint32_t b, const NeutronTaps *taps, uint32_t c,
                                                          uint32_t registers, int8_t *out) {
    Bytes first = all(p->clamp_min), second = first;
    for (uint32_t y = taps->y0; y < taps->y1; ++y) {
        const int8_t *in = row_of(p, input, b, y, taps, c);
        for (uint32_t x = 0; x < taps->x1 - taps->x0; ++x) {
            const int8_t *tap = in + (size_t)x * p->input.pixel;
            first = larger(first, load(tap));
            if (registers > 1) second = larger(second, load(tap + VECTOR_BYTES));
        }
    }
    const Bytes limit = all(p->clamp_max);
    first = ~larger(~first, ~limit);
    second = ~larger(~second, ~limit);
    memcpy(out + c, &first, sizeof first);
    if (registers > 1) memcpy(out + c + VECTOR_BYTES, &second, sizeof second);
}
#endif

static void pixel(const void *parameters, const int8_t *input, uint32_t b, uint32_t oy, uint32_t ox, int8_t *out) {
    const NeutronMaxPool2DParams *p = (const NeutronMaxPool2DParams *)parameters;
    const NeutronWindow *w = &p->window;
    NeutronTaps taps = neutron_pool_taps(w, oy, ox);
    uint32_t c0 = 0;
#ifdef VECTOR_BYTES
    for (; c0 + 2u * VECTOR_BYTES <= w->in_c; c0 += 2u * VECTOR_BYTES) largest(p, input, b, &taps, c0, 2, out);
    if (c0 + VECTOR_BYTES <= w->in_c) {
        largest(p, input, b, &taps, c0, 1, out);
        c0 += VECTOR_BYTES;
    }
#endif
    for (; c0 < w->in_c; c0 += NEUTRON_POOL_CHUNK) {
        uint32_t channels = w->in_c - c0 < NEUTRON_POOL_CHUNK ? w->in_c - c0 : NEUTRON_POOL_CHUNK;
        _Alignas(4) int8_t best[NEUTRON_POOL_CHUNK];
        memset(best, (int)p->clamp_min, sizeof best); /* so the lower clamp needs no step of its own */
        for (uint32_t y = taps.y0; y < taps.y1; ++y) {
            const int8_t *in = row_of(p, input, b, y, &taps, c0);
            for (uint32_t x = 0; x < taps.x1 - taps.x0; ++x) {
                take_larger(best, in + (size_t)x * p->input.pixel, channels);
            }
        }
        for (uint32_t c = 0; c < channels; ++c) {
            out[c0 + c] = best[c] < p->clamp_max ? best[c] : (int8_t)p->clamp_max;
        }
    }
}

static int32_t run(const NeutronMachine *machine, const NeutronMaxPool2DParams *p) {
    return neutron_run_pool(machine, p, pixel);
}

NEUTRON_KERNEL(neutron_max_pool_2d, NeutronMaxPool2DParams, check, run)
