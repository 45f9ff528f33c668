/* What the recogniser's outputs stand for; the table is written by app.py from the network's file. */
#ifndef APPS_CHARACTERS_H
#define APPS_CHARACTERS_H

enum { CHARACTERS = 6625 };

extern const char characters[CHARACTERS][5];

#endif
