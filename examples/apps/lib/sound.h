/* Features of sound: logarithmic mel spectra of 1024 samples at 16 kHz, as sound.py has them to 0.01 dB. */
#ifndef APPS_SOUND_H
#define APPS_SOUND_H

#include <stdint.h>

enum { SOUND_WINDOW = 1024, SOUND_HOP = 512, SOUND_BANDS = 128 };

/* Fills the tables; once, before anything else. */
void sound_prepare(void);

/* The bands of a window of samples, in decibels. */
void sound_log_mel(const int16_t samples[SOUND_WINDOW], float bands[SOUND_BANDS]);

#endif
