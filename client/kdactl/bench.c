/*
 * bench.c - kdactl bench: jobs through the daemon, seen from its clients.
 *
 * On the processor, first, from kdactl itself: the smallest job shows what a submission costs: from submit to
 * done, one at a time, and how many a second when they are not waited for one by one. Larger jobs are timed
 * in turns with a memcpy, on one thread, that reads and writes as many bytes in all as the job must. Then, on
 * the processor as on a GPU, from client processes: bench_clients.
 */
#include "client/deadline.h"
#include "client/kdactl/bench_clients.h"
#include "client/kdactl/bench_job.h"
#include "client/kdactl/bench_series.h"
#include "client/kdactl/json.h"
#include "client/kdactl/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LATENCY_ROUNDS = 5000,
    PIPELINED_JOBS = 50000,
    QUICKER = 50, /* times fewer of these with --quick */
    ROUNDS_MOST = 50,
    ROUNDS_LEAST = 5,
};

static const double seconds_each = 3; /* a larger shape's rounds end after this, but not before the least */
static const struct bench_device processor; /* where these jobs are */

static const struct bench_shape smallest = {1, 1, 1, 1, 16, 16};
static const struct bench_shape larger[] = {
    {1, 4096, 8, 8, 128, 64},
    {1, 4096, 2, 8, 128, 64},
    {8, 1024, 8, 8, 64, 64},
};

struct latency {
    double median_us, p99_us, jobs_per_s;
};

struct throughput {
    double job_ms, copy_ms;
    size_t traffic;
    int rounds;
};

/* ---- Measurements ----------------------------------------------------------------------------------------
 */

static double quantile(double *samples, int count, double share) {
    struct series series = {.samples = samples, .count = count};
    return series_quantile(&series, share);
}

static kdad_status measure_latency(struct kdad_stream *stream, const struct bench_job *job, bool quick,
                                   struct latency *latency) {
    static double samples[LATENCY_ROUNDS];
    const int rounds = LATENCY_ROUNDS / (quick ? QUICKER : 1), jobs = PIPELINED_JOBS / (quick ? QUICKER : 1);
    kdad_status status = KDAD_OK;
    for (int i = -rounds / 10; i < rounds && status == KDAD_OK; i++) {
        int64_t start = deadline_now();
        status = bench_job_compute(job, stream);
        if (i >= 0)
            samples[i] = (double)(deadline_now() - start) / 1e3;
    }
    if (status != KDAD_OK)
        return status;
    latency->median_us = quantile(samples, rounds, 0.5);
    latency->p99_us = quantile(samples, rounds, 0.99);
    kdad_ticket ticket = 0;
    int64_t start = deadline_now();
    for (int i = 0; i < jobs && status == KDAD_OK; i++)
        status = kdad_chunk_kda_bwd_intra(stream, &job->args, &ticket);
    if (status == KDAD_OK)
        status = kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT);
    latency->jobs_per_s = jobs / ((double)(deadline_now() - start) / 1e9);
    return status;
}

