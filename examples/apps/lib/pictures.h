/* Pictures for networks: what pictures.py does, to the byte. */
#ifndef APPS_PICTURES_H
#define APPS_PICTURES_H

#include <stdint.h>

typedef struct {
    const uint8_t *pixels; /* rows of red, green, blue */
    int32_t height, width;
    int32_t stride; /* bytes from a row to the next */
} Picture;

/* Bilinear; `resized` has height * width * 3 bytes. */
void picture_resize(Picture from, int32_t height, int32_t width, uint8_t *resized);

/* Every pixel the mean of the area that it stands for; `stride` is bytes from a row of the result to the next. */
void picture_average(Picture from, int32_t height, int32_t width, uint8_t *averaged, int32_t stride);

/* Bytes as a network reads them: planes of (byte / 255 - mean) / deviation; `plane` is pixels from plane to plane. */
void picture_planes(const uint8_t *pixels, int32_t count, const float mean[3], const float deviation[3], float *planes,
                    int32_t plane);

#endif
