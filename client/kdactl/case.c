#include "client/kdactl/case.h"

#include "client/deadline.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 64,
};

const char *const case_output_name[CASE_OUTPUTS] = {"dq", "dk", "db", "dg"};

static const struct input {
    const char *name;
    size_t at; /* in the arguments */
    bool optional;
} inputs[] = {
#define INPUT(name, optional) \
    { #name, offsetof(struct kdad_chunk_kda_bwd_intra_args, name), optional }
    INPUT(q, false),    INPUT(k, false),    INPUT(g, false),         INPUT(beta, false),
    INPUT(dAqk, false), INPUT(dAkk, false), INPUT(dq, false),        INPUT(dk, false),
    INPUT(db, false),   INPUT(dg, false),   INPUT(cu_seqlens, true), INPUT(chunk_indices, true),
#undef INPUT
};
enum { INPUTS = sizeof inputs / sizeof *inputs };

static struct kdad_tensor *argument(struct kdad_chunk_kda_bwd_intra_args *args, size_t at) {
    return (struct kdad_tensor *)((char *)args + at);
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
}

static bool take_dtype(const char *name, kdad_dtype *dtype) {
    static const struct {
        const char *name;
        kdad_dtype dtype;
    } known[] = {
        {"BF16", KDAD_BF16}, {"F16", KDAD_F16}, {"F32", KDAD_F32}, {"I32", KDAD_I32}, {"I64", KDAD_I64}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) {
            *dtype = known[i].dtype;
            return true;
        }
    }
    return false;
}

/* A contiguous tensor of the file's type and shape; its address is set later. */
static bool take_tensor(const struct safetensor *from, struct kdad_tensor *t, char why[SAFETENSORS_WHY]) {
    int most = (int)(sizeof t->shape / sizeof *t->shape);
    if (!take_dtype(from->dtype, &t->dtype)) {
        snprintf(why, SAFETENSORS_WHY, "%s: dtype is %s, but must be BF16, F16, F32, I32 or I64", from->name,
                 from->dtype);
        return false;
    }
    if (from->ndim < 1 || from->ndim > most) {
        snprintf(why, SAFETENSORS_WHY, "%s: has %d dimensions, but must have 1 to %d", from->name, from->ndim,
                 most);
        return false;
    }
    t->ndim = from->ndim;
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        t->shape[i] = from->shape[i];
        t->stride[i] = stride;
        stride *= from->size ? from->shape[i] : 1;
    }
    return true;
}

/* A number in the metadata; its default if it is not there. */
static bool take_number(const struct safetensors *file, const char *key, int *number,
                        char why[SAFETENSORS_WHY]) {
    const char *text = safetensors_metadata(file, key);
    char *end;
    if (!text)
        return true;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > 1000000) {
        snprintf(why, SAFETENSORS_WHY, "%s: is '%.32s' in the metadata, but must be a number", key, text);
        return false;
    }
    *number = (int)value;
    return true;
}

/* Types, shapes and settings. *bytes: memory for all inputs and outputs. */
static bool describe(struct job_case *job, size_t *bytes, char why[SAFETENSORS_WHY]) {
    struct kdad_chunk_kda_bwd_intra_args *args = &job->args;
    *bytes = 0;
    for (int i = 0; i < INPUTS; i++) {
        const struct safetensor *from = safetensors_find(&job->file, inputs[i].name);
        if (!from && !inputs[i].optional) {
            snprintf(why, SAFETENSORS_WHY, "%s: is missing", inputs[i].name);
            return false;
        }
        if (from && !take_tensor(from, argument(args, inputs[i].at), why))
            return false;
        if (from)
            *bytes += aligned(from->size);
    }
    for (int o = 0; o < CASE_OUTPUTS; o++) {
        const struct safetensor *from = safetensors_find(&job->file, case_output_name[o]);
        if (strcmp(from->dtype, "F32") != 0) {
            snprintf(why, SAFETENSORS_WHY, "%s: dtype is %s, but must be F32", from->name, from->dtype);
            return false;
        }
        job->count[o] = from->size / sizeof(float);
        *bytes += aligned(from->size);
    }
    if (args->dAqk.shape[args->dAqk.ndim - 1] <= INT32_MAX)
        args->chunk_size = (int)args->dAqk.shape[args->dAqk.ndim - 1];
    return take_number(&job->file, "chunk_size", &args->chunk_size, why) &&
           take_number(&job->file, "safe_gate", &args->safe_gate, why);
}

/* Copies inputs into the case's memory and lays its outputs behind them. */
static void place(struct job_case *job) {
    struct kdad_chunk_kda_bwd_intra_args *args = &job->args;
    char *at = job->memory;
    for (int i = 0; i < INPUTS; i++) {
        const struct safetensor *from = safetensors_find(&job->file, inputs[i].name);
        if (!from)
            continue;
        argument(args, inputs[i].at)->data = at;
        if (from->size)
            memcpy(at, from->data, from->size);
        at += aligned(from->size);
    }
    struct kdad_tensor *const incoming[CASE_OUTPUTS] = {&args->dq, &args->dk, &args->db, &args->dg};
    struct kdad_tensor *const out[CASE_OUTPUTS] = {&args->dq_out, &args->dk_out, &args->db_out,
                                                   &args->dg_out};
    for (int o = 0; o < CASE_OUTPUTS; o++) {
        *out[o] = *incoming[o];
        out[o]->data = at;
        job->incoming[o] = incoming[o]->data;
        job->out[o] = out[o]->data;
        at += aligned(job->count[o] * sizeof(float));
    }
}

kdad_status case_open(struct job_case *job, struct kdad_connection *connection, const char *path,
                      char why[SAFETENSORS_WHY]) {
    size_t bytes;
    *job = (struct job_case){.connection = connection};
    if (!safetensors_open(&job->file, path, why))
        return KDAD_INVALID;
    if (!describe(job, &bytes, why)) {
        case_close(job);
        return KDAD_INVALID;
    }
    job->memory = kdad_alloc(connection, bytes ? bytes : ALIGNMENT);
    if (!job->memory) {
        snprintf(why, SAFETENSORS_WHY, "%s", kdad_error());
        case_close(job);
        return KDAD_NO_MEMORY;
    }
    place(job);
    return KDAD_OK;
}

void case_close(struct job_case *job) {
    kdad_free(job->connection, job->memory);
    safetensors_close(&job->file);
    *job = (struct job_case){0};
}

kdad_status case_compute(struct job_case *job, struct kdad_stream *stream, int64_t *ns) {
    kdad_ticket ticket;
    int64_t start = deadline_now();
    kdad_status status = kdad_chunk_kda_bwd_intra(stream, &job->args, &ticket);
    if (status == KDAD_OK)
        status = kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT);
    *ns = deadline_now() - start;
    return status;
}
