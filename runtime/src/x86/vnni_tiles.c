/* Tiles of the matrix product for AVX-512 VNNI (vnni_tiles.h).
 *
 * In assembly, since everything here depends on which instructions there are and in which order: a compiler keeps
 * addresses in vector registers, behind all the products that wait to be computed, or sums in memory. Beside the same
 * tiles in intrinsics (`short_tile` of vnni.c for all rows), best of many runs on one thread: ResNet-8 and the small
 * vision transformer take 14 % less time, the keyword network 9 %; ten others are within 3 %.
 *
 *     rdi  the work                            rax  values of the first row; r11 those of the ninth, if any
 *     rcx rdx rsi r8  1, 3, 5, 7 times the distance of two rows
 *     r9   weights, r10 their distance from block to block, r11 three times that for four blocks
 *     rbx  parts, r12 groups left in a part, r13 groups left before something is scaled
 *     r14  sums that wait in memory, r15 where the first ones that wait go
 *     zmm0-15 sums, zmm16-17 weights, zmm18 values, zmm19-21 what is scaled
 *     zmm22-31 sums that wait, moved up when the first one leaves: that costs no time, stores would
 */
#include "vnni_tiles.h"

/* Offsets in NeutronTileWork. */
#define TILES_FIELD "0"
#define TILE_COUNT "8"
#define PITCH "16"
#define WEIGHTS "24"
#define BLOCK "32"
#define PART_COUNT "40"
#define GROUPS "48"
#define CHUNK "56"
#define EACH "64"
#define OUT_PITCH "72"
#define OFFSET "80"
#define PARTS_LEFT "88"
#define END "96"
#define START "128"
#define EVEN "256"
#define ODD "384"
#define EVEN_ADD "512"
#define ODD_ADD "640"
#define RIGHT "768"
#define LOW "896"
#define HIGH "960"
#define SUMS "1024"
#define AT(field, offset) _Static_assert(offsetof(NeutronTileWork, field) == offset, "known to the assembly")
AT(tiles, 0);
AT(tile_count, 8);
AT(pitch, 16);
AT(weights, 24);
AT(block, 32);
AT(part_count, 40);
AT(groups, 48);
AT(chunk, 56);
AT(each, 64);
AT(out_pitch, 72);
AT(offset, 80);
AT(parts_left, 88);
AT(end, 96);
AT(start, 128);
AT(even, 256);
AT(odd, 384);
AT(even_add, 512);
AT(odd_add, 640);
AT(right, 768);
AT(low, 896);
AT(high, 960);
AT(sums, 1024);
_Static_assert(offsetof(NeutronTile, offset) == 8 && offsetof(NeutronTile, to) == 16 && sizeof(NeutronTile) == 24,
               "too");

/* Another layout would be made of these macros every time. */
/* clang-format off */
#define MOVE(from, to) "vmovdqa64 %%zmm" from ", %%zmm" to "\n\t"

/* neutron_scale_right16 of register `from`, to bytes 16 * h and on of the row. */
#define SCALE(h, from, sign)                                                                 \
    "vpsrlq $32, %%zmm" from                                                                 \
    ", %%zmm20\n\t"                                                                          \
    "vpmuludq " EVEN "+64*" h "(%%rdi), %%zmm" from                                          \
    ", %%zmm21\n\t"                                                                          \
    "vpmuludq " ODD "+64*" h                                                                 \
    "(%%rdi), %%zmm20, %%zmm20\n\t"                                                          \
    "vpaddq " EVEN_ADD "+64*" h                                                              \
    "(%%rdi), %%zmm21, %%zmm21\n\t"                                                          \
    "vpaddq " ODD_ADD "+64*" h                                                               \
    "(%%rdi), %%zmm20, %%zmm20\n\t"                                                          \
    "vpshufd $0xF5, %%zmm21, %%zmm20%{%%k1%}\n\t" sign(from) "vpsravd " RIGHT "+64*" h       \
                                                             "(%%rdi), %%zmm20, %%zmm20\n\t" \
                                                             "vpmaxsd " LOW                  \
                                                             "(%%rdi), %%zmm20, %%zmm20\n\t" \
                                                             "vpminsd " HIGH                 \
                                                             "(%%rdi), %%zmm20, %%zmm20\n\t" \
                                                             "vpmovsdb %%zmm20, 16*" h "(%%r15)\n\t"
#define NO_SIGN(from)
#define SIGN(from) "vpsrld $30, %%zmm" from ", %%zmm19\n\tvpaddd %%zmm19, %%zmm20, %%zmm20\n\t"

