/* test_cpu.c - the CPU kernels against the oracle, and jobs: items, threads, sequences, refusals. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cpu_fixture.h"

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

/* A number from the environment. */
static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 0) : otherwise;
}

/* The same problems in each run, unless the environment says which and how many. */
START_TEST(random_problems) {
    uint64_t seed = setting("KDAD_TEST_SEED", 1000);
    uint64_t count = setting("KDAD_TEST_COUNT", 200);
    printf("random problems: KDAD_TEST_SEED=%llu KDAD_TEST_COUNT=%llu\n", (unsigned long long)seed,
           (unsigned long long)count);
    fflush(stdout);
    for (uint64_t i = 0; i < count; i++) {
        reseed(seed + i);
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
        compare(&s, seed + i);
    }
    print_worst("random problems");
}
END_TEST

/* ------------------------------------------------------------------------------------------------ jobs */

static struct shape many_items(void) {
    struct shape s = plain;
    s.T = 300;
    s.C = 32;
    s.HV = 4;
    s.cu = DTYPE_I64;
    s.N = 4;
    memcpy(s.ends, (int64_t[]){33, 33, 190, 201}, 4 * sizeof(int64_t));
    return s;
}

struct part {
    const struct cpu_job *job;
    int64_t first, step;
};

/* Every step-th item, last to first, with scratch memory that other items have left their numbers in. */
static void *run_part(void *arg) {
    const struct part *part = arg;
    void *scratch = new_scratch();
    int64_t item = part->first;
    while (item + part->step < part->job->items)
        item += part->step;
    for (; item >= 0; item -= part->step)
        cpu_job_run(part->job, item, 1, scratch);
    free(scratch);
    return NULL;
}

START_TEST(items_run_in_any_order_by_any_thread) {
    for (int k = 0; k < VARIANTS; k++)
        for (int threads = 1; threads <= 4 && use_variant(k); threads++) {
            const struct shape s = many_items();
            reseed(8);
            struct fixture f = make(&s);
            struct outputs expected = run_and_gather(&f);
            for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
                memset(f.memory[o], 0, f.bytes[o]);
            struct cpu_job job;
            char why[PROBLEM_WHY];
            ck_assert(cpu_job_begin(&job, &f.p, operands(&f), why));
            memset(f.cu, FILLING, sizeof f.cu); /* the job has its own copy */
            pthread_t thread[4];
            struct part part[4];
            for (int i = 0; i < threads; i++) {
                part[i] = (struct part){&job, i, threads};
                ck_assert_int_eq(pthread_create(&thread[i], NULL, run_part, &part[i]), 0);
            }
            for (int i = 0; i < threads; i++)
                pthread_join(thread[i], NULL);
            cpu_job_end(&job);
            struct outputs out = gather(&f, OPERAND_DQ_OUT);
            assert_equal(&expected, &out);
            free_outputs(&expected);
            free_outputs(&out);
            destroy(&f);
        }
}
END_TEST

START_TEST(in_place_or_not_is_the_same) {
    for (int k = 0; k < VARIANTS; k++)
        for (int large = 0; large < 2 && use_variant(k); large++) {
            struct shape s = many_items();
            if (large) { /* outputs past the caches */
                s = plain;
                s.T = 2800;
                s.K = 128;
            }
            struct outputs out[2];
            for (int i = 0; i < 2; i++) {
                s.in_place = i;
                reseed(9);
                struct fixture f = make(&s);
                if (i == 0 && large) /* whole lines, as large tensors have them */
                    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
                        f.data[o] = f.memory[o] + (64 - (uintptr_t)f.memory[o] % 64) % 64;
                out[i] = run_and_gather(&f);
                destroy(&f);
            }
            assert_equal(&out[0], &out[1]);
            free_outputs(&out[0]);
            free_outputs(&out[1]);
        }
}
END_TEST

