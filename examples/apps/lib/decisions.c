#include "decisions.h"

Speech speech_new(float enter, float leave, int32_t quiet, int32_t around) {
    const Speech speech = {.enter = enter, .leave = leave, .quiet = quiet, .around = around};
    return speech;
}

static void finish(Speech *speech, int32_t behind, Segment *found) {
    const int32_t first = speech->began - speech->around;
    found->first = first > 0 ? first : 0;
    found->behind = behind < speech->frame ? behind : speech->frame;
    speech->speaking = false;
}

bool speech_next(Speech *speech, float likely, Segment *found) {
    const int32_t frame = speech->frame++;
    if (!speech->speaking) {
        if (likely < speech->enter) return false;
        speech->speaking = true;
        speech->began = frame;
        speech->waiting = 0;
        return false;
    }
    if (likely >= speech->leave) {
        speech->waiting = 0;
        return false;
    }
    if (++speech->waiting < speech->quiet) return false;
    finish(speech, frame + 1 - speech->waiting + speech->around, found);
    return true;
}

bool speech_end(Speech *speech, Segment *found) {
    if (!speech->speaking) return false;
    finish(speech, speech->frame - speech->waiting + speech->around, found);
    return true;
}

Wake wake_new(float threshold, int32_t count, int32_t rest) {
    const Wake wake = {.threshold = threshold, .count = count < WAKE_MOST ? count : WAKE_MOST, .rest = rest};
    return wake;
}

bool wake_next(Wake *wake, float score) {
    const int32_t frame = wake->frame++;
    float sum = 0.0f;
    wake->recent[frame % wake->count] = score;
    if (frame + 1 < wake->count || frame < wake->awake) return false;
    for (int32_t i = frame + 1; i <= frame + wake->count; ++i) sum += wake->recent[i % wake->count]; /* oldest first */
    if (sum < wake->threshold * (float)wake->count) return false;
    wake->awake = frame + wake->rest;
    return true;
}
