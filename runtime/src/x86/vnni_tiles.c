/* Tiles of the matrix product for AVX-512 VNNI (vnni_tiles.h).
 *
 * In assembly, since everything here depends on which instructions there are and in which order: a compiler keeps
 * addresses in vector registers, behind all the products that wait to be computed, or sums in memory.
 *
 *     rdi  the work                            rax  values of the first row; r11 those of the ninth, if any
 *     rcx rdx rsi r8  1, 3, 5, 7 times the distance of two rows
 *     r9   weights, r10 their distance from block to block, r11 three times that for four blocks
 *     rbx  parts, r12 groups left in a part, r13 groups left before something is scaled
 *     r14  sums that wait, r15 where they go
 *     zmm0-15 sums, zmm16-17 weights, zmm18 values, zmm19-21 what is scaled, zmm22-31 with what
 */
#include "vnni_tiles.h"

#include "avx512.h"

/* Offsets in NeutronTileWork. */
#define PARTS "0"
#define OFFSET "8"
#define PITCH "16"
#define WEIGHTS "24"
#define BLOCK "32"
#define PART_COUNT "40"
#define GROUPS "48"
#define CHUNK "56"
#define EACH "64"
#define NEXT "72"
#define END "80"
#define TO "88"
#define OUT_PITCH "96"
#define LEFT "104"
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
AT(parts, 0);
AT(offset, 8);
AT(pitch, 16);
AT(weights, 24);
AT(block, 32);
AT(part_count, 40);
AT(groups, 48);
AT(chunk, 56);
AT(each, 64);
AT(next, 72);
AT(end, 80);
AT(to, 88);
AT(out_pitch, 96);
AT(parts_left, 104);
AT(start, 128);
AT(even, 256);
AT(odd, 384);
AT(even_add, 512);
AT(odd_add, 640);
AT(right, 768);
AT(low, 896);
AT(high, 960);
AT(sums, 1024);

/* neutron_scale_right16, register h of a row, with constants in registers. */
#define SCALE(h, even, odd, even_add, odd_add, right, sign)             \
    "vmovdqa64 64*" h                                                   \
    "(%%r14), %%zmm19\n\t"                                              \
    "vpsrlq $32, %%zmm19, %%zmm20\n\t"                                  \
    "vpmuludq %%zmm" even                                               \
    ", %%zmm19, %%zmm21\n\t"                                            \
    "vpmuludq %%zmm" odd                                                \
    ", %%zmm20, %%zmm20\n\t"                                            \
    "vpaddq %%zmm" even_add                                             \
    ", %%zmm21, %%zmm21\n\t"                                            \
    "vpaddq %%zmm" odd_add                                              \
    ", %%zmm20, %%zmm20\n\t"                                            \
    "vpshufd $0xF5, %%zmm21, %%zmm20%{%%k1%}\n\t" sign "vpsravd " right \
    ", %%zmm20, %%zmm20\n\t"                                            \
    "vpmaxsd %%zmm30, %%zmm20, %%zmm20\n\t"                             \
    "vpminsd %%zmm31, %%zmm20, %%zmm20\n\t"                             \
    "vpmovsdb %%zmm20, 16*" h "(%%r15)\n\t"
#define FIRST(sign) SCALE("0", "22", "23", "24", "25", RIGHT "(%%rdi)", sign)
#define SECOND(sign) SCALE("1", "26", "27", "28", "29", RIGHT "+64(%%rdi)", sign)
#define LOAD(field, to) "vmovdqa64 " field "(%%rdi), %%zmm" to "\n\t"
#define CONSTANTS \
    LOAD(EVEN, "22") LOAD(ODD, "23") LOAD(EVEN_ADD, "24") LOAD(ODD_ADD, "25") LOAD(LOW, "30") LOAD(HIGH, "31")
#define MORE LOAD(EVEN "+64", "26") LOAD(ODD "+64", "27") LOAD(EVEN_ADD "+64", "28") LOAD(ODD_ADD "+64", "29")
#define SIGN                           \
    "vpsrld $30, %%zmm19, %%zmm19\n\t" \
    "vpaddd %%zmm19, %%zmm20, %%zmm20\n\t"
#define FINISH_16(sign) FIRST(sign) "addq $64, %%r14\n\taddq " OUT_PITCH "(%%rdi), %%r15\n\t"
#define FINISH_32(sign) FIRST(sign) SECOND(sign) "addq $128, %%r14\n\taddq " OUT_PITCH "(%%rdi), %%r15\n\t"

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

#define COPIES(second)                                                                        \
    "vmovdqa64 " START "(%%rdi), %%zmm0\n\tvmovdqa64 " START "+64*" second                    \
    "(%%rdi), %%zmm1\n\t"                                                                     \
    "vmovdqa64 %%zmm0, %%zmm2\n\tvmovdqa64 %%zmm1, %%zmm3\n\tvmovdqa64 %%zmm0, %%zmm4\n\t"    \
    "vmovdqa64 %%zmm1, %%zmm5\n\tvmovdqa64 %%zmm0, %%zmm6\n\tvmovdqa64 %%zmm1, %%zmm7\n\t"    \
    "vmovdqa64 %%zmm0, %%zmm8\n\tvmovdqa64 %%zmm1, %%zmm9\n\tvmovdqa64 %%zmm0, %%zmm10\n\t"   \
    "vmovdqa64 %%zmm1, %%zmm11\n\tvmovdqa64 %%zmm0, %%zmm12\n\tvmovdqa64 %%zmm1, %%zmm13\n\t" \
    "vmovdqa64 %%zmm0, %%zmm14\n\tvmovdqa64 %%zmm1, %%zmm15\n\t"

