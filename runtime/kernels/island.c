/* ISLAND: a float32 expression of int8 (and float32) tensors, element by element, with broadcasting; written as
 * float32 or quantized. What is float lives in eight registers of a few elements each: no float tensor exists.
 *
 * With a reduction, the innermost `reduced` dims are reduced to one value in their order: a sum from 0, a maximum from
 * the smallest number (or, of all elements, from the first), as LiteRT's reference kernels do it.
 */
#include <float.h>

#include "float32.h"
#include "kernel.h"

#define LANES 32u
#define INNER (NEUTRON_MAX_RANK - 1u)
#define STEPS 255u

static_assert(offsetof(NeutronIslandParams, f) - offsetof(NeutronIslandParams, a) ==
                  (NEUTRON_ISLAND_OPERANDS - 1u) * sizeof(NeutronOperand),
              "the operands are an array");

static const NeutronOperand *operands_of(const NeutronIslandParams *p) { return &p->a; }

static const NeutronInstruction *code_of(const NeutronIslandParams *p) {
    return (const NeutronInstruction *)(const void *)(p + 1);
}

static bool is_finite(float x) { return x >= -FLT_MAX && x <= FLT_MAX; }

static int32_t check_operand(const NeutronMachine *machine, const NeutronOperand *o,
                             const uint32_t dims[NEUTRON_MAX_RANK]) {
    NEUTRON_REQUIRE(o->ref.rows == 0);
    if (o->form == NEUTRON_OPERAND_TABLE) {
        NEUTRON_TRY(neutron_check_bytes(machine, o->table, 256u * sizeof(float), sizeof(float), NEUTRON_READ));
    }
    uint32_t bytes = o->form == NEUTRON_OPERAND_FLOAT ? sizeof(float) : 1u;
    return neutron_check_strided(machine, o->ref, dims, o->strides, bytes, NEUTRON_READ);
}

/* Every instruction reads registers that have been written, and operands there are. */
static int32_t check_code(const NeutronIslandParams *p) {
    const NeutronInstruction *code = code_of(p);
    uint32_t written = 0;
    for (uint32_t i = 0; i < p->count; ++i) {
        const NeutronInstruction *c = &code[i];
        NEUTRON_REQUIRE(c->op <= NEUTRON_OP_SELECT && c->to < NEUTRON_ISLAND_REGISTERS);
        if (c->op == NEUTRON_OP_LOAD) {
            NEUTRON_REQUIRE(c->a < p->operands);
        } else if (c->op != NEUTRON_OP_CONSTANT) {
            NEUTRON_REQUIRE(c->a < NEUTRON_ISLAND_REGISTERS && (written >> c->a & 1u));
            NEUTRON_REQUIRE(c->b < NEUTRON_ISLAND_REGISTERS && (written >> c->b & 1u));
            NEUTRON_REQUIRE(c->op != NEUTRON_OP_SELECT || (written >> c->to & 1u));
        }
        written |= 1u << c->to;
    }
    return NEUTRON_STATUS_OK;
}

static int32_t check(const NeutronMachine *machine, const NeutronIslandParams *p) {
    uint32_t size =
        *(const uint32_t *)(const void *)((const uint8_t *)p - 4) >> 16; /* the driver knows: it is all there */
    NEUTRON_REQUIRE(p->count == (size - neutron_record_bytes[NEUTRON_KERNEL_ISLAND]) / sizeof(NeutronInstruction));
    NEUTRON_REQUIRE(p->result != NEUTRON_RESULT_INT8 || (p->scale > 0.0f && is_finite(p->scale)));
    NEUTRON_REQUIRE(is_finite(p->divisor));
    NEUTRON_REQUIRE((p->reduction == NEUTRON_REDUCE_NONE) == (p->reduced == 0));
    uint64_t elements = neutron_elements(p->dims);
    NEUTRON_REQUIRE(elements <= NEUTRON_ISLAND_ELEMENTS);
    uint32_t kept[NEUTRON_MAX_RANK];
    for (uint32_t d = 0; d < NEUTRON_MAX_RANK; ++d) {
        bool reduced = d + p->reduced >= NEUTRON_MAX_RANK;
        NEUTRON_REQUIRE(!reduced || p->output_strides[d] == 0);
        kept[d] = reduced ? 1u : p->dims[d];
    }
    for (uint32_t i = 0; i < p->operands; ++i) NEUTRON_TRY(check_operand(machine, &operands_of(p)[i], p->dims));
    if (p->result == NEUTRON_RESULT_STEPS) {
        NEUTRON_TRY(neutron_check_bytes(machine, p->steps, STEPS * sizeof(float), sizeof(float), NEUTRON_READ));
    }
    uint32_t bytes = p->result == NEUTRON_RESULT_FLOAT ? sizeof(float) : 1u;
    NEUTRON_REQUIRE(p->output.rows == 0);
    NEUTRON_TRY(neutron_check_strided(machine, p->output, kept, p->output_strides, bytes, NEUTRON_WRITE));
    neutron_count(machine, elements, (uint64_t)p->count * NEUTRON_ELEMENT_WORK);
    return check_code(p);
}

