/* Features of sound: mel spectra of windows of samples at 16 kHz, as sound.py has them to 0.01 dB. */
#ifndef APPS_SOUND_H
#define APPS_SOUND_H

#include <stdint.h>

enum { SOUND_LONGEST = 1024, SOUND_MOST = 128 };

/* What is computed: `window` samples, a power of two up to SOUND_LONGEST, to so many bands, up to SOUND_MOST,
 * between two frequencies. */
typedef struct {
    int32_t window, bands;
    double low, high; /* Hz */
} SoundShape;

/* Fills the tables; once, before anything else. */
void sound_prepare(SoundShape shape);

/* The energies of the bands in a window of samples. */
void sound_mel(const int16_t *samples, float *energies);

/* An energy in decibels, -100 if there is none. */
float sound_decibels(float energy);

#endif
