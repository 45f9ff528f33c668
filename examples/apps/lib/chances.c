#include "chances.h"

enum { HALVINGS = 12 };

void chances(const float *scores, int32_t count, float temperature, float *likely) {
    float most = scores[0], total = 0.0f;
    for (int32_t i = 1; i < count; ++i)
        if (scores[i] > most) most = scores[i];
    for (int32_t i = 0; i < count; ++i) {
        float x = (scores[i] - most) / temperature;
        if (x < -60.0f) x = -60.0f;
        float power = 1.0f + x / (float)(1 << HALVINGS);
        for (int32_t k = 0; k < HALVINGS; ++k) power *= power;
        likely[i] = power;
        total += power;
    }
    for (int32_t i = 0; i < count; ++i) likely[i] /= total;
}

void chances_best(const float *likely, int32_t count, int32_t wanted, int32_t *best) {
    int32_t found = 0;
    for (int32_t i = 0; i < count; ++i) {
        int32_t at = found;
        while (at > 0 && likely[best[at - 1]] < likely[i]) --at;
        if (at == wanted) continue;
        if (found < wanted) ++found;
        for (int32_t k = found - 1; k > at; --k) best[k] = best[k - 1];
        best[at] = i;
    }
}

int32_t chances_pick(const float *likely, int32_t count, uint32_t *dice) {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 17;
    *dice ^= *dice << 5;
    float left = (float)(*dice >> 8) / (float)(1 << 24);
    for (int32_t i = 0; i < count; ++i) {
        if (left < likely[i]) return i;
        left -= likely[i];
    }
    int32_t best;
    chances_best(likely, count, 1, &best); /* what is left is a rounding error */
    return best;
}
