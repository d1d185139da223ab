/*
 * test_cpu.c - the CPU kernels against the oracle and against the numerics law, in each instruction set that this
 * machine has.
 *
 * A case makes a whole problem: every operand has an allocation of its own, in which all that is no element is
 * filled with NaN bytes. Above the diagonal dAqk and dAkk are NaN. So what reads where it must not shows in the
 * results, and what writes where it must not shows in the filling.
 */
#include <check.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu.h"
#include "tests/oracle.h"

#define GOAL 2e-6 /* the error that each output may have */

enum {
    GUARD = 128, /* bytes of filling before and behind */
    FILLING = 0xff,
    MAX_SEQUENCES = 8,
};

enum layout {
    CONTIGUOUS,
    GAPS,        /* strides larger than they need be, addresses at odd elements */
    HEADS_FIRST, /* memory as [B, H, T, K] */
    BROADCAST,   /* stride 0 in some dimension of each input */
};

struct shape {
    int64_t B, T, H, HV, K, C;
    enum dtype qk, beta;
    enum layout layout;
    bool in_place;
    double gate;    /* the largest step by which g falls from a row to the next */
    double rise;    /* the largest step by which it rises instead, every third row */
    bool no_incoming;
    int64_t N; /* sequences; their ends follow. 0: no cu_seqlens */
    int64_t ends[MAX_SEQUENCES];
    enum dtype cu;
};

struct fixture {
    struct problem p;
    void *data[OPERAND_COUNT];
    unsigned char *memory[OPERAND_COUNT]; /* NULL where an output is in place */
    size_t bytes[OPERAND_COUNT];
    int64_t cu[MAX_SEQUENCES + 1];
    int32_t cu32[MAX_SEQUENCES + 1];
};

static const enum cpu_isa isas[] = {CPU_ISA_PORTABLE, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_NEON};
enum {
    ISAS = sizeof isas / sizeof isas[0]
};

/* ---------------------------------------------------------------------------------------------- numbers */

static uint64_t seed;

