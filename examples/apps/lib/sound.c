#include "sound.h"

#include <math.h>

#define RATE 16000.0
#define HALF (SOUND_WINDOW / 2)

typedef struct {
    uint16_t first, count, at; /* bins, and where their weights begin */
} Band;

static float window[SOUND_WINDOW], cosines[HALF], sines[HALF], weights[2 * HALF + SOUND_BANDS];
static uint16_t reversed[SOUND_WINDOW];
static Band bands_of[SOUND_BANDS];
static float real[SOUND_WINDOW], imaginary[SOUND_WINDOW];

static double edge(int index) {
    const double top = 2595.0 * log10(1.0 + RATE / 2.0 / 700.0);
    return 700.0 * (pow(10.0, top * index / (SOUND_BANDS + 1) / 2595.0) - 1.0);
}

void sound_prepare(void) {
    const double turn = 6.283185307179586 / SOUND_WINDOW;
    for (int i = 0; i < SOUND_WINDOW; ++i) {
        int reverse = 0;
        for (int bit = 1, out = SOUND_WINDOW / 2; bit < SOUND_WINDOW; bit <<= 1, out >>= 1)
            if (i & bit) reverse |= out;
        reversed[i] = (uint16_t)reverse;
        window[i] = (float)((0.5 - 0.5 * cos(turn * i)) / 32768.0);
        if (i < HALF) {
            cosines[i] = (float)cos(turn * i);
            sines[i] = (float)-sin(turn * i);
        }
    }
    uint16_t at = 0;
    for (int band = 0; band < SOUND_BANDS; ++band) {
        const double low = edge(band), middle = edge(band + 1), high = edge(band + 2), bin = RATE / SOUND_WINDOW;
        Band *const own = &bands_of[band];
        own->at = at;
        own->count = 0;
        for (int i = (int)(low / bin); i <= HALF && i * bin < high; ++i) {
            const double up = (i * bin - low) / (middle - low), down = (high - i * bin) / (high - middle);
            const double weight = up < down ? up : down;
            if (weight <= 0.0) continue;
            if (own->count++ == 0) own->first = (uint16_t)i;
            weights[at++] = (float)weight;
        }
        if (own->count == 0) { /* a narrow triangle that misses all bins takes the nearest */
            own->first = (uint16_t)rint(middle / bin);
            own->count = 1;
            weights[at++] = 1.0f;
        }
    }
}

static void transform(void) {
    for (int size = 2, step = HALF; size <= SOUND_WINDOW; size <<= 1, step >>= 1) {
        const int half = size / 2;
        for (int start = 0; start < SOUND_WINDOW; start += size) {
            for (int k = 0; k < half; ++k) {
                const int a = start + k, b = a + half;
                const float c = cosines[k * step], s = sines[k * step];
                const float r = real[b] * c - imaginary[b] * s, i = real[b] * s + imaginary[b] * c;
                real[b] = real[a] - r;
                imaginary[b] = imaginary[a] - i;
                real[a] += r;
                imaginary[a] += i;
            }
        }
    }
}

void sound_log_mel(const int16_t samples[SOUND_WINDOW], float bands[SOUND_BANDS]) {
    for (int i = 0; i < SOUND_WINDOW; ++i) {
        const int from = reversed[i];
        real[i] = (float)samples[from] * window[from];
        imaginary[i] = 0.0f;
    }
    transform();
    for (int i = 0; i <= HALF; ++i) real[i] = (real[i] * real[i] + imaginary[i] * imaginary[i]) / SOUND_WINDOW;
    for (int band = 0; band < SOUND_BANDS; ++band) {
        const Band *const own = &bands_of[band];
        float sum = 0.0f;
        for (int i = 0; i < own->count; ++i) sum += weights[own->at + i] * real[own->first + i];
        bands[band] = 10.0f * log10f(sum + 1e-10f);
    }
}
