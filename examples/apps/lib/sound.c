#include "sound.h"

#include <math.h>

#define RATE 16000.0
#define HALF (SOUND_LONGEST / 2)

typedef struct {
    uint16_t first, count, at; /* bins, and where their weights begin */
} Band;

static SoundShape shape;
static float window[SOUND_LONGEST], cosines[HALF], sines[HALF], weights[2 * HALF + SOUND_MOST];
static uint16_t reversed[SOUND_LONGEST];
static Band bands_of[SOUND_MOST];
static float real[SOUND_LONGEST], imaginary[SOUND_LONGEST];

static double mel(double hertz) { return 2595.0 * log10(1.0 + hertz / 700.0); }

static double edge(int index) {
    const double low = mel(shape.low), part = (mel(shape.high) - low) / (shape.bands + 1);
    return 700.0 * (pow(10.0, (low + part * index) / 2595.0) - 1.0);
}

static void prepare_bands(void) {
    const double bin = RATE / shape.window;
    uint16_t at = 0;
    for (int band = 0; band < shape.bands; ++band) {
        const double low = edge(band), middle = edge(band + 1), high = edge(band + 2);
        Band *const own = &bands_of[band];
        own->at = at;
        own->count = 0;
        for (int i = (int)(low / bin); i <= shape.window / 2 && i * bin < high; ++i) {
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

void sound_prepare(SoundShape wanted) {
    const double turn = 6.283185307179586 / wanted.window;
    shape = wanted;
    for (int i = 0; i < shape.window; ++i) {
        int reverse = 0;
        for (int bit = 1, out = shape.window / 2; bit < shape.window; bit <<= 1, out >>= 1)
            if (i & bit) reverse |= out;
        reversed[i] = (uint16_t)reverse;
        window[i] = (float)((0.5 - 0.5 * cos(turn * i)) / 32768.0);
        if (i < shape.window / 2) {
            cosines[i] = (float)cos(turn * i);
            sines[i] = (float)-sin(turn * i);
        }
    }
    prepare_bands();
}

static void transform(void) {
    for (int size = 2, step = shape.window / 2; size <= shape.window; size <<= 1, step >>= 1) {
        const int half = size / 2;
        for (int start = 0; start < shape.window; start += size) {
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

void sound_mel(const int16_t *samples, float *energies) {
    for (int i = 0; i < shape.window; ++i) {
        const int from = reversed[i];
        real[i] = (float)samples[from] * window[from];
        imaginary[i] = 0.0f;
    }
    transform();
    for (int i = 0; i <= shape.window / 2; ++i)
        real[i] = (real[i] * real[i] + imaginary[i] * imaginary[i]) / (float)shape.window;
    for (int band = 0; band < shape.bands; ++band) {
        const Band *const own = &bands_of[band];
        float sum = 0.0f;
        for (int i = 0; i < own->count; ++i) sum += weights[own->at + i] * real[own->first + i];
        energies[band] = sum;
    }
}

float sound_decibels(float energy) { return 10.0f * log10f(energy + 1e-10f); }
