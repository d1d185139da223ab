#include "tests/socket/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_MAX 2e-6
#define GAP 0x5a

const struct sample_shape sample_tiny = {1, 1, 1, 1, 16, 16, -1, KDAD_F32, KDAD_F32, KDAD_I64};
const struct sample_shape sample_small = {2, 75, 2, 4, 40, 32, -1, KDAD_BF16, KDAD_F32, KDAD_I64};
const struct sample_shape sample_large = {1, 2048, 1, 4, 128, 64, -1, KDAD_F32, KDAD_F32, KDAD_I64};

void ck_sentence(const char *part) {
    ck_assert_msg(strstr(kdad_error(), part) != NULL, "'%s' is not in the sentence '%s'", part, kdad_error());
}

static double uniform(uint32_t *state) {
    *state = *state * 1664525 + 1013904223;
    return (double)(*state >> 8) / (1 << 24);
}

static struct kdad_tensor *field(struct sample *s, enum operand o) {
    struct kdad_chunk_kda_bwd_intra_args *a = &s->args;
    struct kdad_tensor *const fields[OPERAND_COUNT] = {
        &a->q,  &a->k,  &a->g,      &a->beta,   &a->dAqk,   &a->dAkk,   &a->dq,        &a->dk,
        &a->db, &a->dg, &a->dq_out, &a->dk_out, &a->db_out, &a->dg_out, &a->cu_seqlens};
    return fields[o];
}

/* Sizes, types and contiguous strides of the problem; each operand is an allocation of its own. */
static void make_problem(struct problem *p, const struct sample_shape *shape) {
    *p = (struct problem){.B = shape->B,
                          .T = shape->T,
                          .H = shape->H,
                          .HV = shape->HV,
                          .K = shape->K,
                          .C = shape->C,
                          .N = shape->N,
                          .qk_dtype = (enum dtype)shape->qk,
                          .beta_dtype = (enum dtype)shape->beta,
                          .cu_dtype = (enum dtype)shape->cu};
}

/* Strides of an operand: contiguous, or as flags say. Returns the elements that its memory must have. */
static size_t lay_out(struct problem *p, enum operand o, int flags) {
    int64_t shape[4], *stride = p->at[o].stride;
    int ndim = problem_shape(p, o, shape);
    stride[0] = stride[1] = stride[2] = 1;
    if (ndim == 1)
        return (size_t)shape[0];
    int64_t width = ndim == 4 ? shape[3] : 1;
    if (!(flags & SAMPLE_STRIDED) || ndim == 3) {
        int64_t gap = flags & SAMPLE_STRIDED ? 3 : 0; /* heads must stay contiguous in three dimensions */
        if (ndim == 4)
            stride[2] = width;
        stride[1] = shape[2] * width + gap;
        stride[0] = shape[1] * stride[1] + gap;
    } else {
        stride[1] = width + 5;
        stride[2] = shape[1] * stride[1] + 2;
        stride[0] = shape[2] * stride[2] + 7;
    }
    size_t count = (size_t)(shape[0] * stride[0]);
    if ((flags & SAMPLE_EXPANDED) && (o == OPERAND_Q || o == OPERAND_BETA))
        stride[1] = 0;
    return count;
}

static void put(char *at, enum dtype type, double value) {
    float single = (float)value;
    uint16_t half = type == DTYPE_BF16 ? oracle_to_bf16(single) : oracle_to_f16(single);
    if (type == DTYPE_F32)
        memcpy(at, &single, sizeof single);
    else
        memcpy(at, &half, sizeof half);
}

/* Gates fall along the rows, in all of the tensor: then they do in each chunk, wherever it starts. */
static double value_of(enum operand o, int64_t row, int64_t column, uint32_t *state) {
    double u = uniform(state);
    switch (o) {
    case OPERAND_G:
        return -(double)row * (0.02 + 0.001 * (double)(column % 7)) - 0.01 * u;
    case OPERAND_BETA:
        return u;
    default:
        return 2 * u - 1;
    }
}

/* Calls for each element: its place, row and column. */
static void fill(const struct sample *s, enum operand o, uint32_t *state) {
    const struct problem *p = &s->problem;
    const int64_t *stride = p->at[o].stride;
    size_t size = dtype_size(problem_dtype(p, o));
    int64_t shape[4];
    int ndim = problem_shape(p, o, shape);
    int64_t width = ndim == 4 ? shape[3] : 1;
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t t = 0; t < shape[1]; t++)
            for (int64_t h = 0; h < shape[2]; h++)
                for (int64_t i = 0; i < width; i++) {
                    int64_t at = b * stride[0] + t * stride[1] + h * stride[2] + i;
                    put((char *)s->data[o] + at * (int64_t)size, problem_dtype(p, o),
                        value_of(o, t, i, state));
                }
}

/* Sequences of about equal length; the last few rows belong to none. */
static void fill_seqlens(const struct sample *s, int flags) {
    const struct problem *p = &s->problem;
    int64_t rows = p->T - p->T / 10;
    for (int64_t i = 0; i <= p->N; i++) {
        int64_t at = p->N > 0 ? rows * i / p->N : 0;
        if ((flags & SAMPLE_BAD_SEQLENS) && i == p->N)
            at = p->T + 1;
        if (p->cu_dtype == DTYPE_I64)
            ((int64_t *)s->data[OPERAND_CU_SEQLENS])[i] = at;
        else
            ((int32_t *)s->data[OPERAND_CU_SEQLENS])[i] = (int32_t)at;
    }
}

