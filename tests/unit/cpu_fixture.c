/* cpu_fixture.c - how problems are made, run and compared. */
#include "tests/unit/cpu_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const int64_t chunk_sizes[CHUNK_SIZES] = {16, 32, 64, 128};
const struct shape plain = {
    .B = 1, .T = 150, .H = 2, .HV = 2, .K = 40, .C = 64, .qk = DTYPE_BF16, .beta = DTYPE_F32, .gate = 0.2};

/* ---------------------------------------------------------------------------------------------- numbers */

static uint64_t seed;

static uint64_t next_bits(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

double uniform(double low, double high) {
    return low + (high - low) * (double)(next_bits() >> 11) * 0x1p-53;
}

int64_t pick(int64_t low, int64_t high) {
    return low + (int64_t)(next_bits() % (uint64_t)(high - low + 1));
}

void reseed(uint64_t number) {
    seed = 0x9e3779b97f4a7c15U * (number + 1);
    for (int i = 0; i < 8; i++)
        next_bits();
}

/* ------------------------------------------------------------------------------------------- a problem */

static void *element(const struct fixture *f, enum operand o, int64_t b, int64_t t, int64_t h, int64_t i) {
    const int64_t *stride = f->p.at[o].stride;
    const int64_t at = b * stride[0] + t * stride[1] + h * stride[2] + i;
    return (char *)f->data[o] + at * (int64_t)dtype_size(problem_dtype(&f->p, o));
}

void put(const struct fixture *f, enum operand o, int64_t b, int64_t t, int64_t h, int64_t i, float value) {
    void *at = element(f, o, b, t, h, i);
    switch (problem_dtype(&f->p, o)) {
    case DTYPE_BF16:
        memcpy(at, &(uint16_t){oracle_to_bf16(value)}, 2);
        break;
    case DTYPE_F16:
        memcpy(at, &(uint16_t){oracle_to_f16(value)}, 2);
        break;
    default:
        memcpy(at, &value, 4);
    }
}

float get(const struct fixture *f, enum operand o, int64_t b, int64_t t, int64_t h, int64_t i) {
    float value;
    memcpy(&value, element(f, o, b, t, h, i), 4);
    return value;
}

void dimensions(const struct fixture *f, enum operand o, int64_t shape[4]) {
    if (problem_shape(&f->p, o, shape) == 3)
        shape[3] = 1;
}

/* The row of its chunk that row t is; rows of no sequence count as one more sequence. */
int64_t row_in_chunk(const struct fixture *f, int64_t t) {
    int64_t start = 0;
    for (int64_t i = 1; i <= f->p.N; i++)
        if (f->cu[i] <= t)
            start = f->cu[i];
    return (t - start) % f->p.C;
}

static void place(struct fixture *f, const struct shape *s, enum operand o) {
    const bool output = operand_is_output(o);
    if (output && s->in_place) {
        const enum operand in = (enum operand)(o - OPERAND_DQ_OUT + OPERAND_DQ);
        f->p.at[o] = f->p.at[in];
        f->data[o] = f->data[in];
        return;
    }
    int64_t n[4];
    dimensions(f, o, n);
    struct operand_view *view = &f->p.at[o];
    const int64_t gap = s->layout == GAPS ? 3 : 0;
    int64_t *stride = view->stride;
    if (n[3] == 1 && (o == OPERAND_BETA || o == OPERAND_DB || o == OPERAND_DB_OUT)) {
        stride[2] = 1;
        stride[1] = n[2] + gap;
        stride[0] = n[1] * stride[1] + gap;
    } else if (s->layout == HEADS_FIRST) {
        stride[1] = n[3];
        stride[2] = n[1] * stride[1];
        stride[0] = n[2] * stride[2];
    } else {
        stride[2] = n[3] + gap;
        stride[1] = n[2] * stride[2] + gap;
        stride[0] = n[1] * stride[1] + gap;
    }
    if (s->layout == BROADCAST && !output && !(s->in_place && o >= OPERAND_DQ))
        stride[o % (problem_shape(&f->p, o, n) - 1)] = 0; /* the last dimension is contiguous */
    const size_t size = dtype_size(problem_dtype(&f->p, o)), extent = problem_extent(&f->p, o);
    f->bytes[o] = GUARD + extent + GUARD;
    f->memory[o] = malloc(f->bytes[o]);
    ck_assert_ptr_nonnull(f->memory[o]);
    memset(f->memory[o], FILLING, f->bytes[o]);
    view->allocation = (uint64_t)o + 1;
    view->allocation_size = f->bytes[o];
    view->offset = GUARD + (s->layout == GAPS ? size : 0);
    f->data[o] = f->memory[o] + view->offset;
}

static void fill(struct fixture *f, const struct shape *s, enum operand o) {
    int64_t n[4];
    dimensions(f, o, n);
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[2]; h++)
            for (int64_t t = 0; t < n[1]; t++)
                for (int64_t i = 0; i < n[3]; i++) {
                    const int64_t row = row_in_chunk(f, t);
                    double value = uniform(-1, 1);
                    if (o == OPERAND_G) {
                        value = row % 3 == 2 && s->rise > 0 ? uniform(0, s->rise) : -uniform(0, s->gate);
                        if (row > 0)
                            value += get(f, o, b, t - 1, h, i);
                    }
                    if ((o == OPERAND_DAQK || o == OPERAND_DAKK) && i > row && s->layout != BROADCAST)
                        value = NAN;
                    if (o == OPERAND_BETA)
                        value = uniform(0, 1);
                    if (o >= OPERAND_DQ && s->no_incoming)
                        value = 0;
                    put(f, o, b, t, h, i, (float)value);
                }
}

