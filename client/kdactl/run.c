/*
 * run.c - kdactl run: jobs from files, results to files.
 */
#include "client/kdactl/case.h"
#include "client/kdactl/kdactl.h"
#include "client/kdactl/output.h"
#include "client/kdactl/progress.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool write_results(const struct job_case *job, const char *path, char why[SAFETENSORS_WHY]) {
    struct safetensor results[CASE_OUTPUTS];
    struct safetensors_note notes[] = {{"producer", "kdad " KDAD_VERSION}, {"chunk_size", NULL}};
    char chunk_size[16];
    snprintf(chunk_size, sizeof chunk_size, "%d", job->args.chunk_size);
    notes[1].value = chunk_size;
    for (int o = 0; o < CASE_OUTPUTS; o++) {
        results[o] = *safetensors_find(&job->file, case_output_name[o]);
        results[o].data = job->out[o];
    }
    return output_write(path, results, CASE_OUTPUTS, notes, sizeof notes / sizeof *notes, why);
}

static enum exit_code run_one(struct kdad_connection *connection, struct kdad_stream *stream, const char *in,
                              const char *out) {
    struct job_case job;
    char why[SAFETENSORS_WHY];
    if (is_same_file(in, out)) {
        progress_clear();
        complain("%s: its results would replace it", in);
        return EXIT_BAD_INPUT;
    }
    kdad_status status = case_open(&job, connection, in, why);
    if (status != KDAD_OK) {
        progress_clear();
        complain("%s: %s", in, why);
        return exit_code_of(status);
    }
    int64_t ns;
    enum exit_code code = EXIT_DONE;
    status = case_compute(&job, stream, &ns);
    if (status != KDAD_OK) {
        progress_clear();
        code = complain_of_library(in, status);
    } else if (!write_results(&job, out, why)) {
        progress_clear();
        complain("%s: %s", out, why);
        code = EXIT_NO;
    }
    case_close(&job);
    return code;
}

/* With --out-dir: the directory exists, and no two inputs have the same name. */
static enum exit_code prepare_directory(const struct options *options) {
    for (int i = 0; i < options->count; i++) {
        for (int j = 0; j < i; j++) {
            if (strcmp(base_name(options->arguments[i]), base_name(options->arguments[j])) == 0) {
                complain("%s and %s: their results would have the same name", options->arguments[j],
                         options->arguments[i]);
                return EXIT_BAD_INPUT;
            }
        }
    }
    struct stat status;
    if (mkdir(options->out_dir, 0777) < 0 && errno != EEXIST) {
        complain("%s: cannot be made: %s", options->out_dir, strerror(errno));
        return EXIT_BAD_INPUT;
    }
    if (stat(options->out_dir, &status) < 0 || !S_ISDIR(status.st_mode)) {
        complain("%s: is no directory", options->out_dir);
        return EXIT_BAD_INPUT;
    }
    return EXIT_DONE;
}

static enum exit_code run_many(const struct options *options, struct kdad_connection *connection,
                               struct kdad_stream *stream) {
    enum exit_code worst = EXIT_DONE;
    for (int i = 0; i < options->count && worst != EXIT_NO_DAEMON; i++) {
        const char *in = options->arguments[i];
        char out[PATH_MAX];
        progress_show(i, options->count, base_name(in));
        if (snprintf(out, sizeof out, "%s/%s", options->out_dir, base_name(in)) >= (int)sizeof out) {
            progress_clear();
            complain("%s: the path of its results is too long", in);
            worst = graver(worst, EXIT_BAD_INPUT);
            continue;
        }
        worst = graver(worst, run_one(connection, stream, in, out));
    }
    progress_clear();
    return worst;
}

enum exit_code command_run(const struct options *options) {
    struct kdad_connection *connection;
    struct kdad_stream *stream;
    if (!options->out_dir && options->count != 2) {
        complain("run: takes IN and OUT, or --out-dir DIR and any number of files");
        return EXIT_BAD_INPUT;
    }
    enum exit_code code = options->out_dir ? prepare_directory(options) : EXIT_DONE;
    if (code == EXIT_DONE)
        code = open_stream(options, &connection, &stream);
    if (code != EXIT_DONE)
        return code;
    if (options->out_dir)
        code = run_many(options, connection, stream);
    else
        code = run_one(connection, stream, options->arguments[0], options->arguments[1]);
    kdad_disconnect(connection);
    return code;
}
