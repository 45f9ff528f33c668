/* How likely each of many things is, by scores, as chances.py has it, to the bit. */
#ifndef APPS_CHANCES_H
#define APPS_CHANCES_H

#include <stdint.h>

/* Softmax of scores, within 1 % of each; `likely` may be the scores. */
void chances(const float *scores, int32_t count, float temperature, float *likely);

/* The likeliest so many, best first. */
void chances_best(const float *likely, int32_t count, int32_t wanted, int32_t *best);

/* One of many, the likely ones more often; `dice` is any number but 0 at first. */
int32_t chances_pick(const float *likely, int32_t count, uint32_t *dice);

#endif