struct fixture make(const struct shape *s) {
    struct fixture f = {
        .p = {.B = s->B,
              .T = s->T,
              .H = s->H,
              .HV = s->HV,
              .K = s->K,
              .C = s->C,
              .N = s->cu ? s->N : -1,
              .qk_dtype = s->qk,
              .beta_dtype = s->beta,
              .cu_dtype = s->cu ? s->cu : DTYPE_I64},
    };
    for (int64_t i = 0; i < s->N; i++) {
        f.cu[i + 1] = s->ends[i];
        f.cu32[i + 1] = (int32_t)s->ends[i];
    }
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        place(&f, s, o);
        if (!operand_is_output(o))
            fill(&f, s, o);
    }
    return f;
}

/* Its cu_seqlens lies in the fixture itself, so its address is known only now. */
void *const *operands(struct fixture *f) {
    f->p.at[OPERAND_CU_SEQLENS].allocation = OPERAND_COUNT;
    f->p.at[OPERAND_CU_SEQLENS].allocation_size = f->p.cu_dtype == DTYPE_I32 ? sizeof f->cu32 : sizeof f->cu;
    if (f->p.N >= 0)
        f->data[OPERAND_CU_SEQLENS] = f->p.cu_dtype == DTYPE_I32 ? (void *)f->cu32 : (void *)f->cu;
    return f->data;
}

void destroy(struct fixture *f) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        free(f->memory[o]);
}

void *new_scratch(void) {
    void *scratch = aligned_alloc(64, cpu_scratch_size());
    ck_assert_ptr_nonnull(scratch);
    memset(scratch, FILLING, cpu_scratch_size());
    return scratch;
}

void (*fixture_runner)(struct fixture *f);
const char *(*fixture_variant)(int variant);

static const char *name_of_variant = "";

bool use_variant(int variant) {
    static const enum cpu_isa isas[VARIANTS] = {CPU_ISA_PORTABLE, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_NEON};
    const char *name = NULL;
    if (fixture_variant)
        name = fixture_variant(variant);
    else if (fixture_runner)
        name = variant == 0 ? "" : NULL;
    else if (cpu_use_isa(isas[variant]))
        name = cpu_isa_name();
    if (name)
        name_of_variant = name;
    return name != NULL;
}

const char *variant_name(void) {
    return name_of_variant;
}

void run(struct fixture *f) {
    struct cpu_job job;
    char why[PROBLEM_WHY] = "";
    if (fixture_runner) {
        fixture_runner(f);
        return;
    }
    ck_assert_msg(cpu_job_begin(&job, &f->p, operands(f), why), "%s", why);
    void *scratch = new_scratch();
    cpu_job_run(&job, 0, job.items, scratch);
    free(scratch);
    cpu_job_end(&job);
}

