/*
 * bench.c - kdactl bench: jobs through the daemon, in shared memory, seen from the client.
 *
 * The smallest job shows what a submission costs: from submit to done, one at a time, and how many a second
 * when they are not waited for one by one. Larger jobs are timed in turns with a memcpy, on one thread, that
 * reads and writes as many bytes in all as the job must.
 */
#include "client/deadline.h"
#include "client/kdactl/json.h"
#include "kernels/problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LATENCY_ROUNDS = 5000,
    LATENCY_WARM_UP = 500,
    PIPELINED_JOBS = 50000,
    ROUNDS_MOST = 50,
    ROUNDS_LEAST = 5,
};

static const double seconds_each = 3; /* a larger shape's rounds end after this, but not before the least */

struct shape {
    int64_t B, T, H, HV, K;
    int C;
};

static const struct shape smallest = {1, 1, 1, 1, 16, 16};
static const struct shape larger[] = {
    {1, 4096, 8, 8, 128, 64},
    {1, 4096, 2, 8, 128, 64},
    {8, 1024, 8, 8, 64, 64},
};

struct bench_job {
    struct kdad_chunk_kda_bwd_intra_args args;
    void *memory;
    size_t traffic; /* bytes that the job reads and writes at least */
};

struct latency {
    double median_us, p99_us, jobs_per_s;
};

struct throughput {
    double job_ms, copy_ms;
    size_t traffic;
    int rounds;
};

/* ---- Jobs ------------------------------------------------------------------------------------------------
 */

/* From -1 to 1, the same on every run. */
static float number(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int32_t)*seed * 0x1p-31F;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static size_t elements(const struct kdad_tensor *t) {
    size_t count = 1;
    for (int i = 0; i < t->ndim; i++)
        count *= (size_t)t->shape[i];
    return count;
}

static void fill(const struct bench_job *job, const struct shape *s) {
    const struct kdad_chunk_kda_bwd_intra_args *args = &job->args;
    const struct kdad_tensor *const halves[] = {&args->q, &args->k};
    const struct kdad_tensor *const floats[] = {&args->beta, &args->dAqk, &args->dAkk, &args->dq,
                                                &args->dk,   &args->db,   &args->dg};
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        uint16_t *at = halves[i]->data;
        for (size_t n = elements(halves[i]); n > 0; n--)
            *at++ = to_bf16(0.1F * number(&seed));
    }
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        float *at = floats[i]->data;
        for (size_t n = elements(floats[i]); n > 0; n--)
            *at++ = number(&seed);
    }
    /* g falls by 0 to 0.2 a row. */
    float *g = args->g.data;
    const int64_t width = s->HV * s->K;
    for (int64_t row = 0; row < s->B * s->T; row++)
        for (int64_t i = 0; i < width; i++, g++)
            *g = (row % s->T % s->C ? g[-width] : 0) - 0.1F * (1 + number(&seed));
}

/* The least number of bytes by the library's own reckoning. */
static size_t traffic_of(const struct kdad_chunk_kda_bwd_intra_args *args) {
    const struct kdad_tensor *const tensors[OPERAND_COUNT] = {
        &args->q,  &args->k,  &args->g,  &args->beta,   &args->dAqk,   &args->dAkk,   &args->dq,
        &args->dk, &args->db, &args->dg, &args->dq_out, &args->dk_out, &args->db_out, &args->dg_out};
    struct operand_tensor operands[OPERAND_COUNT] = {0};
    struct problem problem;
    char why[PROBLEM_WHY];
    for (int o = 0; o < OPERAND_CU_SEQLENS; o++) {
        operands[o].dtype = (enum dtype)tensors[o]->dtype;
        operands[o].ndim = tensors[o]->ndim;
        memcpy(operands[o].shape, tensors[o]->shape, sizeof operands[o].shape);
        memcpy(operands[o].stride, tensors[o]->stride, sizeof operands[o].stride);
    }
    return problem_from_tensors(&problem, operands, args->chunk_size, why) ? problem_traffic(&problem) : 0;
}