static void make_tensor(struct sample *s, enum operand o) {
    struct kdad_tensor *t = field(s, o);
    t->data = s->data[o];
    t->dtype = (kdad_dtype)problem_dtype(&s->problem, o);
    t->ndim = problem_shape(&s->problem, o, t->shape);
    for (int i = 0; i < t->ndim; i++)
        t->stride[i] = i + 1 < t->ndim ? s->problem.at[o].stride[i] : 1;
}

static void make_operand(struct sample *s, enum operand o, int flags, uint32_t *state) {
    s->bytes[o] = lay_out(&s->problem, o, flags) * dtype_size(problem_dtype(&s->problem, o));
    s->block[o] = s->plain & 1u << o ? malloc(s->bytes[o] + 1) : kdad_alloc(s->connection, s->bytes[o]);
    ck_assert_msg(s->block[o] != NULL, "%s", kdad_error());
    s->data[o] = s->block[o];
    memset(s->block[o], GAP, s->bytes[o]);
    if (o == OPERAND_CU_SEQLENS)
        fill_seqlens(s, flags);
    else
        fill(s, o, state);
    make_tensor(s, o);
}

static void save_outputs(struct sample *s) {
    for (int i = 0; i < 4; i++) {
        enum operand in = OPERAND_DQ + i, out = OPERAND_DQ_OUT + i;
        s->incoming[i] = malloc(oracle_count(&s->problem, in) * sizeof(float) + 1);
        oracle_gather(s->incoming[i], &s->problem, s->data, in);
        s->saved[out] = malloc(s->bytes[out] + 1);
        memcpy(s->saved[out], s->block[out], s->bytes[out]);
    }
}

void sample_make(struct sample *s, const struct sample_shape *shape, struct kdad_connection *connection,
                 uint32_t plain, int flags, uint32_t seed) {
    *s = (struct sample){.connection = connection, .plain = plain};
    make_problem(&s->problem, shape);
    s->args.chunk_size = shape->C;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        enum operand in = o - (OPERAND_DQ_OUT - OPERAND_DQ);
        if (!problem_has(&s->problem, o))
            continue;
        if (operand_is_output(o) && (flags & SAMPLE_IN_PLACE)) {
            s->problem.at[o] = s->problem.at[in];
            s->data[o] = s->data[in];
            s->block[o] = s->block[in];
            s->bytes[o] = s->bytes[in];
        } else {
            make_operand(s, o, flags, &seed);
        }
    }
    save_outputs(s);
    if (!(flags & (SAMPLE_BAD_SEQLENS | SAMPLE_UNCHECKED)))
        ck_assert(oracle_run(&s->want, &s->problem, s->data));
}

void sample_free(struct sample *s) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        bool shared = operand_is_output(o) && s->block[o] == s->block[o - (OPERAND_DQ_OUT - OPERAND_DQ)];
        free(s->saved[o]);
        if (shared)
            continue;
        if (s->plain & 1u << o)
            free(s->block[o]);
        else
            kdad_free(s->connection, s->block[o]);
    }
    for (int i = 0; i < 4; i++)
        free(s->incoming[i]);
    oracle_free(&s->want);
}

/* The block with its elements put back must be what it was. */
static void check_gaps(const struct sample *s, enum operand o) {
    const struct problem *p = &s->problem;
    const int64_t *stride = p->at[o].stride;
    int64_t shape[4];
    int ndim = problem_shape(p, o, shape);
    int64_t width = ndim == 4 ? shape[3] : 1;
    char *copy = malloc(s->bytes[o] + 1);
    float *saved = malloc(oracle_count(p, o) * sizeof *saved + 1);
    void *views[OPERAND_COUNT] = {0};
    memcpy(copy, s->block[o], s->bytes[o]);
    views[o] = s->saved[o];
    oracle_gather(saved, p, views, o);
    size_t n = 0;
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t t = 0; t < shape[1]; t++)
            for (int64_t h = 0; h < shape[2]; h++)
                for (int64_t i = 0; i < width; i++)
                    memcpy(copy + (b * stride[0] + t * stride[1] + h * stride[2] + i) * 4, &saved[n++], 4);
    ck_assert_msg(memcmp(copy, s->saved[o], s->bytes[o]) == 0, "%s: bytes between its elements changed",
                  operand_name(o));
    free(saved);
    free(copy);
}

void sample_check(const struct sample *s) {
    for (int i = 0; i < 4; i++) {
        enum operand o = OPERAND_DQ_OUT + i;
        size_t n = oracle_count(&s->problem, o);
        float *out = malloc(n * sizeof *out + 1);
        oracle_gather(out, &s->problem, s->data, o);
        double error = oracle_error(out, oracle_result(&s->want, o), s->incoming[i], n);
        ck_assert_msg(error <= ERROR_MAX, "%s: error is %g", operand_name(o), error);
        free(out);
        check_gaps(s, o);
    }
}

void sample_check_untouched(const struct sample *s) {
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
        ck_assert_msg(memcmp(s->block[o], s->saved[o], s->bytes[o]) == 0, "%s: has changed", operand_name(o));
}