struct outputs gather(struct fixture *f, enum operand first) {
    struct outputs x;
    for (int i = 0; i < 4; i++) {
        const enum operand o = (enum operand)((int)first + i);
        x.count[i] = oracle_count(&f->p, o);
        x.of[i] = malloc(x.count[i] * sizeof(float) + 1);
        ck_assert_ptr_nonnull(x.of[i]);
        oracle_gather(x.of[i], &f->p, f->data, o);
    }
    return x;
}

void free_outputs(struct outputs *x) {
    for (int i = 0; i < 4; i++)
        free(x->of[i]);
}

struct outputs run_and_gather(struct fixture *f) {
    run(f);
    return gather(f, OPERAND_DQ_OUT);
}

void assert_equal(const struct outputs *a, const struct outputs *b) {
    for (int i = 0; i < 4; i++)
        ck_assert_mem_eq(a->of[i], b->of[i], a->count[i] * sizeof(float));
}

/* -------------------------------------------------------------------------------------------- the oracle */

static double worst[4];

static const char *describe(const struct shape *s) {
    static char text[256];
    snprintf(text, sizeof text, "%s B%d T%d H%d HV%d K%d C%d qk %s beta %s layout %d%s gate %g rise %g N %d",
             variant_name(), (int)s->B, (int)s->T, (int)s->H, (int)s->HV, (int)s->K, (int)s->C,
             dtype_name(s->qk), dtype_name(s->beta), (int)s->layout, s->in_place ? " in place" : "", s->gate,
             s->rise, (int)s->N);
    return text;
}

/* Runs a case in every variant: errors within the goal, and nothing touched but the outputs'
 * elements. */
void compare(const struct shape *s, uint64_t number) {
    for (int k = 0; k < VARIANTS; k++) {
        if (!use_variant(k))
            continue;
        reseed(number);
        struct fixture f = make(s);
        char why[PROBLEM_WHY];
        operands(&f);
        ck_assert_msg(problem_check(&f.p, why), "%s: %s", describe(s), why);
        struct oracle ref;
        ck_assert(oracle_run(&ref, &f.p, operands(&f)));
        struct outputs incoming = gather(&f, OPERAND_DQ);
        unsigned char *before[OPERAND_COUNT] = {0};
        for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++)
            if (f.memory[o]) {
                before[o] = malloc(f.bytes[o]);
                ck_assert_ptr_nonnull(before[o]);
                memcpy(before[o], f.memory[o], f.bytes[o]);
            }
        struct outputs out = run_and_gather(&f);
        for (int i = 0; i < 4; i++) {
            const double error =
                oracle_error(out.of[i], oracle_result(&ref, OPERAND_DQ + i), incoming.of[i], out.count[i]);
            ck_assert_msg(error <= GOAL, "%s: error of %s is %g", describe(s), operand_name(OPERAND_DQ + i),
                          error);
            if (error > worst[i])
                worst[i] = error;
        }
        for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
            if (!f.memory[o])
                continue;
            int64_t n[4];
            dimensions(&f, o, n);
            if (operand_is_output(o) || (s->in_place && o >= OPERAND_DQ)) {
                for (int64_t b = 0; b < n[0]; b++)
                    for (int64_t t = 0; t < n[1]; t++)
                        for (int64_t h = 0; h < n[2]; h++) {
                            const char *at = element(&f, o, b, t, h, 0);
                            memcpy(before[o] + (at - (char *)f.memory[o]), at, (size_t)n[3] * 4);
                        }
            }
            ck_assert_msg(memcmp(before[o], f.memory[o], f.bytes[o]) == 0, "%s: %s: written outside",
                          describe(s), operand_name(o));
            free(before[o]);
        }
        free_outputs(&out);
        free_outputs(&incoming);
        oracle_free(&ref);
        destroy(&f);
    }
}

void print_worst(const char *of) {
    printf("%s: worst error of dq %.1e, dk %.1e, db %.1e, dg %.1e\n", of, worst[0], worst[1], worst[2],
           worst[3]);
}

int run_suite(const char *name, const TTest *const tests[], size_t count) {
    Suite *suite = suite_create(name);
    TCase *all = tcase_create(name);
    tcase_set_timeout(all, 600);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(all, tests[i]);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
