#include "pictures.h"

/* In 256ths of a pixel. */
static int32_t place(int32_t index, int32_t size, int32_t wanted) {
    const int64_t at = ((2 * (int64_t)index + 1) * size * 128) / wanted - 128;
    const int64_t most = ((int64_t)size - 1) * 256;
    return (int32_t)(at < 0 ? 0 : at > most ? most : at);
}

void picture_resize(Picture from, int32_t height, int32_t width, uint8_t *resized) {
    for (int32_t y = 0; y < height; ++y) {
        const int32_t row = place(y, from.height, height), down = row & 255;
        const uint8_t *const top = from.pixels + (row >> 8) * from.stride;
        const uint8_t *const bottom = (row >> 8) + 1 < from.height ? top + from.stride : top;
        for (int32_t x = 0; x < width; ++x) {
            const int32_t column = place(x, from.width, width), across = column & 255;
            const int32_t left = 3 * (column >> 8), right = (column >> 8) + 1 < from.width ? left + 3 : left;
            for (int32_t c = 0; c < 3; ++c) {
                const int32_t above = top[left + c] * (256 - across) + top[right + c] * across;
                const int32_t below = bottom[left + c] * (256 - across) + bottom[right + c] * across;
                *resized++ = (uint8_t)((above * (256 - down) + below * down + 32768) >> 16);
            }
        }
    }
}

void picture_average(Picture from, int32_t height, int32_t width, uint8_t *averaged, int32_t stride) {
    for (int32_t y = 0; y < height; ++y) {
        const int32_t top = y * from.height / height, bottom = ((y + 1) * from.height + height - 1) / height;
        for (int32_t x = 0; x < width; ++x) {
            const int32_t left = x * from.width / width, right = ((x + 1) * from.width + width - 1) / width;
            const uint32_t count = (uint32_t)((bottom - top) * (right - left));
            for (int32_t c = 0; c < 3; ++c) {
                uint32_t total = 0;
                for (int32_t row = top; row < bottom; ++row)
                    for (int32_t column = left; column < right; ++column)
                        total += from.pixels[row * from.stride + 3 * column + c];
                averaged[y * stride + 3 * x + c] = (uint8_t)((2 * total + count) / (2 * count));
            }
        }
    }
}

void picture_planes(const uint8_t *pixels, int32_t count, const float mean[3], const float deviation[3], float *planes,
                    int32_t plane) {
    for (int32_t c = 0; c < 3; ++c)
        for (int32_t i = 0; i < count; ++i)
            planes[c * plane + i] = ((float)pixels[3 * i + c] / 255.0f - mean[c]) / deviation[c];
}