/* The first row that waits. The last registers get the next sums from memory, or what is behind these. */
#define FINISH_16(sign)                                                                                   \
    SCALE("0", "22", sign)                                                                                \
    MOVE("23", "22")                                                                                      \
    MOVE("24", "23")                                                                                      \
    MOVE("25", "24") MOVE("26", "25") MOVE("27", "26") MOVE("28", "27") MOVE("29", "28") MOVE("30", "29") \
        MOVE("31", "30") "vmovdqa64 (%%r14), %%zmm31\n\taddq $64, %%r14\n\taddq " OUT_PITCH "(%%rdi), %%r15\n\t"
#define FINISH_32(sign) \
    SCALE("0", "22", sign) SCALE("1", "23", sign)                                                           \
    MOVE("24", "22") MOVE("25", "23") MOVE("26", "24") MOVE("27", "25") MOVE("28", "26") MOVE("29", "27")   \
    MOVE("30", "28") MOVE("31", "29")                                                                       \
    "vmovdqa64 (%%r14), %%zmm30\n\tvmovdqa64 64(%%r14), %%zmm31\n\t"                                        \
    "addq $128, %%r14\n\taddq " OUT_PITCH "(%%rdi), %%r15\n\t"

#define WEIGHT(z, low, high) "vmovdqu32 " low ", %%ymm" z "\n\tvinserti64x4 $1, " high ", %%zmm" z ", %%zmm" z "\n\t"
#define ONE(at, sum) "vpbroadcastd " at ", %%zmm18\n\tvpdpbusd %%zmm16, %%zmm18, %%zmm" sum "\n\t"
#define TWO(at, first, second) ONE(at, first) "vpdpbusd %%zmm17, %%zmm18, %%zmm" second "\n\t"

#define GROUP_16                                                                                                \
    WEIGHT("16", "(%%r9)", "(%%r9,%%r10)")                                                                      \
    ONE("(%%rax)", "0")                                                                                         \
    ONE("(%%rax,%%rcx)", "1")                                                                                   \
    ONE("(%%rax,%%rcx,2)", "2") ONE("(%%rax,%%rdx)", "3") ONE("(%%rax,%%rcx,4)", "4") ONE("(%%rax,%%rsi)", "5") \
        ONE("(%%rax,%%rdx,2)", "6") ONE("(%%rax,%%r8)", "7") ONE("(%%r11)", "8") ONE("(%%r11,%%rcx)", "9")      \
            ONE("(%%r11,%%rcx,2)", "10") ONE("(%%r11,%%rdx)", "11") ONE("(%%r11,%%rcx,4)", "12")                \
                ONE("(%%r11,%%rsi)", "13") ONE("(%%r11,%%rdx,2)", "14") ONE("(%%r11,%%r8)", "15") "addq $4, %%r11\n\t"
#define GROUP_32                                                                                     \
    WEIGHT("16", "(%%r9)", "(%%r9,%%r10)")                                                           \
    WEIGHT("17", "(%%r9,%%r10,2)", "(%%r9,%%r11)")                                                   \
    TWO("(%%rax)", "0", "1")                                                                         \
    TWO("(%%rax,%%rcx)", "2", "3")                                                                   \
    TWO("(%%rax,%%rcx,2)", "4", "5") TWO("(%%rax,%%rdx)", "6", "7") TWO("(%%rax,%%rcx,4)", "8", "9") \
        TWO("(%%rax,%%rsi)", "10", "11") TWO("(%%rax,%%rdx,2)", "12", "13") TWO("(%%rax,%%r8)", "14", "15")

/* The sums of all rows start from these: `second` is "0" or "1", for the odd registers. */
#define STARTS(second)                                                                                           \
    "vmovdqa64 " START "(%%rdi), %%zmm0\n\tvmovdqa64 " START "+64*" second "(%%rdi), %%zmm1\n\t" MOVE("0", "2")  \
        MOVE("1", "3") MOVE("0", "4") MOVE("1", "5") MOVE("0", "6") MOVE("1", "7") MOVE("0", "8") MOVE("1", "9") \
            MOVE("0", "10") MOVE("1", "11") MOVE("0", "12") MOVE("1", "13") MOVE("0", "14") MOVE("1", "15")

#define KEEP(from, at) "vmovdqa64 %%zmm" from ", " SUMS "+64*" at "(%%rdi)\n\t"
#define WAIT                                                                                                        \
    MOVE("0", "22")                                                                                                 \
    MOVE("1", "23")                                                                                                 \
    MOVE("2", "24") MOVE("3", "25") MOVE("4", "26") MOVE("5", "27") MOVE("6", "28") MOVE("7", "29") MOVE("8", "30") \
        MOVE("9", "31") KEEP("10", "0") KEEP("11", "1") KEEP("12", "2") KEEP("13", "3") KEEP("14", "4")             \
            KEEP("15", "5")