START_TEST(bad_sequences_are_refused) {
    static const struct {
        int64_t first, ends[3];
        const char *sentence;
    } cases[] = {
        {1, {10, 20, 30}, "cu_seqlens: starts at 1, but must start at 0"},
        {-1, {10, 20, 30}, "cu_seqlens: starts at -1, but must start at 0"},
        {0, {10, 9, 30}, "cu_seqlens: falls from 10 to 9 at 2, but must not fall"},
        {0, {-5, 9, 30}, "cu_seqlens: falls from 0 to -5 at 1, but must not fall"},
        {0, {10, 20, 151}, "cu_seqlens: is 151 at 3, but must be at most T, which is 150"},
        {0, {151, 151, 151}, "cu_seqlens: is 151 at 1, but must be at most T, which is 150"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int wide = 0; wide < 2; wide++) {
            struct shape s = plain;
            s.N = 3;
            s.cu = wide ? DTYPE_I64 : DTYPE_I32;
            reseed(i);
            struct fixture f = make(&s);
            for (int n = 0; n < 4; n++) {
                f.cu[n] = n ? cases[i].ends[n - 1] : cases[i].first;
                f.cu32[n] = (int32_t)f.cu[n];
            }
            struct cpu_job job;
            char why[PROBLEM_WHY] = "";
            ck_assert(!cpu_job_begin(&job, &f.p, operands(&f), why));
            ck_assert_str_eq(why, cases[i].sentence);
            cpu_job_copy_through(&f.p, f.data);
            struct outputs incoming = gather(&f, OPERAND_DQ), out = gather(&f, OPERAND_DQ_OUT);
            assert_equal(&incoming, &out);
            free_outputs(&incoming);
            free_outputs(&out);
            destroy(&f);
        }
}
END_TEST

START_TEST(empty_jobs_need_no_memory) {
    for (int i = 0; i < 4; i++) {
        struct problem p = {.B = 1,
                            .T = 64,
                            .H = 1,
                            .HV = 1,
                            .K = 16,
                            .C = 64,
                            .N = i == 3 ? 0 : -1,
                            .qk_dtype = DTYPE_BF16,
                            .beta_dtype = DTYPE_F32,
                            .cu_dtype = DTYPE_I64};
        void *data[OPERAND_COUNT] = {0};
        *(int64_t *[]){&p.B, &p.T, &p.HV, &p.T}[i] = 0;
        struct cpu_job job;
        char why[PROBLEM_WHY];
        ck_assert(cpu_job_begin(&job, &p, data, why));
        ck_assert_int_eq(job.items, 0);
        void *scratch = new_scratch();
        cpu_job_run(&job, 0, job.items, scratch);
        free(scratch);
        cpu_job_end(&job);
        cpu_job_copy_through(&p, data);
    }
}
END_TEST

START_TEST(costs_grow_with_the_work) {
    int64_t before = 0;
    for (int64_t K = 16; K <= 256; K *= 2)
        for (size_t c = 0; c < 4; c++) {
            const struct problem p = {
                .B = 1, .T = 4096, .H = 1, .HV = 1, .K = K, .C = chunk_sizes[c], .N = -1};
            const int64_t cost = cpu_item_cost(&p);
            ck_assert(cost > (c == 0 ? 0 : before));
            before = cost;
        }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        every_width_and_chunk_size,
        every_number_of_rows,
        every_type,
        gates_from_weak_to_strong,
        any_strides_and_groups,
        strides_of_single_dimensions_are_ignored,
        sequences,
        random_problems,
        in_place_or_not_is_the_same,
        /* of the CPU's kernels alone: */
        items_run_in_any_order_by_any_thread,
        bad_sequences_are_refused,
        empty_jobs_need_no_memory,
        costs_grow_with_the_work,
    };
    const size_t all = sizeof tests / sizeof tests[0];
    return run_suite("cpu", tests, fixture_runner ? all - 4 : all);
}