static kdad_status measure_throughput(struct kdad_stream *stream, const struct bench_job *job, double seconds,
                                      char *from, char *to, struct throughput *throughput) {
    double job_ms[ROUNDS_MOST], copy_ms[ROUNDS_MOST];
    const size_t half = job->traffic / 2;
    int64_t begin = deadline_now();
    int rounds = -1; /* the first is not counted */
    while (rounds < ROUNDS_LEAST ||
           (rounds < ROUNDS_MOST && (double)(deadline_now() - begin) < seconds * 1e9)) {
        int64_t start = deadline_now();
        kdad_status status = bench_job_compute(job, stream);
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

static enum exit_code no_job(const char *why) {
    complain("%s", why);
    return EXIT_NO;
}

/* A larger shape, with memory of its own. */
static enum exit_code bench_shape(struct kdad_connection *connection, struct kdad_stream *stream,
                                  const struct bench_shape *shape, double seconds,
                                  struct throughput *throughput) {
    struct bench_job job;
    char why[BENCH_WHY];
    if (!bench_job_make(&job, shape, &processor, connection, why))
        return no_job(why);
    char *from = malloc(job.traffic);
    enum exit_code code = from ? EXIT_DONE : no_job("out of memory");
    if (from) {
        memset(from, 1, job.traffic);
        kdad_status status =
            measure_throughput(stream, &job, seconds, from, from + job.traffic / 2, throughput);
        if (status != KDAD_OK)
            code = complain_of_library(NULL, status);
    }
    free(from);
    bench_job_free(&job, &processor, connection);
    return code;
}

/* ---- Output ----------------------------------------------------------------------------------------------
 */

static double gigabytes_per_s(size_t bytes, double ms) {
    return (double)bytes / (ms * 1e6);
}

static void print_latency(const struct latency *l) {
    char text[BENCH_SHAPE_TEXT];
    printf("[B, T, H, HV, K], bfloat16\n\n%s: submit to done %.1f us (median), %.1f us (p99); pipelined %.0f "
           "jobs/s\n\n",
           bench_shape_text(&smallest, text), l->median_us, l->p99_us, l->jobs_per_s);
    printf("%-24s %10s %8s %12s %10s %10s\n", "", "median ms", "GB/s", "memcpy ms", "GB/s", "ratio");
    fflush(stdout);
}

static void print_throughput(const struct bench_shape *shape, const struct throughput *t) {
    char text[BENCH_SHAPE_TEXT];
    printf("%-24s %10.3f %8.2f %12.3f %10.2f %9.2fx\n", bench_shape_text(shape, text), t->job_ms,
           gigabytes_per_s(t->traffic, t->job_ms), t->copy_ms, gigabytes_per_s(t->traffic, t->copy_ms),
           t->job_ms / t->copy_ms);
    fflush(stdout);
}

static void add_latency(cJSON *object, const struct latency *l) {
    cJSON *json = cJSON_AddObjectToObject(object, "latency");
    bench_shape_json(&smallest, json);
    cJSON_AddNumberToObject(json, "median_us", l->median_us);
    cJSON_AddNumberToObject(json, "p99_us", l->p99_us);
    cJSON_AddNumberToObject(json, "pipelined_jobs_per_s", l->jobs_per_s);
}

static void add_throughput(cJSON *array, const struct bench_shape *shape, const struct throughput *t) {
    cJSON *json = cJSON_CreateObject();
    bench_shape_json(shape, json);
    cJSON_AddNumberToObject(json, "rounds", t->rounds);
    cJSON_AddNumberToObject(json, "bytes", (double)t->traffic);
    cJSON_AddNumberToObject(json, "median_ms", t->job_ms);
    cJSON_AddNumberToObject(json, "memcpy_median_ms", t->copy_ms);
    cJSON_AddNumberToObject(json, "ratio", t->job_ms / t->copy_ms);
    cJSON_AddItemToArray(array, json);
}

static enum exit_code bench_smallest(const struct options *options, struct kdad_connection *connection,
                                     struct kdad_stream *stream, struct latency *latency) {
    struct bench_job job;
    char why[BENCH_WHY];
    if (!bench_job_make(&job, &smallest, &processor, connection, why))
        return no_job(why);
    kdad_status status = measure_latency(stream, &job, options->quick, latency);
    enum exit_code code = status == KDAD_OK ? EXIT_DONE : complain_of_library(NULL, status);
    bench_job_free(&job, &processor, connection);
    return code;
}

static enum exit_code bench_against_copies(const struct options *options, struct kdad_connection *connection,
                                           struct kdad_stream *stream, cJSON *object) {
    const size_t shapes = options->quick ? 1 : sizeof larger / sizeof *larger;
    struct latency latency;
    enum exit_code code = bench_smallest(options, connection, stream, &latency);
    if (code != EXIT_DONE)
        return code;
    add_latency(object, &latency);
    if (!options->json)
        print_latency(&latency);
    cJSON *array = cJSON_AddArrayToObject(object, "throughput");
    for (size_t i = 0; i < shapes && code == EXIT_DONE; i++) {
        struct throughput throughput;
        code = bench_shape(connection, stream, &larger[i], options->quick ? 0 : seconds_each, &throughput);
        if (code != EXIT_DONE)
            break;
        add_throughput(array, &larger[i], &throughput);
        if (!options->json)
            print_throughput(&larger[i], &throughput);
    }
    return code;
}

/* The connection has ended before clients are forked. */
static enum exit_code bench_on_processor(const struct options *options, cJSON *object) {
    struct kdad_connection *connection;
    struct kdad_stream *stream;
    enum exit_code code = open_stream(options, &connection, &stream);
    if (code != EXIT_DONE)
        return code;
    code = bench_against_copies(options, connection, stream, object);
    kdad_disconnect(connection);
    return code;
}

/* What the daemon has, and who it is. */
static enum exit_code look(const struct options *options, struct snapshot *snapshot) {
    struct kdad_connection *connection;
    enum exit_code code = open_connection(options, &connection);
    if (code != EXIT_DONE)
        return code;
    kdad_status status = snapshot_take(snapshot, connection);
    if (status != KDAD_OK)
        code = complain_of_library(NULL, status);
    kdad_disconnect(connection);
    return code;
}

/* The daemon's first GPU; -1 if it has none. */
static int first_gpu(const struct snapshot *snapshot) {
    for (uint32_t i = 0; i < snapshot->reply.device_count; i++)
        if (snapshot_is_gpu(snapshot, i))
            return (int)i;
    return -1;
}

static void describe(const struct options *options, const struct snapshot *s, int gpu, cJSON *object) {
    cJSON_AddStringToObject(object, "backend", gpu < 0 ? "cpu" : "cuda");
    cJSON_AddStringToObject(object, "device", gpu < 0 ? "cpu" : s->devices[gpu].device);
    if (gpu < 0)
        cJSON_AddNullToObject(object, "mps");
    else
        cJSON_AddStringToObject(object, "mps", snapshot_mps(&s->reply.device[gpu]));
    if (options->spawn)
        cJSON_AddNumberToObject(object, "start_ready_ms", options->spawn_ms);
    else
        cJSON_AddNullToObject(object, "start_ready_ms");
    if (!options->json && gpu >= 0)
        printf("%s (%s), MPS %s\n\n", s->devices[gpu].device, s->devices[gpu].name,
               snapshot_mps(&s->reply.device[gpu]));
}

static enum exit_code bench_all(const struct options *options, const struct snapshot *s, int gpu,
                                cJSON *object) {
    enum exit_code code = EXIT_DONE;
    describe(options, s, gpu, object);
    if (gpu < 0)
        code = bench_on_processor(options, object);
    if (code == EXIT_DONE)
        code = bench_clients(options, gpu < 0 ? "" : s->devices[gpu].device, s->reply.pid, object);
    if (code == EXIT_DONE && options->json)
        return json_print(object);
    if (code == EXIT_DONE)
        bench_clients_print(object);
    return code;
}

enum exit_code command_bench(const struct options *options) {
    static struct snapshot snapshot; /* too large for a stack */
    enum exit_code code = look(options, &snapshot);
    if (code != EXIT_DONE)
        return code;
    int gpu = first_gpu(&snapshot);
    if (options->backend && strcmp(options->backend, "cpu") == 0)
        gpu = -1;
    else if (options->backend && gpu < 0) {
        complain("--backend cuda, but the daemon has no GPU: its backend is %s", snapshot.backend);
        snapshot_free(&snapshot);
        return EXIT_BAD_INPUT;
    }
    cJSON *object = cJSON_CreateObject();
    code = bench_all(options, &snapshot, gpu, object);
    cJSON_Delete(object);
    snapshot_free(&snapshot);
    return code;
}