#define CLOBBERED                                                                                                   \
    "memory", "cc", "k1", "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",  \
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",  \
        "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", \
        "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

/* All tiles. `at_start` or `at_part` make r11 what the groups take it for. */
#define TILES(work, second, at_start, at_part, group, finish) \
    __asm__ volatile(                                                             \
        "movl $0x5555, %%eax\n\tkmovw %%eax, %%k1\n\t"                            \
        "movq " PITCH "(%%rdi), %%rcx\n\t"                                        \
        "leaq (%%rcx,%%rcx,2), %%rdx\n\t"                                         \
        "leaq (%%rcx,%%rcx,4), %%rsi\n\t"                                         \
        "leaq (%%rdx,%%rcx,4), %%r8\n\t"                                          \
        "movq " BLOCK "(%%rdi), %%r10\n\t" at_start                               \
        "movq " END "(%%rdi), %%r14\n\t" /* nothing waits */                      \
        "0:\n\t"                         /* a tile */                             \
        "movq " TILES_FIELD "(%%rdi), %%rbx\n\t"                                  \
        "movq 8(%%rbx), %%rax\n\tmovq %%rax, " OFFSET "(%%rdi)\n\t"               \
        "movq (%%rbx), %%rbx\n\t"                                                 \
        "movq " WEIGHTS "(%%rdi), %%r9\n\t"                                       \
        "movq " PART_COUNT "(%%rdi), %%rax\n\tmovq %%rax, " PARTS_LEFT "(%%rdi)\n\t" STARTS(second) \
        "1:\n\t" /* a part */                                                     \
        "movq (%%rbx), %%rax\n\taddq $8, %%rbx\n\t"                               \
        "addq " OFFSET "(%%rdi), %%rax\n\t" at_part                               \
        "movq " GROUPS "(%%rdi), %%r12\n\t"                                       \
        "2:\n\t" /* some groups, before which something is scaled */              \
        "movq " EACH "(%%rdi), %%r13\n\t"                                         \
        "3:\n\t"                                                                  \
        "cmpq " END "(%%rdi), %%r14\n\tje 4f\n\t" finish                          \
        "decq %%r13\n\tjnz 3b\n\t"                                                \
        "4:\n\t"                                                                  \
        "movq " CHUNK "(%%rdi), %%r13\n\t"                                        \
        "cmpq %%r12, %%r13\n\tcmovaq %%r12, %%r13\n\tsubq %%r13, %%r12\n\t"       \
        ".p2align 4\n\t"                                                          \
        "5:\n\t" group                                                            \
        "addq $4, %%rax\n\taddq $32, %%r9\n\tdecq %%r13\n\tjnz 5b\n\t"            \
        "testq %%r12, %%r12\n\tjnz 2b\n\t"                                        \
        "decq " PARTS_LEFT "(%%rdi)\n\tjnz 1b\n\t"                                \
        "6:\n\t" /* what still waits */                                           \
        "cmpq " END "(%%rdi), %%r14\n\tje 7f\n\t" finish "jmp 6b\n\t"             \
        "7:\n\t" WAIT                                                             \
        "leaq " SUMS "(%%rdi), %%r14\n\t"                                         \
        "movq " TILES_FIELD "(%%rdi), %%rax\n\tmovq 16(%%rax), %%r15\n\t"         \
        "addq $24, %%rax\n\tmovq %%rax, " TILES_FIELD "(%%rdi)\n\t"               \
        "decq " TILE_COUNT "(%%rdi)\n\tjnz 0b\n\t"                                \
        "8:\n\t" finish /* the last tile */                                       \
        "cmpq " END "(%%rdi), %%r14\n\tjne 8b\n\t"                                \
        :                                                                         \
        : "D"(work)                                                               \
        : CLOBBERED)

#define NINTH "leaq (%%rax,%%rcx,8), %%r11\n\t"
#define THRICE "leaq (%%r10,%%r10,2), %%r11\n\t"

/* clang-format on */

void neutron_tiles_16_vnni(NeutronTileWork *work, int positive) {
    work->end = work->sums + NEUTRON_TILE_SUMS;
    if (positive) TILES(work, "0", "", NINTH, GROUP_16, FINISH_16(NO_SIGN));
    else TILES(work, "0", "", NINTH, GROUP_16, FINISH_16(SIGN));
}

void neutron_tiles_32_vnni(NeutronTileWork *work, int positive) {
    work->end = work->sums + NEUTRON_TILE_SUMS;
    if (positive) TILES(work, "1", THRICE, "", GROUP_32, FINISH_32(NO_SIGN));
    else TILES(work, "1", THRICE, "", GROUP_32, FINISH_32(SIGN));
}
