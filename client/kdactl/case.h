/*
 * case.h - one job in a file: its tensors in the daemon's memory, its outputs beside them.
 *
 * All tensors of a case lie in one allocation of kdad_alloc. Outputs are separate from the incoming
 * gradients.
 */
#ifndef CLIENT_KDACTL_CASE_H
#define CLIENT_KDACTL_CASE_H

#include "client/kdactl/safetensors.h"
#include "client/kdad.h"

enum {
    CASE_OUTPUTS = 4 /* dq, dk, db, dg */
};

extern const char *const case_output_name[CASE_OUTPUTS];

struct job_case {
    struct safetensors file;
    struct kdad_connection *connection;
    void *memory;
    struct kdad_chunk_kda_bwd_intra_args args;
    size_t count[CASE_OUTPUTS]; /* elements */
    const float *incoming[CASE_OUTPUTS];
    float *out[CASE_OUTPUTS];
};

/* Reads a file into memory of the connection. Returns KDAD_OK, or a status with a sentence in why:
 * KDAD_INVALID if the file is bad. Whether tensors fit together is for the library to say. */
kdad_status case_open(struct job_case *job, struct kdad_connection *connection, const char *path,
                      char why[SAFETENSORS_WHY]);
void case_close(struct job_case *job);

/* Submits the job and waits for it. *ns: how long that took. */
kdad_status case_compute(struct job_case *job, struct kdad_stream *stream, int64_t *ns);

#endif
