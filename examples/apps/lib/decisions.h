/* From what a network says of each frame of sound to events, as decisions.py has them to the bit. */
#ifndef APPS_DECISIONS_H
#define APPS_DECISIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Speech, from its likelihood: it begins at `enter`, and ends after `quiet` frames below `leave`. */
typedef struct {
    float enter, leave;
    int32_t quiet, around; /* frames; `around` is how many are added at either end */
    int32_t frame, began, waiting;
    bool speaking;
} Speech;

typedef struct {
    int32_t first, behind; /* frames */
} Segment;

Speech speech_new(float enter, float leave, int32_t quiet, int32_t around);

/* Takes a frame's likelihood; whether it ended a segment, and which. */
bool speech_next(Speech *speech, float likely, Segment *found);

/* The same if the recording ends here. */
bool speech_end(Speech *speech, Segment *found);

/* A wake word: the mean of the last `count` scores is at least `threshold`, and no other was heard in the last
 * `rest` frames. */
enum { WAKE_MOST = 32 };
typedef struct {
    float threshold, recent[WAKE_MOST];
    int32_t count, rest, frame, awake; /* awake: the frame from which it listens again */
} Wake;

Wake wake_new(float threshold, int32_t count, int32_t rest);

/* Takes a frame's score; whether the word was heard with it. */
bool wake_next(Wake *wake, float score);

#endif
