#ifdef HAVE_CUDA

#include "tests/gpu/job.h"

#include <stdint.h>

struct harness job_server;
struct kdad_connection *job_connection;
struct kdad_stream *job_stream;

static const char *const cuda_only[] = {"--backend", "cuda", NULL};

static void open_stream(const char *address) {
    const struct gpu *gpu = gpu_open();
    ck_assert_msg(kdad_connect(address, KDAD_DEFAULT_TIMEOUT, &job_connection) == KDAD_OK, "%s",
                  kdad_error());
    ck_assert_msg(kdad_cuda_stream_open(job_connection, gpu->stream, &job_stream) == KDAD_OK, "%s",
                  kdad_error());
    fixture_runner = job_run;
}

void job_setup_daemon(void) {
    harness_start(&job_server, cuda_only);
    open_stream(NULL);
}

void job_teardown_daemon(void) {
    kdad_disconnect(job_connection);
    harness_stop(&job_server);
}

void job_setup_local(void) {
    open_stream("local:");
}

void job_teardown_local(void) {
    kdad_disconnect(job_connection);
}

static struct kdad_tensor tensor_of(const struct gpu_fixture *g, enum operand o) {
    const struct problem *p = &g->host->p;
    struct kdad_tensor t = {.data = (void *)(uintptr_t)g->address[o],
                            .dtype = (kdad_dtype)problem_dtype(p, o)};
    t.ndim = problem_shape(p, o, t.shape);
    for (int i = 0; i + 1 < t.ndim; i++)
        t.stride[i] = p->at[o].stride[i];
    t.stride[t.ndim - 1] = 1;
    return t;
}

static struct kdad_chunk_kda_bwd_intra_args args_of(const struct gpu_fixture *g) {
    struct kdad_chunk_kda_bwd_intra_args a = {.chunk_size = (int)g->host->p.C};
    struct kdad_tensor *const fields[] = {&a.q,      &a.k,      &a.g,      &a.beta,   &a.dAqk,
                                          &a.dAkk,   &a.dq,     &a.dk,     &a.db,     &a.dg,
                                          &a.dq_out, &a.dk_out, &a.db_out, &a.dg_out, &a.cu_seqlens};
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (problem_has(&g->host->p, o))
            *fields[o] = tensor_of(g, o);
    }
    return a;
}

kdad_ticket job_submit(const struct gpu_fixture *g) {
    kdad_ticket ticket;
    struct kdad_chunk_kda_bwd_intra_args args = args_of(g);
    kdad_status status = kdad_chunk_kda_bwd_intra(job_stream, &args, &ticket);
    ck_assert_msg(status == KDAD_OK, "%s", kdad_error());
    return ticket;
}

kdad_status job_try(const struct gpu_fixture *g) {
    struct kdad_chunk_kda_bwd_intra_args args = args_of(g);
    return kdad_chunk_kda_bwd_intra(job_stream, &args, NULL);
}

void job_run(struct fixture *f) {
    struct gpu_fixture g;
    gpu_fixture_open(&g, f);
    kdad_ticket ticket = job_submit(&g);
    gpu_fixture_close(&g);
    ck_assert_msg(kdad_wait(job_stream, ticket, KDAD_DEFAULT_TIMEOUT) == KDAD_OK, "%s", kdad_error());
}

void job_compare_some(uint64_t number) {
    for (int i = 0; i < 3; i++)
        compare(&plain, number + (uint64_t)i);
}

int job_suite(const char *name, const struct job_test *tests, size_t count) {
    if (!gpu_is_there())
        return GPU_SKIPPED;
    Suite *suite = suite_create(name);
    for (size_t i = 0; i < count; i++) {
        TCase *c = tcase_create(tests[i].test->name);
        tcase_add_checked_fixture(c, tests[i].setup, tests[i].teardown);
        tcase_add_test(c, tests[i].test);
        suite_add_tcase(suite, c);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
