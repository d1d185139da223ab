/*
 * sample.h - jobs for tests: tensors in memory of either kind and any layout, and what must come of them.
 */
#ifndef TESTS_SOCKET_SAMPLE_H
#define TESTS_SOCKET_SAMPLE_H

#include "client/kdad.h"
#include "tests/oracle.h"

#include <check.h>

#define ck_status(call, status)                                                                 \
    do {                                                                                        \
        kdad_status got_ = (call);                                                              \
        ck_assert_msg(got_ == (status), "%s: %s (%s), not %s", #call, kdad_status_string(got_), \
                      kdad_error(), kdad_status_string(status));                                \
    } while (0)

#define ck_ok(call) ck_status(call, KDAD_OK)

/* The last error's sentence must have this in it. */
void ck_sentence(const char *part);

enum {
    SAMPLE_IN_PLACE = 1,    /* outputs are their incoming gradients */
    SAMPLE_STRIDED = 2,     /* heads before rows, with gaps */
    SAMPLE_EXPANDED = 4,    /* q and beta with stride 0 along rows */
    SAMPLE_BAD_SEQLENS = 8, /* cu_seqlens ends beyond T */
    SAMPLE_UNCHECKED = 16,  /* what must come of it is not computed: for large jobs */
};

struct sample_shape {
    int64_t B, T, H, HV, K;
    int C;
    int64_t N; /* sequences; -1: no cu_seqlens */
    kdad_dtype qk, beta, cu;
};

struct sample {
    struct kdad_connection *connection;
    uint32_t plain;
    struct kdad_chunk_kda_bwd_intra_args args;
    struct problem problem;
    void *data[OPERAND_COUNT];  /* element 0 */
    void *block[OPERAND_COUNT]; /* the memory it is in */
    size_t bytes[OPERAND_COUNT];
    void *saved[OPERAND_COUNT]; /* outputs' blocks before the job */
    float *incoming[4];
    struct oracle want;
};

/* plain: bit o says that operand o is malloc's memory; else it is kdad_alloc's. */
void sample_make(struct sample *sample, const struct sample_shape *shape, struct kdad_connection *connection,
                 uint32_t plain, int flags, uint32_t seed);
void sample_free(struct sample *sample);

/* Fails the test unless the outputs are right, and nothing beside their elements has changed. */
void sample_check(const struct sample *sample);

/* Fails the test unless no byte of the outputs has changed. */
void sample_check_untouched(const struct sample *sample);

#define SAMPLE_ALL_PLAIN ((1u << OPERAND_COUNT) - 1)

extern const struct sample_shape sample_tiny;  /* one row */
extern const struct sample_shape sample_small; /* some hundred microseconds */
extern const struct sample_shape sample_large; /* some ten milliseconds, 45 MB */

#endif