/* A buffer of the caller's need not be aligned for floats where the microcode says that there are some. */
static float read_float(const uint8_t *at) {
    float x;
    memcpy(&x, at, sizeof x);
    return x;
}

static void load(const NeutronMachine *machine, const NeutronOperand *o, const uint8_t *at, uint32_t count, float *to) {
    ptrdiff_t stride = o->strides[INNER];
    if (stride == 0 && count > 1) { /* one value for the whole row */
        load(machine, o, at, 1, to);
        for (uint32_t i = 1; i < count; ++i) to[i] = to[0];
        return;
    }
    switch (o->form) {
        case NEUTRON_OPERAND_FLOAT:
            for (uint32_t i = 0; i < count; ++i) to[i] = read_float(at + (ptrdiff_t)i * stride);
            return;
        case NEUTRON_OPERAND_INT8:
            for (uint32_t i = 0; i < count; ++i) {
                to[i] = o->scale * (float)((int8_t)at[(ptrdiff_t)i * stride] - o->zero);
            }
            return;
        default: {
            const uint8_t *table = neutron_read(machine, o->table);
            for (uint32_t i = 0; i < count; ++i) {
                to[i] = read_float(table + at[(ptrdiff_t)i * stride] * sizeof(float));
            }
        }
    }
}

/* As LiteRT's arithmetic with no activation, which is a clamp to all finite numbers. */
static float finite(float x) { return x < -FLT_MAX ? -FLT_MAX : x > FLT_MAX ? FLT_MAX : x; }

static float sign_of(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : x; }

#define EACH(expression)                                       \
    for (uint32_t i = 0; i < count; ++i) to[i] = (expression); \
    return

static void compute(uint32_t op, float *to, const float *a, const float *b, uint32_t count) {
    switch (op) {
        case NEUTRON_OP_ADD: EACH(finite(a[i] + b[i]));
        case NEUTRON_OP_SUB: EACH(finite(a[i] - b[i]));
        case NEUTRON_OP_MUL: EACH(finite(a[i] * b[i]));
        case NEUTRON_OP_DIV: EACH(finite(a[i] / b[i]));
        case NEUTRON_OP_MAXIMUM: EACH(a[i] > b[i] ? a[i] : b[i]);
        case NEUTRON_OP_MINIMUM: EACH(a[i] < b[i] ? a[i] : b[i]);
        case NEUTRON_OP_SQUARED_DIFFERENCE: EACH((a[i] - b[i]) * (a[i] - b[i]));
        case NEUTRON_OP_SQUARE: EACH(a[i] * a[i]);
        case NEUTRON_OP_SQRT: EACH(neutron_sqrt(a[i]));
        case NEUTRON_OP_RSQRT: EACH(1.0f / neutron_sqrt(a[i]));
        case NEUTRON_OP_ABS: EACH(a[i] < 0.0f ? -a[i] : a[i] + 0.0f);
        case NEUTRON_OP_NEG: EACH(-a[i]);
        case NEUTRON_OP_FLOOR: EACH(neutron_floor(a[i]));
        case NEUTRON_OP_SIGN: EACH(sign_of(a[i]));
        case NEUTRON_OP_LESS: EACH(a[i] < b[i] ? 1.0f : 0.0f);
        case NEUTRON_OP_LESS_EQUAL: EACH(a[i] <= b[i] ? 1.0f : 0.0f);
        case NEUTRON_OP_EQUAL: EACH(a[i] == b[i] ? 1.0f : 0.0f);
        case NEUTRON_OP_NOT_EQUAL: EACH(a[i] != b[i] ? 1.0f : 0.0f);
        case NEUTRON_OP_AND: EACH(a[i] != 0.0f && b[i] != 0.0f ? 1.0f : 0.0f);
        case NEUTRON_OP_OR: EACH(a[i] != 0.0f || b[i] != 0.0f ? 1.0f : 0.0f);
        case NEUTRON_OP_NOT: EACH(a[i] != 0.0f ? 0.0f : 1.0f);
        case NEUTRON_OP_SELECT: EACH(to[i] != 0.0f ? a[i] : b[i]);
        default: return;
    }
}

/* -128 + how many steps are at most x. The steps come from WEIGHTS: whatever they hold, the place found is one of 256. */
static int8_t step_of(const uint8_t *steps, float x) {
    uint32_t low = 0;
    for (uint32_t half = 128u; half != 0; half >>= 1) {
        if (read_float(steps + (low + half - 1u) * sizeof(float)) <= x) low += half;
    }
    return (int8_t)((int32_t)low - 128);
}

