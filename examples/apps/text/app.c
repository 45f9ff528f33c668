/* Reads the text of pictures: one network finds the words, another reads each of them. */
#include "application.h"
#include "characters.h"
#include "pictures.h"
#include "text.h"

enum { HEIGHT = 192, WIDTH = 384, LINE_HEIGHT = 48, LINE_WIDTH = 320, COLUMNS = LINE_WIDTH / 8 };

static uint8_t picture[HEIGHT * WIDTH * 3], line[LINE_HEIGHT * LINE_WIDTH * 3];
static float likely[HEIGHT * WIDTH];
static int32_t waiting[HEIGHT * WIDTH];
static Region found[TEXT_MOST];

static bool find_words(int32_t net, int32_t *count) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
    uint32_t bytes;
    float *const planes = method_input(net, 0, &bytes);
    if (bytes != sizeof picture * sizeof(float)) return false;
    picture_planes(picture, HEIGHT * WIDTH, mean, deviation, planes, HEIGHT * WIDTH);
    if (!method_run(net)) return false;
    const float *const map = method_output(net, 0, &bytes);
    if (bytes != sizeof likely) return false;
    for (int32_t i = 0; i < HEIGHT * WIDTH; ++i) likely[i] = map[i];
    *count = text_regions(likely, HEIGHT, WIDTH, 0.3f, waiting, found);
    return true;
}

static bool read_word(int32_t net, const Region *region) {
    static const float half[3] = {0.5f, 0.5f, 0.5f};
    const int32_t height = region->bottom - region->top, across = region->right - region->left;
    int32_t width = LINE_HEIGHT * across / height, letters[COLUMNS];
    width = width < 8 ? 8 : width > LINE_WIDTH ? LINE_WIDTH : width;
    const Picture cut = {picture + 3 * (region->top * WIDTH + region->left), height, across, WIDTH * 3};
    uint32_t bytes;
    float *const planes = method_input(net, 0, &bytes);
    if (bytes != sizeof line * sizeof(float)) return false;
    for (int32_t i = 0; i < 3 * LINE_HEIGHT * LINE_WIDTH; ++i) planes[i] = 0.0f; /* grey beside the word */
    picture_resize(cut, LINE_HEIGHT, width, line);
    for (int32_t row = 0; row < LINE_HEIGHT; ++row)
        picture_planes(line + 3 * row * width, width, half, half, planes + row * LINE_WIDTH, LINE_HEIGHT * LINE_WIDTH);
    if (!method_run(net)) return false;
    const float *const scores = method_output(net, 0, &bytes);
    if (bytes != COLUMNS * CHARACTERS * sizeof(float)) return false;
    const int32_t count = text_read_columns(scores, COLUMNS, CHARACTERS, letters);
    for (int32_t i = 0; i < count; ++i) semihosting_text(characters[letters[i]]);
    return true;
}

bool application(void) {
    const int32_t detector = method_find("detector"), recogniser = method_find("recogniser");
    const int32_t from = semihosting_open("pictures.bin", SEMIHOSTING_READ);
    while (semihosting_read(from, picture, sizeof picture)) {
        int32_t count;
        if (!find_words(detector, &count)) return false;
        for (int32_t i = 0; i < count; ++i) {
            if (i > 0) semihosting_text(found[i].line != found[i - 1].line ? "\n" : " ");
            if (!read_word(recogniser, &found[i])) return false;
        }
        semihosting_text("\n\n");
    }
    return true;
}
