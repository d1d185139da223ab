/*
 * bench_kernel.c - the CPU kernel at [B, T, H, HV, K] = [1, 4096, 8, 8, 128], C = 64, q and k in bfloat16.
 *
 * Shared machines are noisy, so all contenders run in turn, ROUNDS times, and what is printed are medians. A
 * ratio is the median of the rounds' ratios: both of its times were taken next to each other.
 */
#include "tests/bench/bench_kernel.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "tests/bench/bound.h"
#include "tests/bench/direct.h"

enum {
    ROUNDS = 9,
    SMALL_JOBS = 20000,
    MAX_THREADS = 2,
};

enum contender { DIRECT, KERNEL, KERNEL_2_THREADS, COPY, BOUND, SMALL, CONTENDERS };

static const char *const names[CONTENDERS] = {
    [DIRECT] = "direct", [KERNEL] = "kernel", [KERNEL_2_THREADS] = "kernel_2_threads",
    [COPY] = "copy",     [BOUND] = "bound",   [SMALL] = "small",
};
static const char *const notes[CONTENDERS] = {
    [DIRECT] = "direct formula in plain C, one thread",
    [KERNEL] = "kernel, one thread",
    [KERNEL_2_THREADS] = "kernel, two threads",
    [COPY] = "memcpy that moves the job's bytes, read and written",
    [BOUND] = "the kernel's exponentials and multiply-adds alone",
    [SMALL] = "kernel, a job of T = 1, K = 16",
};

struct setup {
    struct problem p;
    void *data[OPERAND_COUNT];
    void *scratch[MAX_THREADS];
    char *copy_from, *copy_to;
    size_t copy_bytes;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ----------------------------------------------------------------------------------------------- inputs */

static struct problem problem_of(int64_t T, int64_t heads, int64_t K) {
    struct problem p = {
        .B = 1,
        .T = T,
        .H = heads,
        .HV = heads,
        .K = K,
        .C = 64,
        .N = -1,
        .qk_dtype = DTYPE_BF16,
        .beta_dtype = DTYPE_F32,
        .cu_dtype = DTYPE_I64,
    };
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        int64_t shape[4];
        const int64_t last = problem_shape(&p, o, shape) == 4 ? shape[3] : 1;
        p.at[o] = (struct operand_view){
            .allocation = (uint64_t)o + 1,
            .stride = {T * heads * last, heads * last, last},
        };
        p.at[o].allocation_size = problem_extent(&p, o);
    }
    return p;
}

/* Numbers in -1 ... 1, the same in every run. */
static float next_number(uint32_t *state) {
    *state = *state * 1664525U + 1013904223U;
    return (float)(int32_t)*state * 0x1p-31F;
}

static bool fill(const struct problem *p, void *data[OPERAND_COUNT]) {
    uint32_t state = 1;
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        const bool half = problem_dtype(p, o) == DTYPE_BF16;
        const size_t bytes = problem_extent(p, o), count = bytes / (half ? 2 : 4);
        data[o] = aligned_alloc(64, (bytes + 63) / 64 * 64); /* as tensors are */
        if (!data[o])
            return false;
        for (size_t i = 0; i < count; i++) {
            const float number = next_number(&state);
            if (half) {
                uint32_t bits;
                memcpy(&bits, &number, sizeof bits);
                ((uint16_t *)data[o])[i] = (uint16_t)(bits >> 16);
            } else {
                ((float *)data[o])[i] = number;
            }
        }
    }
    /* g falls along the rows of a chunk. */
    float *g = data[OPERAND_G];
    const size_t row = (size_t)(p->HV * p->K);
    for (int64_t t = 0, row_of_chunk = 0; t < p->T; t++, g += row) {
        for (size_t i = 0; i < row; i++)
            g[i] = (row_of_chunk > 0 ? *(g + i - row) : 0) - 0.1F * (1 + g[i]);
        row_of_chunk = row_of_chunk + 1 < p->C ? row_of_chunk + 1 : 0;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------- contenders */

struct part {
    const struct cpu_job *job;
    int64_t first, count;
    void *scratch;
};

static void *run_part(void *arg) {
    const struct part *part = arg;
    cpu_job_run(part->job, part->first, part->count, part->scratch);
    return NULL;
}

static bool run_kernel(const struct setup *s, int threads) {
    struct cpu_job job;
    char why[PROBLEM_WHY];
    if (!cpu_job_begin(&job, &s->p, s->data, why))
        return false;
    pthread_t thread[MAX_THREADS];
    struct part part[MAX_THREADS];
    int started = 0;
    for (int i = 0; i < threads; i++) {
        const int64_t first = job.items * i / threads, end = job.items * (i + 1) / threads;
        part[i] = (struct part){&job, first, end - first, s->scratch[i]};
    }
    while (started < threads - 1 && pthread_create(&thread[started], NULL, run_part, &part[started + 1]) == 0)
        started++;
    run_part(&part[0]);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    cpu_job_end(&job);
    return started == threads - 1;
}

static bool run_small(const struct setup *s, const struct problem *small) {
    for (int i = 0; i < SMALL_JOBS; i++) {
        struct cpu_job job;
        char why[PROBLEM_WHY];
        if (!cpu_job_begin(&job, small, s->data, why))
            return false;
        cpu_job_run(&job, 0, job.items, s->scratch[0]);
        cpu_job_end(&job);
    }
    return true;
}

/*
 * What the formula asks for, with the blocks of chunk_kernel.h. An exponential for each pair s < r of a
 * diagonal block and column, and in each of log2(C / 16) levels of factored blocks one for each row and
 * column. Four multiply-adds for each pair s <= r and column: to dqi, dkw, and two to dkt; on the diagonal
 * blocks a fifth for k E.
 */
static float run_bound(const struct problem *p) {
    const int64_t C = p->C, columns = p->T * p->HV * p->K; /* T is a multiple of C */
    int64_t levels = 0;
    for (int64_t half = 16; half < C; half *= 2)
        levels++;
    const int64_t exponentials = columns * 15 / 2 + columns * levels;
    const int64_t multiply_adds = columns * 2 * (C + 1) + columns * 15 / 2;
    return bound_exp2(exponentials) + bound_multiply_add(multiply_adds);
}

/* What is computed for its time alone goes here, so that it is not left out. */
static volatile float sink;

static bool run_contender(const struct setup *s, enum contender c, double *seconds) {
    const struct problem small = problem_of(1, 1, 16);
    bool ok = true;
    const double start = now();
    switch (c) {
    case DIRECT:
        direct_run(&s->p, s->data);
        break;
    case KERNEL:
        ok = run_kernel(s, 1);
        break;
    case KERNEL_2_THREADS:
        ok = run_kernel(s, 2);
        break;
    case COPY:
        memcpy(s->copy_to, s->copy_from, s->copy_bytes);
        sink = (float)s->copy_to[s->copy_bytes - 1];
        break;
    case BOUND:
        sink = run_bound(&s->p);
        break;
    case SMALL:
        ok = run_small(s, &small);
        break;
    default:
        break;
    }
    *seconds = now() - start + 0 * sink;
    if (c == SMALL)
        *seconds /= SMALL_JOBS;
    return ok;
}

/* ---------------------------------------------------------------------------------------------- results */

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *numbers) {
    double sorted[ROUNDS];
    memcpy(sorted, numbers, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof sorted[0], compare);
    return sorted[ROUNDS / 2];
}

