/* The innermost loops of the matrix product for AVX-512 VNNI, in assembly. */
#ifndef NEUTRON_VNNI_TILES_H
#define NEUTRON_VNNI_TILES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define NEUTRON_TILE_SUMS 16u /* registers of sums in a tile: 8 rows of 32 channels, or 16 of 16 */

/* Where the rows of a tile are, and where its results go. */
typedef struct {
    const int8_t *const *parts; /* `part_count` of them, each `groups` groups long */
    size_t offset;              /* of the tile's first row in every part */
    int8_t *to;
} NeutronTile;

/* Some tiles of one strip of channels. The sums of a tile are not scaled before the next tile is under way, some rows
 * behind every few groups of products: the two need different units of the CPU, which so work at the same time. The
 * order of the fields is known to the assembly. */
typedef struct {
    const NeutronTile *tiles;
    uint64_t tile_count; /* not 0; the assembly counts it down */
    size_t pitch;        /* from row to row */
    const int8_t *weights;
    size_t block; /* bytes from one block of weights to the next */
    uint64_t part_count, groups;
    uint64_t chunk, each; /* behind so many groups of products, so many rows that wait are scaled; neither is 0 */
    size_t out_pitch;
    uint64_t offset, parts_left; /* the assembly's own */
    const __m512i *end;          /* of `sums` */
    __m512i start[2];
    /* As in avx512.h, with the zero point in the constants; for the first sixteen channels, then for the others. */
    __m512i even[2], odd[2], even_add[2], odd_add[2], right[2];
    __m512i low, high; /* of the result */
    __m512i sums[NEUTRON_TILE_SUMS];
} NeutronTileWork;

/* Tiles of sixteen rows and 16 channels, or of eight rows and 32. `positive` as for neutron_scale_right16. */
void neutron_tiles_16_vnni(NeutronTileWork *work, int positive);
void neutron_tiles_32_vnni(NeutronTileWork *work, int positive);

#endif
