/*
 * check.c - kdactl check: cases with known results, through the daemon.
 *
 * Each case is computed twice: the second time is the one that is printed, and equal requests must give equal
 * bits. A case whose note says that every result is exact must come out as its float64 results, bit for bit.
 */
#include "client/kdactl/case.h"
#include "client/kdactl/kdactl.h"
#include "client/kdactl/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double allowed = 2e-6;

/* "dir/dense.safetensors": "dense" */
static int short_name(const char *path, const char **name) {
    static const char suffix[] = ".safetensors";
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    size_t length = strlen(*name), cut = sizeof suffix - 1;
    if (length > cut && strcmp(*name + length - cut, suffix) == 0)
        length -= cut;
    return (int)length;
}

/* The float64 results of an output, to be freed; NULL with a sentence if the file has them wrong. */
static double *take_reference(const struct job_case *job, int o, char why[SAFETENSORS_WHY]) {
    char name[16];
    snprintf(name, sizeof name, "ref.%s", case_output_name[o]);
    const struct safetensor *ref = safetensors_find(&job->file, name);
    const struct safetensor *like = safetensors_find(&job->file, case_output_name[o]);
    if (!ref) {
        snprintf(why, SAFETENSORS_WHY, "%s: is missing", name);
        return NULL;
    }
    if (strcmp(ref->dtype, "F64") != 0) {
        snprintf(why, SAFETENSORS_WHY, "%s: dtype is %s, but must be F64", name, ref->dtype);
        return NULL;
    }
    bool same = ref->ndim == like->ndim;
    for (int i = 0; same && i < ref->ndim; i++)
        same = ref->shape[i] == like->shape[i];
    if (!same) {
        snprintf(why, SAFETENSORS_WHY, "%s: its shape is not that of %s", name, case_output_name[o]);
        return NULL;
    }
    double *values = malloc(ref->size ? ref->size : 1);
    if (!values) {
        snprintf(why, SAFETENSORS_WHY, "%s: out of memory", name);
        return NULL;
    }
    memcpy(values, ref->data, ref->size);
    return values;
}

static bool is_exact(const struct job_case *job) {
    const char *note = safetensors_metadata(&job->file, "note");
    return note && strstr(note, "every result is exact");
}

/* A second run's results against the first's. */
static bool is_repeated(const struct job_case *job, float *const first[CASE_OUTPUTS]) {
    for (int o = 0; o < CASE_OUTPUTS; o++)
        if (job->count[o] && memcmp(first[o], job->out[o], job->count[o] * sizeof(float)) != 0)
            return false;
    return true;
}

static bool keep_results(const struct job_case *job, float *first[CASE_OUTPUTS]) {
    for (int o = 0; o < CASE_OUTPUTS; o++) {
        size_t bytes = job->count[o] * sizeof(float);
        first[o] = malloc(bytes ? bytes : 1);
        if (!first[o])
            return false;
        memcpy(first[o], job->out[o], bytes);
        memset(job->out[o], 0xff, bytes); /* NaN: what is not written again is seen */
    }
    return true;
}

static enum exit_code print_verdict(const struct job_case *job, double *const ref[CASE_OUTPUTS],
                                    bool repeated, int64_t ns) {
    bool good = true, exact = true;
    for (int o = 0; o < CASE_OUTPUTS; o++) {
        double error = measure_error(job->out[o], ref[o], job->incoming[o], job->count[o]);
        printf("  %9.1e", error);
        good = good && error <= allowed;
        exact = exact && measure_exact(job->out[o], ref[o], job->count[o]);
    }
    const char *verdict = "ok";
    if (!good)
        verdict = "FAILED: beyond 2e-6";
    else if (!repeated)
        verdict = "FAILED: a second run gave other bits";
    else if (is_exact(job))
        verdict = exact ? "ok, bit for bit" : "FAILED: not bit for bit";
    printf("  %9.3f  %s\n", (double)ns / 1e6, verdict);
    return strncmp(verdict, "ok", 2) == 0 ? EXIT_DONE : EXIT_NO;
}

static enum exit_code check_case(struct job_case *job, struct kdad_stream *stream, const char *path,
                                 int width) {
    char why[SAFETENSORS_WHY];
    double *ref[CASE_OUTPUTS] = {NULL};
    float *first[CASE_OUTPUTS] = {NULL};
    enum exit_code code = EXIT_DONE;
    for (int o = 0; o < CASE_OUTPUTS && code == EXIT_DONE; o++) {
        ref[o] = take_reference(job, o, why);
        if (!ref[o]) {
            complain("%s: %s", path, why);
            code = EXIT_BAD_INPUT;
        }
    }
    kdad_status status = KDAD_OK;
    int64_t ns = 0;
    if (code == EXIT_DONE)
        status = case_compute(job, stream, &ns);
    if (code == EXIT_DONE && status == KDAD_OK && !keep_results(job, first)) {
        complain("%s: out of memory", path);
        code = EXIT_NO;
    }
    if (code == EXIT_DONE && status == KDAD_OK)
        status = case_compute(job, stream, &ns);
    if (status != KDAD_OK)
        code = complain_of_library(path, status);
    if (code == EXIT_DONE) {
        const char *name;
        int length = short_name(path, &name);
        printf("%.*s%*s", length, name, width - length, "");
        code = print_verdict(job, ref, is_repeated(job, first), ns);
        fflush(stdout);
    }
    for (int o = 0; o < CASE_OUTPUTS; o++) {
        free(ref[o]);
        free(first[o]);
    }
    return code;
}

enum exit_code command_check(const struct options *options) {
    struct kdad_connection *connection;
    struct kdad_stream *stream;
    enum exit_code worst = open_stream(options, &connection, &stream);
    if (worst != EXIT_DONE)
        return worst;
    int width = 4;
    for (int i = 0; i < options->count; i++) {
        const char *name;
        int length = short_name(options->arguments[i], &name);
        width = length > width ? length : width;
    }
    printf("%-*s  %9s  %9s  %9s  %9s  %9s\n", width, "case", "dq", "dk", "db", "dg", "ms");
    for (int i = 0; i < options->count && worst != EXIT_NO_DAEMON; i++) {
        struct job_case job;
        char why[SAFETENSORS_WHY];
        const char *path = options->arguments[i];
        kdad_status status = case_open(&job, connection, path, why);
        if (status != KDAD_OK) {
            complain("%s: %s", path, why);
            worst = graver(worst, exit_code_of(status));
            continue;
        }
        worst = graver(worst, check_case(&job, stream, path, width));
        case_close(&job);
    }
    kdad_disconnect(connection);
    return worst;
}