static bool make_job(struct bench_job *job, const struct shape *s, struct kdad_connection *connection) {
    struct kdad_chunk_kda_bwd_intra_args *args = &job->args;
    struct kdad_tensor *const all[] = {&args->q,      &args->k,      &args->g,      &args->beta,  &args->dAqk,
                                       &args->dAkk,   &args->dq,     &args->dk,     &args->db,    &args->dg,
                                       &args->dq_out, &args->dk_out, &args->db_out, &args->dg_out};
    const struct kdad_tensor qk = kdad_tensor_4d(NULL, KDAD_BF16, s->B, s->T, s->H, s->K);
    const struct kdad_tensor wide = kdad_tensor_4d(NULL, KDAD_F32, s->B, s->T, s->HV, s->K);
    const struct kdad_tensor square = kdad_tensor_4d(NULL, KDAD_F32, s->B, s->T, s->HV, s->C);
    const struct kdad_tensor narrow = kdad_tensor_3d(NULL, KDAD_F32, s->B, s->T, s->HV);
    *job = (struct bench_job){0};
    args->chunk_size = s->C;
    args->q = args->k = qk;
    args->g = args->dq = args->dk = args->dg = args->dq_out = args->dk_out = args->dg_out = wide;
    args->dAqk = args->dAkk = square;
    args->beta = args->db = args->db_out = narrow;
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bytes += (elements(all[i]) * sizeof(float) + 63) & ~(size_t)63;
    job->memory = kdad_alloc(connection, bytes);
    if (!job->memory)
        return false;
    char *at = job->memory;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        all[i]->data = at;
        at += (elements(all[i]) * sizeof(float) + 63) & ~(size_t)63;
    }
    fill(job, s);
    job->traffic = traffic_of(args);
    return true;
}

static kdad_status compute(struct kdad_stream *stream, const struct bench_job *job) {
    kdad_ticket ticket;
    kdad_status status = kdad_chunk_kda_bwd_intra(stream, &job->args, &ticket);
    return status == KDAD_OK ? kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT) : status;
}

/* ---- Measurements ----------------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a share of the samples lies; sorts them. */
static double quantile(double *samples, int count, double share) {
    qsort(samples, (size_t)count, sizeof *samples, by_value);
    return samples[(int)(share * (count - 1))];
}

static kdad_status measure_latency(struct kdad_stream *stream, const struct bench_job *job,
                                   struct latency *latency) {
    static double samples[LATENCY_ROUNDS];
    kdad_status status = KDAD_OK;
    for (int i = -LATENCY_WARM_UP; i < LATENCY_ROUNDS && status == KDAD_OK; i++) {
        int64_t start = deadline_now();
        status = compute(stream, job);
        if (i >= 0)
            samples[i] = (double)(deadline_now() - start) / 1e3;
    }
    if (status != KDAD_OK)
        return status;
    latency->median_us = quantile(samples, LATENCY_ROUNDS, 0.5);
    latency->p99_us = quantile(samples, LATENCY_ROUNDS, 0.99);
    kdad_ticket ticket = 0;
    int64_t start = deadline_now();
    for (int i = 0; i < PIPELINED_JOBS && status == KDAD_OK; i++)
        status = kdad_chunk_kda_bwd_intra(stream, &job->args, &ticket);
    if (status == KDAD_OK)
        status = kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT);
    latency->jobs_per_s = PIPELINED_JOBS / ((double)(deadline_now() - start) / 1e9);
    return status;
}

static kdad_status measure_throughput(struct kdad_stream *stream, const struct bench_job *job, char *from,
                                      char *to, struct throughput *throughput) {
    double job_ms[ROUNDS_MOST], copy_ms[ROUNDS_MOST];
    const size_t half = job->traffic / 2;
    int64_t begin = deadline_now();
    int rounds = -1; /* the first is not counted */
    while (rounds < ROUNDS_LEAST ||
           (rounds < ROUNDS_MOST && (double)(deadline_now() - begin) < seconds_each * 1e9)) {
        int64_t start = deadline_now();
        kdad_status status = compute(stream, job);
        int64_t middle = deadline_now();
        if (status != KDAD_OK)
            return status;
        memcpy(to, from, half);
        __asm__ volatile("" : : "r"(to) : "memory"); /* the copy is not left out */
        int64_t end = deadline_now();
        if (rounds >= 0) {
            job_ms[rounds] = (double)(middle - start) / 1e6;
            copy_ms[rounds] = (double)(end - middle) / 1e6;
        }
        rounds++;
    }
    throughput->rounds = rounds;
    throughput->traffic = job->traffic;
    throughput->job_ms = quantile(job_ms, rounds, 0.5);
    throughput->copy_ms = quantile(copy_ms, rounds, 0.5);
    return KDAD_OK;
}

/* A larger shape, with memory of its own. */
static kdad_status bench_shape(struct kdad_connection *connection, struct kdad_stream *stream,
                               const struct shape *shape, struct throughput *throughput) {
    struct bench_job job;
    if (!make_job(&job, shape, connection))
        return KDAD_NO_MEMORY;
    kdad_status status = KDAD_NO_MEMORY;
    char *from = malloc(job.traffic), *to = from ? from + job.traffic / 2 : NULL;
    if (from) {
        memset(from, 1, job.traffic);
        status = measure_throughput(stream, &job, from, to, throughput);
    }
    free(from);
    kdad_free(connection, job.memory);
    return status;
}