static double ratio(double seconds[CONTENDERS][ROUNDS], enum contender a, enum contender b) {
    double ratios[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        ratios[i] = seconds[a][i] / seconds[b][i];
    return median(ratios);
}

static void report(double seconds[CONTENDERS][ROUNDS], bool json) {
    const double against_direct = ratio(seconds, DIRECT, KERNEL),
                 threads = ratio(seconds, KERNEL, KERNEL_2_THREADS);
    const double against_copy = ratio(seconds, KERNEL, COPY), share = ratio(seconds, BOUND, KERNEL);
    if (json) {
        printf("{\"bench\": \"kernel\", \"isa\": \"%s\"", cpu_isa_name());
        for (int c = 0; c < CONTENDERS; c++)
            printf(", \"%s_us\": %.3f", names[c], median(seconds[c]) * 1e6);
        printf(", \"speedup_over_direct\": %.2f, \"speedup_of_2_threads\": %.3f, \"time_over_copy\": %.3f, "
               "\"share_of_bound\": %.3f}\n",
               against_direct, threads, against_copy, share);
        return;
    }
    printf(
        "KDA intra-chunk backward, CPU (%s): B 1, T 4096, H 8, HV 8, K 128, C 64, bfloat16; medians of %d\n",
        cpu_isa_name(), ROUNDS);
    for (int c = 0; c < CONTENDERS; c++)
        printf("  %-54s %12.2f us\n", notes[c], median(seconds[c]) * 1e6);
    printf("  direct / kernel            %7.2f\n", against_direct);
    printf("  one thread / two threads   %7.2f\n", threads);
    printf("  kernel / copy              %7.2f\n", against_copy);
    printf("  bound / kernel             %7.2f\n", share);
}

int bench_kernel(bool json) {
    struct setup s = {.p = problem_of(4096, 8, 128)};
    double seconds[CONTENDERS][ROUNDS];
    int status = EXIT_FAILURE;
    s.copy_bytes = problem_traffic(&s.p) / 2;
    s.copy_from = malloc(s.copy_bytes);
    s.copy_to = malloc(s.copy_bytes);
    bool ok = fill(&s.p, s.data) && s.copy_from && s.copy_to;
    for (int i = 0; i < MAX_THREADS; i++) {
        s.scratch[i] = aligned_alloc(64, cpu_scratch_size());
        ok = ok && s.scratch[i];
    }
    if (!ok) {
        fprintf(stderr, "bench: out of memory\n");
        goto out;
    }
    memset(s.copy_from, 1, s.copy_bytes);
    memset(s.copy_to, 1, s.copy_bytes);
    for (int round = -1; round < ROUNDS;
         round++) /* the first round warms up, and its times are overwritten */
        for (enum contender c = 0; c < CONTENDERS; c++)
            if (!run_contender(&s, c, &seconds[c][round < 0 ? 0 : round])) {
                fprintf(stderr, "bench: %s failed\n", names[c]);
                goto out;
            }
    report(seconds, json);
    status = EXIT_SUCCESS;
out:
    for (int i = 0; i < MAX_THREADS; i++)
        free(s.scratch[i]);
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        free(s.data[o]);
    free(s.copy_from);
    free(s.copy_to);
    return status;
}
