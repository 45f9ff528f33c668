/* What the network's outputs stand for; app.py writes names.c. */
#ifndef NAMES_H
#define NAMES_H

extern const char *const names[1000];

#endif