static uint64_t next_bits(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static double uniform(double low, double high) {
    return low + (high - low) * (double)(next_bits() >> 11) * 0x1p-53;
}

static int64_t pick(int64_t low, int64_t high) {
    return low + (int64_t)(next_bits() % (uint64_t)(high - low + 1));
}

static void reseed(uint64_t number) {
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

static void put(const struct fixture *f, enum operand o, int64_t b, int64_t t, int64_t h, int64_t i, float value) {
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

static float get(const struct fixture *f, enum operand o, int64_t b, int64_t t, int64_t h, int64_t i) {
    float value;
    memcpy(&value, element(f, o, b, t, h, i), 4);
    return value;
}

static void dimensions(const struct fixture *f, enum operand o, int64_t shape[4]) {
    if (problem_shape(&f->p, o, shape) == 3)
        shape[3] = 1;
}

/* The row of its chunk that row t is; rows of no sequence count as one more sequence. */
static int64_t row_in_chunk(const struct fixture *f, int64_t t) {
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
        stride[o % 3] = 0;
    const size_t size = dtype_size(problem_dtype(&f->p, o)), extent = problem_extent(&f->p, o);
    f->bytes[o] = extent + 2 * GUARD + 64;
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

static struct fixture make(const struct shape *s) {
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
static void *const *operands(struct fixture *f) {
    if (f->p.N >= 0)
        f->data[OPERAND_CU_SEQLENS] = f->p.cu_dtype == DTYPE_I32 ? (void *)f->cu32 : (void *)f->cu;
    return f->data;
}

static void destroy(struct fixture *f) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        free(f->memory[o]);
}

static void *new_scratch(void) {
    void *scratch = aligned_alloc(64, cpu_scratch_size());
    ck_assert_ptr_nonnull(scratch);
    memset(scratch, FILLING, cpu_scratch_size());
    return scratch;
}

static void run(struct fixture *f) {
    struct cpu_job job;
    char why[PROBLEM_WHY] = "";
    ck_assert_msg(cpu_job_begin(&job, &f->p, operands(f), why), "%s", why);
    void *scratch = new_scratch();
    cpu_job_run(&job, 0, job.items, scratch);
    free(scratch);
    cpu_job_end(&job);
}

/* The four outputs, contiguous. */
struct outputs {
    float *of[4];
    size_t count[4];
};

static struct outputs gather(struct fixture *f, enum operand first) {
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

static void free_outputs(struct outputs *x) {
    for (int i = 0; i < 4; i++)
        free(x->of[i]);
}

static struct outputs run_and_gather(struct fixture *f) {
    run(f);
    return gather(f, OPERAND_DQ_OUT);
}

static void assert_equal(const struct outputs *a, const struct outputs *b) {
    for (int i = 0; i < 4; i++)
        ck_assert_mem_eq(a->of[i], b->of[i], a->count[i] * sizeof(float));
}

/* -------------------------------------------------------------------------------------------- the oracle */

static double worst[4];

static const char *describe(const struct shape *s) {
    static char text[256];
    snprintf(text, sizeof text, "%s B%d T%d H%d HV%d K%d C%d qk %s beta %s layout %d%s gate %g rise %g N %d",
             cpu_isa_name(), (int)s->B, (int)s->T, (int)s->H, (int)s->HV, (int)s->K, (int)s->C, dtype_name(s->qk),
             dtype_name(s->beta), (int)s->layout, s->in_place ? " in place" : "", s->gate, s->rise, (int)s->N);
    return text;
}

/* Runs a case in every instruction set: errors within the goal, and nothing touched but the outputs' elements. */
static void compare(const struct shape *s, uint64_t number) {
    for (int k = 0; k < ISAS; k++) {
        if (!cpu_use_isa(isas[k]))
            continue;
        reseed(number);
        struct fixture f = make(s);
        char why[PROBLEM_WHY];
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
            const double error = oracle_error(out.of[i], oracle_result(&ref, OPERAND_DQ + i), incoming.of[i],
                                              out.count[i]);
            ck_assert_msg(error <= GOAL, "%s: error of %s is %g", describe(s), operand_name(OPERAND_DQ + i), error);
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
            ck_assert_msg(memcmp(before[o], f.memory[o], f.bytes[o]) == 0, "%s: %s: written outside", describe(s),
                          operand_name(o));
            free(before[o]);
        }
        free_outputs(&out);
        free_outputs(&incoming);
        oracle_free(&ref);
        destroy(&f);
    }
}

static void print_worst(const char *of) {
    printf("%s: worst error of dq %.1e, dk %.1e, db %.1e, dg %.1e\n", of, worst[0], worst[1], worst[2], worst[3]);
}

static const struct shape plain = {
    .B = 1, .T = 150, .H = 2, .HV = 2, .K = 40, .C = 64, .qk = DTYPE_BF16, .beta = DTYPE_F32, .gate = 0.2};

static const int64_t chunk_sizes[] = {16, 32, 64, 128};

START_TEST(every_width_and_chunk_size) {
    static const int64_t widths[] = {1, 3, 16, 17, 64, 100, 128, 200, 256};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        for (size_t c = 0; c < 4; c++) {
            struct shape s = plain;
            s.K = widths[i];
            s.C = chunk_sizes[c];
            s.H = s.HV = 1;
            compare(&s, i * 4 + c);
        }
    print_worst("widths and chunk sizes");
}
END_TEST

START_TEST(every_number_of_rows) {
    for (int64_t T = 1; T <= 130; T += T % 16 < 2 || T % 16 == 15 ? 1 : 3)
        for (size_t c = 0; c < 4; c++) {
            struct shape s = plain;
            s.T = T;
            s.C = chunk_sizes[c];
            s.K = 9;
            s.H = s.HV = 1;
            compare(&s, (uint64_t)T);
        }
    print_worst("rows");
}
END_TEST

START_TEST(every_type) {
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    for (uint64_t i = 0; i < 9; i++) {
        struct shape s = plain;
        s.qk = types[i / 3];
        s.beta = types[i % 3];
        compare(&s, i);
    }
    print_worst("types");
}
END_TEST

START_TEST(gates_from_weak_to_strong) {
    static const double times[] = {1e-4, 1e-2, 1, 4, 16, 64, 256, 1000, 5000};
    for (uint64_t i = 0; i < 9; i++)
        for (size_t c = 0; c < 4; c++) {
            struct shape s = plain;
            s.C = chunk_sizes[c];
            s.gate = 0.2 * times[i];
            s.K = 128;
            s.T = 140;
            s.H = s.HV = 1;
            compare(&s, i);
            if (times[i] <= 64) {
                s.no_incoming = true;
                compare(&s, i);
            }
        }
    print_worst("gates");
}
END_TEST

START_TEST(any_strides_and_groups) {
    for (uint64_t i = 0; i < 16; i++) {
        struct shape s = plain;
        s.layout = (enum layout)(i % 4);
        s.in_place = i & 4;
        s.B = 2;
        s.HV = i & 8 ? 6 : 2;
        s.K = i & 8 ? 16 : 37;
        compare(&s, i);
    }
    print_worst("strides");
}
END_TEST

START_TEST(strides_of_single_dimensions_are_ignored) {
    struct shape s = plain;
    s.T = s.H = s.HV = 1;
    reseed(1);
    struct fixture f = make(&s);
    struct outputs expected = run_and_gather(&f);
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++)
        for (int i = 0; i < 3; i++)
            f.p.at[o].stride[i] = INT64_MAX - i;
    run(&f);
    float *dq = f.data[OPERAND_DQ_OUT];
    ck_assert_mem_eq(dq, expected.of[0], (size_t)s.K * sizeof(float));
    free_outputs(&expected);
    destroy(&f);
}
END_TEST

START_TEST(sequences) {
    static const struct shape cases[] = {
        {.N = 5, .ends = {1, 64, 128, 193, 250}},
        {.N = 6, .ends = {0, 0, 100, 100, 250, 250}}, /* empty ones */
        {.N = 3, .ends = {10, 90, 91}},               /* rows that belong to none */
        {.N = 1, .ends = {0}},
        {.N = 0},
    };
    for (uint64_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int variant = 0; variant < 4; variant++) {
            struct shape s = plain;
            s.T = 250;
            s.HV = 4;
            s.N = cases[i].N;
            memcpy(s.ends, cases[i].ends, sizeof s.ends);
            s.cu = variant & 1 ? DTYPE_I32 : DTYPE_I64;
            s.in_place = variant & 2;
            s.layout = variant & 1 ? GAPS : CONTIGUOUS;
            s.C = 32;
            compare(&s, i);
        }
    print_worst("sequences");
}
END_TEST

START_TEST(random_problems) {
    for (uint64_t i = 0; i < 200; i++) {
        reseed(1000 + i);
        struct shape s = {
            .B = pick(1, 2),
            .T = pick(1, 200),
            .H = pick(1, 2),
            .K = pick(1, 8) == 1 ? pick(1, 256) : pick(1, 70),
            .C = chunk_sizes[pick(0, 3)],
            .qk = (enum dtype)pick(DTYPE_BF16, DTYPE_F32),
            .beta = (enum dtype)pick(DTYPE_BF16, DTYPE_F32),
            .layout = (enum layout)pick(0, 3),
            .in_place = pick(0, 1),
            .gate = exp2(uniform(-12, 8)),
            .rise = pick(0, 3) == 0 ? exp2(uniform(-12, 2)) : 0,
        };
        s.HV = s.H * pick(1, 3);
        if (pick(0, 2) == 0) {
            s.B = 1;
            s.cu = pick(0, 1) ? DTYPE_I32 : DTYPE_I64;
            s.N = pick(0, MAX_SEQUENCES);
            for (int64_t n = 0; n < s.N; n++)
                s.ends[n] = pick(n ? s.ends[n - 1] : 0, s.T);
        }
        compare(&s, i);
    }
    print_worst("random problems");
}
END_TEST

/* --------------------------------------------------------------------------------------------- the law */

START_TEST(exponentials) {
    static const struct chunk_kernels *const all[] = {
        &chunk_portable,
#if defined(__x86_64__)
        &chunk_avx2,     &chunk_avx512,
#elif defined(__aarch64__)
        &chunk_neon,
#endif
    };
    for (int k = 0; k < ISAS; k++) {
        if (!cpu_use_isa(isas[k]))
            continue;
        const struct chunk_kernels *kernels = NULL;
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (strcmp(all[i]->name, cpu_isa_name()) == 0)
                kernels = all[i];
        ck_assert_ptr_nonnull(kernels);
        static const float special[] = {0, -0.0F, 1, -INFINITY, INFINITY, NAN, -NAN, 1e30F, -1e30F, 128, -150};
        static const float expected[] = {1, 1, 2, 0, INFINITY, NAN, NAN, INFINITY, 0, INFINITY, 0};
        float got[11];
        kernels->exp2(got, special, 11);
        for (int i = 0; i < 11; i++)
            ck_assert_msg(isnan(expected[i]) ? isnan(got[i]) : got[i] == expected[i], "exp2(%g) is %g", special[i],
                          got[i]);
        for (int n = -125; n < 128; n++) {
            const float x = (float)n;
            kernels->exp2(got, &x, 1);
            ck_assert_msg(got[0] == ldexpf(1, n), "exp2(%d) is %g", n, got[0]);
        }
        double largest = 0;
        for (double at = -125.49; at < 127.99; at += 0.0007) {
            const float x = (float)at;
            kernels->exp2(got, &x, 1);
            const double ref = exp2(x), ulp = ldexp(1, ilogb(ref) - 23);
            largest = fmax(largest, fabs(got[0] - ref) / ulp);
        }
        printf("%s: exp2 is within %.3f units in the last place\n", kernels->name, largest);
        ck_assert(largest < (strcmp(kernels->name, "portable") ? 1 : 1.5));
    }
}
END_TEST

/* Small integers, and gates that halve: everything is exact in float32, in any order of sums. */
START_TEST(exact_results_are_exact) {
    for (size_t c = 0; c < 4; c++) {
        struct shape s = plain;
        s.C = chunk_sizes[c];
        reseed(c);
        for (int k = 0; k < ISAS; k++) {
            if (!cpu_use_isa(isas[k]))
                continue;
            struct fixture f = make(&s);
            for (enum operand o = 0; o <= OPERAND_DG; o++) {
                int64_t n[4];
                dimensions(&f, o, n);
                for (int64_t t = 0; t < n[1]; t++)
                    for (int64_t h = 0; h < n[2]; h++)
                        for (int64_t i = 0; i < n[3]; i++) {
                            const int64_t row = row_in_chunk(&f, t);
                            if ((o != OPERAND_DAQK && o != OPERAND_DAKK) || i <= row)
                                put(&f, o, 0, t, h, i,
                                    o == OPERAND_G ? -(float)(row / (s.C / 8)) : (float)pick(-2, 2));
                        }
            }
            struct oracle ref;
            ck_assert(oracle_run(&ref, &f.p, operands(&f)));
            struct outputs out = run_and_gather(&f);
            for (int i = 0; i < 4; i++)
                for (size_t n = 0; n < out.count[i]; n++)
                    ck_assert(out.of[i][n] == oracle_result(&ref, OPERAND_DQ + i)[n]);
            free_outputs(&out);
            oracle_free(&ref);
            destroy(&f);
        }
    }
}
END_TEST

START_TEST(diagonal_cancels_in_dg) {
    struct shape s = plain;
    s.gate = 40;
    s.no_incoming = true;
    s.qk = DTYPE_F32;
    for (uint64_t i = 0; i < 4; i++) {
        s.C = chunk_sizes[i];
        compare(&s, i);
    }
    print_worst("diagonal");
}
END_TEST

/* Changes row `row` of every input: to `value`, or to other numbers if that is 0. */
static void disturb(struct fixture *f, int64_t row, float value) {
    for (enum operand o = 0; o <= OPERAND_DAKK; o++) {
        int64_t n[4];
        dimensions(f, o, n);
        for (int64_t h = 0; h < n[2]; h++)
            for (int64_t i = 0; i < n[3]; i++)
                put(f, o, 0, row, h, i, value == 0 ? (float)uniform(-30, 30) : value);
    }
}

START_TEST(later_rows_change_nothing) {
    static const float values[] = {0, NAN, INFINITY, -INFINITY, 1e30F};
    static const int64_t rows[] = {1, 15, 16, 31, 32, 63, 64, 77, 100, 127, 128, 149};
    for (int k = 0; k < ISAS; k++)
        for (size_t c = 0; c < 4; c++)
            for (int i = 0; i < 60 && cpu_use_isa(isas[k]); i++) {
                struct shape s = plain;
                s.C = chunk_sizes[c];
                const int64_t row = rows[i / 5];
                reseed(7);
                struct fixture f = make(&s);
                struct outputs before = run_and_gather(&f);
                disturb(&f, row, values[i % 5]);
                struct outputs after = run_and_gather(&f);
                const size_t heads = (size_t)s.HV, width = heads * (size_t)s.K;
                ck_assert_mem_eq(before.of[0], after.of[0], (size_t)row * width * sizeof(float));
                ck_assert_mem_eq(before.of[2], after.of[2], (size_t)row * heads * sizeof(float));
                /* Other chunks do not change at all. */
                const size_t start = (size_t)(row / s.C * s.C);
                ck_assert_mem_eq(before.of[1], after.of[1], start * width * sizeof(float));
                ck_assert_mem_eq(before.of[3], after.of[3], start * width * sizeof(float));
                const size_t end = start + (size_t)s.C;
                for (int o = 0; o < 4 && end < (size_t)s.T; o++) {
                    const size_t at = end * (o == 2 ? heads : width);
                    ck_assert_mem_eq(before.of[o] + at, after.of[o] + at, (before.count[o] - at) * sizeof(float));
                }
                free_outputs(&before);
                free_outputs(&after);
                destroy(&f);
            }
}
END_TEST

/* With a later row of zeros in dA, what it adds to dkt is 0, so dk and dg of earlier rows are the row's own part. */
START_TEST(later_rows_change_no_row_side) {
    for (int k = 0; k < ISAS; k++)
        for (int64_t row = 5; row < 128 && cpu_use_isa(isas[k]); row += 13) {
            struct shape s = plain;
            s.C = 128;
            s.qk = DTYPE_F32;
            struct outputs out[2];
            for (int i = 0; i < 2; i++) {
                reseed(3);
                struct fixture f = make(&s);
                if (i == 1)
                    disturb(&f, row, 0);
                for (int64_t h = 0; h < s.HV; h++)
                    for (int64_t t = row; t < s.C; t++)
                        for (int64_t column = 0; column <= t; column++) {
                            put(&f, OPERAND_DAQK, 0, t, h, column, 0);
                            put(&f, OPERAND_DAKK, 0, t, h, column, 0);
                        }
                out[i] = run_and_gather(&f);
                destroy(&f);
            }
            const size_t floats = (size_t)(row * s.HV * s.K);
            ck_assert_mem_eq(out[0].of[1], out[1].of[1], floats * sizeof(float));
            ck_assert_mem_eq(out[0].of[3], out[1].of[3], floats * sizeof(float));
            free_outputs(&out[0]);
            free_outputs(&out[1]);
        }
}
END_TEST

/* What is not finite in one column of q, k or g stays in its chunk, value head and column (db: chunk and head). */
START_TEST(what_is_not_finite_is_contained) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < ISAS; k++)
        for (int i = 0; i < 72 && cpu_use_isa(isas[k]); i++) {
            const enum operand into = (enum operand[]){OPERAND_Q, OPERAND_K, OPERAND_G, OPERAND_DAKK}[i % 4];
            const int64_t row = 64 + (int64_t[]){0, 1, 17, 32, 40, 63}[i / 4 % 6], column = into == OPERAND_DAKK ? 0 : 9;
            struct shape s = plain;
            s.K = 21;
            reseed(11);
            struct fixture f = make(&s);
            struct outputs before = run_and_gather(&f);
            put(&f, into, 0, row, 1, column, values[i / 24]);
            struct outputs after = run_and_gather(&f);
            bool spoiled = false;
            for (int o = 0; o < 4; o++) {
                const int64_t width = o == 2 ? 1 : s.K;
                for (int64_t n = 0; n < (int64_t)before.count[o]; n++) {
                    const int64_t d = n % width, h = n / width % s.HV, t = n / width / s.HV;
                    const bool mine = t / s.C == row / s.C && h == 1 &&
                                      (o == 2 || d == column || into == OPERAND_DAKK);
                    ck_assert(mine || memcmp(&before.of[o][n], &after.of[o][n], sizeof(float)) == 0);
                    spoiled |= !isfinite(after.of[o][n]);
                }
            }
            ck_assert(spoiled || (into == OPERAND_G && values[i / 24] == -INFINITY));
            free_outputs(&before);
            free_outputs(&after);
            destroy(&f);
        }
}
END_TEST

START_TEST(nothing_above_the_diagonal_matters) {
    for (int k = 0; k < ISAS; k++)
        for (size_t c = 0; c < 4 && cpu_use_isa(isas[k]); c++) {
            struct shape s = plain;
            s.C = chunk_sizes[c];
            reseed(2);
            struct fixture f = make(&s);
            struct outputs with_nan = run_and_gather(&f);
            for (int64_t t = 0; t < s.T; t++)
                for (int64_t h = 0; h < s.HV; h++)
                    for (int64_t i = t % s.C + 1; i < s.C; i++) {
                        put(&f, OPERAND_DAQK, 0, t, h, i, 1e30F);
                        put(&f, OPERAND_DAKK, 0, t, h, i, 3);
                    }
            struct outputs with_numbers = run_and_gather(&f);
            assert_equal(&with_nan, &with_numbers);
            free_outputs(&with_nan);
            free_outputs(&with_numbers);
            destroy(&f);
        }
}
END_TEST

START_TEST(nothing_added_keeps_the_bits) {
    for (int k = 0; k < ISAS; k++) {
        if (!cpu_use_isa(isas[k]))
            continue;
        struct shape s = plain;
        s.K = 19;
        reseed(5);
        struct fixture f = make(&s);
        for (int64_t t = 0; t < s.T; t++)
            for (int64_t h = 0; h < s.HV; h++) {
                for (int64_t i = 0; i <= t % s.C; i++) {
                    put(&f, OPERAND_DAQK, 0, t, h, i, 0);
                    put(&f, OPERAND_DAKK, 0, t, h, i, 0);
                }
                for (enum operand o = OPERAND_DQ; o <= OPERAND_DG; o++)
                    put(&f, o, 0, t, h, 0, t % 2 ? -0.0F : NAN);
            }
        struct outputs incoming = gather(&f, OPERAND_DQ), out = run_and_gather(&f);
        assert_equal(&incoming, &out);
        free_outputs(&incoming);
        free_outputs(&out);
        destroy(&f);
    }
}
END_TEST

/* Gates that rise: through 0 and back up, where one factor is 0 and the other one huge. */
START_TEST(rising_gates) {
    for (uint64_t i = 0; i < 48; i++) {
        struct shape s = plain;
        s.C = chunk_sizes[i % 4];
        s.gate = (double[]){0.2, 1, 40, 90}[i / 4 % 4];
        s.rise = (double[]){1e-3, 0.5, 3}[i / 16];
        compare(&s, i);
    }
    print_worst("rising gates");
}
END_TEST

START_TEST(gates_that_fall_far_and_come_back) {
    for (int k = 0; k < ISAS; k++)
        for (int64_t low = 1; low < 127 && cpu_use_isa(isas[k]); low += 5) {
            struct shape s = plain;
            s.C = 128;
            s.T = 128;
            s.gate = 0.1;
            s.no_incoming = true;
            reseed(4);
            struct fixture f = make(&s);
            struct outputs before = run_and_gather(&f);
            /* Rows low ... low + 3 fall by 200 in column 2, and only these. */
            for (int64_t t = low; t < low + 4 && t < s.T; t++)
                put(&f, OPERAND_G, 0, t, 0, 2, get(&f, OPERAND_G, 0, t, 0, 2) - 200);
            /* And what rises too far for float32 in column 3 must not become a finite number. */
            put(&f, OPERAND_G, 0, low, 0, 3, get(&f, OPERAND_G, 0, low, 0, 3) + 140);
            struct oracle ref;
            ck_assert(oracle_run(&ref, &f.p, operands(&f)));
            struct outputs after = run_and_gather(&f);
            for (int o = 0; o < 4; o++) {
                const double *right = oracle_result(&ref, OPERAND_DQ + o);
                const int64_t width = o == 2 ? 1 : s.K;
                for (int64_t n = 0; n < (int64_t)after.count[o]; n++) {
                    const float got = after.of[o][n];
                    const int64_t d = n % width, h = n / width % s.HV;
                    if (o != 2 && !(h == 0 && (d == 2 || d == 3)))
                        ck_assert(memcmp(&got, &before.of[o][n], sizeof got) == 0);
                    /* Elements of column 2 that the rise to row `low` makes huge overflow float32. */
                    if (isfinite(got))
                        ck_assert_msg(fabs(got - right[n]) <= 1e-4 * (fabs(right[n]) + 1) ||
                                          fabs(right[n]) > 1e20,
                                      "%s low %d: output %d, %d: %g instead of %g", cpu_isa_name(), (int)low, o, (int)n,
                                      got, right[n]);
                    ck_assert(!isfinite(got) || fabs(right[n]) < FLT_MAX);
                }
            }
            free_outputs(&before);
            free_outputs(&after);
            oracle_free(&ref);
            destroy(&f);
        }
}
END_TEST
