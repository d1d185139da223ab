#include "client/kdactl/bench_job.h"

#include "kernels/problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

const char *bench_shape_text(const struct bench_shape *s, char text[BENCH_SHAPE_TEXT]) {
    snprintf(text, BENCH_SHAPE_TEXT, "[%d, %d, %d, %d, %d]", (int)s->B, (int)s->T, (int)s->H, (int)s->HV,
             (int)s->K);
    return text;
}

void bench_shape_json(const struct bench_shape *s, cJSON *object) {
    const int numbers[] = {(int)s->B, (int)s->T, (int)s->H, (int)s->HV, (int)s->K};
    cJSON_AddItemToObject(object, "shape", cJSON_CreateIntArray(numbers, sizeof numbers / sizeof *numbers));
}

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

/* The tensors must be on the host. */
static void fill(const struct kdad_chunk_kda_bwd_intra_args *args, const struct bench_shape *s) {
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

/* Gives the tensors their shapes, and their places from a base on; returns the bytes of all. */
static size_t lay_out(struct kdad_chunk_kda_bwd_intra_args *args, const struct bench_shape *s, void *base) {
    struct kdad_tensor *const all[] = {&args->q,      &args->k,      &args->g,      &args->beta,  &args->dAqk,
                                       &args->dAkk,   &args->dq,     &args->dk,     &args->db,    &args->dg,
                                       &args->dq_out, &args->dk_out, &args->db_out, &args->dg_out};
    const struct kdad_tensor qk = kdad_tensor_4d(NULL, KDAD_BF16, s->B, s->T, s->H, s->K);
    const struct kdad_tensor wide = kdad_tensor_4d(NULL, KDAD_F32, s->B, s->T, s->HV, s->K);
    const struct kdad_tensor square = kdad_tensor_4d(NULL, KDAD_F32, s->B, s->T, s->HV, s->C);
    const struct kdad_tensor narrow = kdad_tensor_3d(NULL, KDAD_F32, s->B, s->T, s->HV);
    size_t bytes = 0;
    *args = (struct kdad_chunk_kda_bwd_intra_args){.chunk_size = s->C};
    args->q = args->k = qk;
    args->g = args->dq = args->dk = args->dg = args->dq_out = args->dk_out = args->dg_out = wide;
    args->dAqk = args->dAkk = square;
    args->beta = args->db = args->db_out = narrow;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const size_t element = all[i]->dtype == KDAD_F32 ? sizeof(float) : sizeof(uint16_t);
        all[i]->data = (void *)((uintptr_t)base + bytes);
        bytes += (elements(all[i]) * element + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    }
    return bytes;
}

bool bench_job_make(struct bench_job *job, const struct bench_shape *shape, const struct bench_device *device,
                    struct kdad_connection *connection, char why[BENCH_WHY]) {
    const size_t bytes = lay_out(&job->args, shape, NULL);
    job->shape = *shape;
    job->traffic = traffic_of(&job->args);
    job->memory = bench_device_alloc(device, connection, bytes, why);
    if (!job->memory)
        return false;
    void *host = device->gpu ? calloc(1, bytes) : job->memory;
    bool good = host != NULL;
    if (host) {
        lay_out(&job->args, shape, host);
        fill(&job->args, shape);
    } else {
        snprintf(why, BENCH_WHY, "out of memory");
    }
    if (device->gpu) {
        good = good && bench_device_write(device, job->memory, host, bytes, why);
        free(host);
    }
    lay_out(&job->args, shape, job->memory);
    if (!good)
        bench_job_free(job, device, connection);
    return good;
}

void bench_job_free(struct bench_job *job, const struct bench_device *device,
                    struct kdad_connection *connection) {
    bench_device_free(device, connection, job->memory);
    job->memory = NULL;
}

kdad_status bench_job_compute(const struct bench_job *job, struct kdad_stream *stream) {
    kdad_ticket ticket;
    kdad_status status = kdad_chunk_kda_bwd_intra(stream, &job->args, &ticket);
    return status == KDAD_OK ? kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT) : status;
}
