/* Goes on with texts: a byte goes in at its position, the scores of the next come out. */
#include "application.h"
#include "chances.h"

enum { CONTEXT = 256, BYTES = 256 };

static uint8_t text[CONTEXT];
static float likely[BYTES];

/* The scores of the byte that follows the first `length` of the text. */
static const float *scores_after(int32_t net, int32_t length) {
    uint32_t bytes;
    int64_t *const token = method_input(net, 0, &bytes);
    if (bytes != sizeof *token) return NULL;
    *token = text[length - 1];
    int64_t *const position = method_input(net, 1, &bytes);
    if (bytes != sizeof *position) return NULL;
    *position = length - 1;
    if (!method_run(net)) return NULL;
    const float *const scores = method_output(net, 0, &bytes);
    return bytes == sizeof likely ? scores : NULL;
}

static bool go_on(int32_t net, int32_t prompt, int32_t wanted, float temperature, uint32_t dice) {
    methods_reset(); /* the text before is forgotten */
    for (int32_t length = 1; length < prompt + wanted; ++length) {
        const float *const scores = scores_after(net, length);
        if (scores == NULL) return false;
        if (length < prompt) continue; /* the text itself says what follows */
        chances(scores, BYTES, temperature, likely);
        text[length] = (uint8_t)chances_pick(likely, BYTES, &dice);
        const char written[2] = {(char)text[length], 0};
        semihosting_text(written);
    }
    return true;
}

bool application(void) {
    const int32_t net = method_find("tiny_lm"), from = semihosting_open("prompts.bin", SEMIHOSTING_READ);
    const int32_t to = semihosting_open("text.out", SEMIHOSTING_WRITE);
    struct {
        int32_t prompt, wanted; /* bytes */
        float temperature;
        uint32_t dice;
    } job;
    while (semihosting_read(from, &job, sizeof job)) {
        if (job.prompt < 1 || job.wanted < 0 || job.prompt + job.wanted > CONTEXT) return false;
        if (!semihosting_read(from, text, (size_t)job.prompt)) return false;
        if (!go_on(net, job.prompt, job.wanted, job.temperature, job.dice)) return false;
        if (!semihosting_write(to, text, (size_t)(job.prompt + job.wanted))) return false;
        semihosting_text("\n\n");
    }
    semihosting_close(to);
    return true;
}
