/* Faces by MTCNN's cascade: what its three networks do not compute, as faces.py has it, to the bit. */
#ifndef APPS_FACES_H
#define APPS_FACES_H

#include <stdbool.h>

#include "boxes.h"

enum {
    FACES_HEIGHT = 480, /* of the camera's pictures */
    FACES_WIDTH = 640,
    FACES_CANVAS_HEIGHT = 196,
    FACES_CANVAS_WIDTH = 328,
    FACES_ROWS = 93, /* of what P-Net says of the canvas */
    FACES_COLUMNS = 159,
    FACES_MOST = 256,
};

typedef struct {
    Box box;
    float moves[4];   /* of the sides, in parts of the box */
    float points[10]; /* eyes, nose, corners of the mouth: five x, then five y */
} Face;

/* The picture in eight sizes, side by side on grey. */
void faces_pyramid(const uint8_t *camera, uint8_t *canvas);

/* Squares that P-Net takes for faces; `likely` is the second plane of its second output. How many. */
int32_t faces_candidates(const float *moves, const float *likely, Face found[FACES_MOST]);

/* What is in a box, side by side pixels; false if that is nothing. */
bool faces_cut(const uint8_t *camera, const Face *face, int32_t side, uint8_t *cut);

/* Puts a face where its score belongs; how many there are then. */
int32_t faces_add(Face found[FACES_MOST], int32_t count, const Face *face);

/* What R-Net leaves of faces that were added with its scores and moves. */
int32_t faces_refine(Face *found, int32_t count);

/* What O-Net leaves of faces that were added with its scores, moves and points. */
int32_t faces_finish(Face *found, int32_t count);

#endif