#define KEEP(n) "vmovdqa64 %%zmm" n ", " SUMS "+64*" n "(%%rdi)\n\t"

#define CLOBBERED                                                                                                   \
    "memory", "cc", "k1", "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",  \
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",  \
        "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", \
        "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

/* A whole tile. `at_start` or `at_part` make r11 what the groups take it for: at the start, and for every part. */
#define TILE(work, second, at_start, at_part, group, finish) \
    __asm__ volatile(                                                           \
        "movl $0x5555, %%eax\n\tkmovw %%eax, %%k1\n\t"                          \
        "movq " PITCH "(%%rdi), %%rcx\n\t"                                      \
        "leaq (%%rcx,%%rcx,2), %%rdx\n\t"                                       \
        "leaq (%%rcx,%%rcx,4), %%rsi\n\t"                                       \
        "leaq (%%rdx,%%rcx,4), %%r8\n\t"                                        \
        "movq " WEIGHTS "(%%rdi), %%r9\n\tmovq " BLOCK "(%%rdi), %%r10\n\t"     \
        "movq " NEXT "(%%rdi), %%r14\n\tmovq " TO "(%%rdi), %%r15\n\t"          \
        "movq " PARTS "(%%rdi), %%rbx\n\t"                                      \
        "movq " PART_COUNT "(%%rdi), %%rax\n\tmovq %%rax, " LEFT "(%%rdi)\n\t"  \
        at_start CONSTANTS COPIES(second)                                            \
        "1:\n\t" /* a part */                                                   \
        "movq (%%rbx), %%rax\n\taddq $8, %%rbx\n\t"                             \
        "addq " OFFSET "(%%rdi), %%rax\n\t" at_part                             \
        "movq " GROUPS "(%%rdi), %%r12\n\t"                                     \
        "2:\n\t" /* some groups, before which something is scaled */            \
        "movq " EACH "(%%rdi), %%r13\n\t"                                       \
        "3:\n\t"                                                                \
        "cmpq " END "(%%rdi), %%r14\n\tje 4f\n\t" finish                        \
        "decq %%r13\n\tjnz 3b\n\t"                                              \
        "4:\n\t"                                                                \
        "movq " CHUNK "(%%rdi), %%r13\n\t"                                      \
        "cmpq %%r12, %%r13\n\tcmovaq %%r12, %%r13\n\tsubq %%r13, %%r12\n\t"     \
        ".p2align 4\n\t"                                                        \
        "5:\n\t" group                                                          \
        "addq $4, %%rax\n\taddq $32, %%r9\n\tdecq %%r13\n\tjnz 5b\n\t"          \
        "testq %%r12, %%r12\n\tjnz 2b\n\t"                                      \
        "decq " LEFT "(%%rdi)\n\tjnz 1b\n\t"                                    \
        "6:\n\t" /* what still waits */                                         \
        "cmpq " END "(%%rdi), %%r14\n\tje 7f\n\t" finish "jmp 6b\n\t"           \
        "7:\n\t" KEEP("0") KEEP("1") KEEP("2") KEEP("3") KEEP("4") KEEP("5")    \
        KEEP("6") KEEP("7") KEEP("8") KEEP("9") KEEP("10") KEEP("11")           \
        KEEP("12") KEEP("13") KEEP("14") KEEP("15")                             \
        "movq %%r14, " NEXT "(%%rdi)\n\t"                                       \
        :                                                                       \
        : "D"(work)                                                             \
        : CLOBBERED)

#define NINTH "leaq (%%rax,%%rcx,8), %%r11\n\t"
#define THRICE "leaq (%%r10,%%r10,2), %%r11\n\t"

void neutron_tile_16_vnni(NeutronTileWork *work, int positive) {
    if (positive) TILE(work, "0", "", NINTH, GROUP_16, FINISH_16(""));
    else TILE(work, "0", "", NINTH, GROUP_16, FINISH_16(SIGN));
}

void neutron_tile_32_vnni(NeutronTileWork *work, int positive) {
    if (positive) TILE(work, "1", THRICE MORE, "", GROUP_32, FINISH_32(""));
    else TILE(work, "1", THRICE MORE, "", GROUP_32, FINISH_32(SIGN));
}

void neutron_finish_vnni(NeutronTileWork *work, uint32_t registers, int positive) {
    for (; work->next != work->end; work->next += registers, work->to += work->out_pitch) {
        for (uint32_t h = 0; h < registers; ++h) {
            const NeutronRightScale16 scale = {work->even[h], work->odd[h], work->even_add[h], work->odd_add[h],
                                               work->right[h]};
            __m512i x = work->next[h];
            x = positive ? neutron_scale_right16(x, &scale, 1) : neutron_scale_right16(x, &scale, 0);
            x = _mm512_min_epi32(_mm512_max_epi32(x, work->low), work->high);
            _mm_storeu_si128((__m128i *)(void *)(work->to + 16u * h), _mm512_cvtepi32_epi8(x));
        }
    }
}