static void store(const NeutronMachine *machine, const NeutronIslandParams *p, uint8_t *out, const float *values,
                  uint32_t count) {
    ptrdiff_t stride = p->reduction == NEUTRON_REDUCE_NONE ? p->output_strides[INNER] : 0;
    for (uint32_t i = 0; i < count; ++i) {
        uint8_t *to = out + (ptrdiff_t)i * stride;
        if (p->result == NEUTRON_RESULT_FLOAT) {
            memcpy(to, &values[i], sizeof values[i]);
        } else if (p->result == NEUTRON_RESULT_INT8) {
            *(int8_t *)to = (int8_t)neutron_quantize_float(values[i], p->scale, p->zero);
        } else {
            float x = values[i];
            *(int8_t *)to = x == x ? step_of(neutron_read(machine, p->steps), x) : (int8_t)p->zero;
        }
    }
}

static float first_of(uint32_t reduction) {
    return reduction == NEUTRON_REDUCE_SUM ? 0.0f : reduction == NEUTRON_REDUCE_MAXIMUM ? -FLT_MAX : FLT_MAX;
}

static bool from_first(uint32_t reduction) {
    return reduction == NEUTRON_REDUCE_MAXIMUM_OF_ALL || reduction == NEUTRON_REDUCE_MINIMUM_OF_ALL;
}

static bool is_maximum(uint32_t reduction) {
    return reduction == NEUTRON_REDUCE_MAXIMUM || reduction == NEUTRON_REDUCE_MAXIMUM_OF_ALL;
}

static float reduce(uint32_t reduction, float so_far, const float *values, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
        float x = values[i];
        if (reduction == NEUTRON_REDUCE_SUM) {
            so_far += x;
        } else if (is_maximum(reduction) ? x > so_far : x < so_far) {
            so_far = x;
        }
    }
    return so_far;
}

/* Whether all indices of the reduced dims but the innermost are 0 (`last` false) or at their end (true). */
static bool at_edge(const NeutronIslandParams *p, const uint32_t index[NEUTRON_MAX_RANK], bool last) {
    for (uint32_t d = NEUTRON_MAX_RANK - p->reduced; d < INNER; ++d) {
        if (index[d] != (last ? p->dims[d] - 1u : 0u)) return false;
    }
    return true;
}

static int32_t run(const NeutronMachine *machine, const NeutronIslandParams *p) {
    float registers[NEUTRON_ISLAND_REGISTERS][LANES];
    const NeutronOperand *operands = operands_of(p);
    const NeutronInstruction *code = code_of(p);
    const float *result = registers[code[p->count - 1u].to];
    const uint8_t *sources[NEUTRON_ISLAND_OPERANDS];
    for (uint32_t k = 0; k < p->operands; ++k) sources[k] = neutron_read(machine, operands[k].ref);
    uint8_t *out = neutron_write(machine, p->output);
    uint32_t index[NEUTRON_MAX_RANK] = {0};
    float so_far = first_of(p->reduction);
    do {
        NEUTRON_TRY(neutron_check_stop(machine));
        uint8_t *row = out + neutron_offset(index, p->output_strides, INNER);
        if (p->reduction != NEUTRON_REDUCE_NONE && at_edge(p, index, false)) so_far = first_of(p->reduction);
        for (uint32_t x = 0; x < p->dims[INNER]; x += LANES) {
            uint32_t count = p->dims[INNER] - x < LANES ? p->dims[INNER] - x : LANES;
            for (uint32_t i = 0; i < p->count; ++i) {
                const NeutronInstruction *c = &code[i];
                float *to = registers[c->to];
                if (c->op == NEUTRON_OP_LOAD) {
                    const NeutronOperand *o = &operands[c->a];
                    ptrdiff_t at = neutron_offset(index, o->strides, INNER) + (ptrdiff_t)x * o->strides[INNER];
                    load(machine, o, sources[c->a] + at, count, to);
                } else if (c->op == NEUTRON_OP_CONSTANT) {
                    for (uint32_t lane = 0; lane < count; ++lane) to[lane] = c->value;
                } else {
                    compute(c->op, to, registers[c->a], registers[c->b], count);
                }
            }
            if (p->reduction != NEUTRON_REDUCE_NONE) {
                if (x == 0 && from_first(p->reduction) && at_edge(p, index, false)) so_far = result[0];
                so_far = reduce(p->reduction, so_far, result, count);
            } else {
                store(machine, p, row + (ptrdiff_t)x * p->output_strides[INNER], result, count);
            }
        }
        if (p->reduction != NEUTRON_REDUCE_NONE && at_edge(p, index, true)) {
            float value = p->reduction == NEUTRON_REDUCE_SUM && p->divisor != 1.0f ? so_far / p->divisor : so_far;
            store(machine, p, row, &value, 1);
        }
    } while (neutron_next(index, p->dims, INNER));
    return NEUTRON_STATUS_OK;
}

NEUTRON_KERNEL(neutron_island, NeutronIslandParams, check, run)