/* ---- Output ----------------------------------------------------------------------------------------------
 */

static double gigabytes_per_s(size_t bytes, double ms) {
    return (double)bytes / (ms * 1e6);
}

static void shape_text(const struct shape *s, char text[64]) {
    snprintf(text, 64, "[%d, %d, %d, %d, %d]", (int)s->B, (int)s->T, (int)s->H, (int)s->HV, (int)s->K);
}

static void print_latency(const struct latency *l) {
    char text[64];
    shape_text(&smallest, text);
    printf("[B, T, H, HV, K], bfloat16\n\n%s: submit to done %.1f us (median), %.1f us (p99); pipelined %.0f "
           "jobs/s\n\n",
           text, l->median_us, l->p99_us, l->jobs_per_s);
    printf("%-24s %10s %8s %12s %10s %10s\n", "", "median ms", "GB/s", "memcpy ms", "GB/s", "ratio");
    fflush(stdout);
}

static void print_throughput(const struct shape *shape, const struct throughput *t) {
    char text[64];
    shape_text(shape, text);
    printf("%-24s %10.3f %8.2f %12.3f %10.2f %9.2fx\n", text, t->job_ms,
           gigabytes_per_s(t->traffic, t->job_ms), t->copy_ms, gigabytes_per_s(t->traffic, t->copy_ms),
           t->job_ms / t->copy_ms);
    fflush(stdout);
}

static void add_shape(cJSON *object, const struct shape *s) {
    const int numbers[] = {(int)s->B, (int)s->T, (int)s->H, (int)s->HV, (int)s->K};
    cJSON_AddItemToObject(object, "shape", cJSON_CreateIntArray(numbers, sizeof numbers / sizeof *numbers));
}

static void add_latency(cJSON *object, const struct latency *l) {
    cJSON *json = cJSON_AddObjectToObject(object, "latency");
    add_shape(json, &smallest);
    cJSON_AddNumberToObject(json, "median_us", l->median_us);
    cJSON_AddNumberToObject(json, "p99_us", l->p99_us);
    cJSON_AddNumberToObject(json, "pipelined_jobs_per_s", l->jobs_per_s);
}

static void add_throughput(cJSON *array, const struct shape *shape, const struct throughput *t) {
    cJSON *json = cJSON_CreateObject();
    add_shape(json, shape);
    cJSON_AddNumberToObject(json, "rounds", t->rounds);
    cJSON_AddNumberToObject(json, "bytes", (double)t->traffic);
    cJSON_AddNumberToObject(json, "median_ms", t->job_ms);
    cJSON_AddNumberToObject(json, "memcpy_median_ms", t->copy_ms);
    cJSON_AddNumberToObject(json, "ratio", t->job_ms / t->copy_ms);
    cJSON_AddItemToArray(array, json);
}

static kdad_status bench_all(const struct options *options, struct kdad_connection *connection,
                             struct kdad_stream *stream, cJSON *object) {
    struct latency latency;
    struct bench_job job;
    if (!make_job(&job, &smallest, connection))
        return KDAD_NO_MEMORY;
    kdad_status status = measure_latency(stream, &job, &latency);
    kdad_free(connection, job.memory);
    if (status != KDAD_OK)
        return status;
    add_latency(object, &latency);
    if (!options->json)
        print_latency(&latency);
    cJSON *array = cJSON_AddArrayToObject(object, "throughput");
    for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
        struct throughput throughput;
        status = bench_shape(connection, stream, &larger[i], &throughput);
        if (status != KDAD_OK)
            return status;
        add_throughput(array, &larger[i], &throughput);
        if (!options->json)
            print_throughput(&larger[i], &throughput);
    }
    return KDAD_OK;
}

enum exit_code command_bench(const struct options *options) {
    struct kdad_connection *connection;
    struct kdad_stream *stream;
    enum exit_code code = open_stream(options, &connection, &stream);
    if (code != EXIT_DONE)
        return code;
    cJSON *object = cJSON_CreateObject();
    kdad_status status = bench_all(options, connection, stream, object);
    if (status != KDAD_OK)
        code = complain_of_library(NULL, status);
    else if (options->json)
        code = json_print(object);
    cJSON_Delete(object);
    kdad_disconnect(connection);
    return code;
}
