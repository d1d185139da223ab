/*
 * bench_job.h - a job of the bench: a shape, its tensors in one piece of a device's memory, the same values
 * on every run.
 */
#ifndef CLIENT_KDACTL_BENCH_JOB_H
#define CLIENT_KDACTL_BENCH_JOB_H

#include "client/kdactl/bench_device.h"

#include <cjson/cJSON.h>
#include <stdint.h>

struct bench_shape {
    int64_t B, T, H, HV, K;
    int C;
};

enum { BENCH_SHAPE_TEXT = 64 };

struct bench_job {
    struct bench_shape shape;
    struct kdad_chunk_kda_bwd_intra_args args;
    void *memory;
    size_t traffic; /* bytes that the job reads and writes at least */
};

/* "[B, T, H, HV, K]"; returns text. */
const char *bench_shape_text(const struct bench_shape *shape, char text[BENCH_SHAPE_TEXT]);

/* Adds "shape" to an object. */
void bench_shape_json(const struct bench_shape *shape, cJSON *object);

/* On a GPU the connection may be NULL. False with a sentence. */
bool bench_job_make(struct bench_job *job, const struct bench_shape *shape, const struct bench_device *device,
                    struct kdad_connection *connection, char why[BENCH_WHY]);
void bench_job_free(struct bench_job *job, const struct bench_device *device,
                    struct kdad_connection *connection);

/* Submits, and waits until it is done. */
kdad_status bench_job_compute(const struct bench_job *job, struct kdad_stream *stream);

#endif
