/*
 * Jobs on a GPU through a real daemon: values, the order of the trainer's stream, memory that comes and goes,
 * and deaths on either side.
 */
#ifdef HAVE_CUDA

#include "client/kdad.h"
#include "tests/gpu/gpu.h"
#include "tests/harness.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const cuda_only[] = {"--backend", "cuda", NULL};
static struct harness server;
static struct kdad_connection *connection;
static struct kdad_stream *stream;

static void setup(void) {
    harness_start(&server, cuda_only);
    const struct gpu *gpu = gpu_open();
    ck_assert_msg(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &connection) == KDAD_OK, "%s", kdad_error());
    ck_assert_msg(kdad_cuda_stream_open(connection, gpu->stream, &stream) == KDAD_OK, "%s", kdad_error());
}

static void teardown(void) {
    kdad_disconnect(connection);
    harness_stop(&server);
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

static void submit(const struct gpu_fixture *g, kdad_ticket *ticket) {
    struct kdad_chunk_kda_bwd_intra_args args = args_of(g);
    kdad_status status = kdad_chunk_kda_bwd_intra(stream, &args, ticket);
    ck_assert_msg(status == KDAD_OK, "%s", kdad_error());
}

/* For fixture_runner: through the daemon, results read in the stream's order, without kdad_wait. */
static void run_by_daemon(struct fixture *f) {
    struct gpu_fixture g;
    kdad_ticket ticket;
    gpu_fixture_open(&g, f);
    submit(&g, &ticket);
    gpu_fixture_close(&g);
    ck_assert_msg(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT) == KDAD_OK, "%s", kdad_error());
}

START_TEST(values_are_right) {
    fixture_runner = run_by_daemon;
    cpu_use_isa(CPU_ISA_PORTABLE);
    for (int i = 0; i < 12; i++) {
        struct shape s = plain;
        s.C = chunk_sizes[i % CHUNK_SIZES];
        s.layout = (enum layout)(i % 4);
        s.in_place = i % 3 == 1;
        s.K = i % 5 == 0 ? 100 : 128;
        if (s.in_place && s.layout == BROADCAST)
            s.layout = GAPS;
        if (i % 4 == 3) {
            s.N = 3;
            s.ends[0] = 40;
            s.ends[1] = 40;
            s.ends[2] = s.T - 5;
            s.B = 1;
            s.cu = DTYPE_I64;
        }
        compare(&s, 100 + (uint64_t)i);
    }
    print_worst("through the daemon");
}
END_TEST

/* Each job adds to its own outputs: 200 in place, one behind the other, with nothing waited for. */
START_TEST(two_hundred_jobs_keep_order) {
    struct shape s = plain;
    struct gpu_fixture g, h;
    kdad_ticket ticket;
    s.in_place = true;
    reseed(5);
    struct fixture f = make(&s);
    reseed(5);
    struct fixture alone = make(&s);
    gpu_fixture_open(&g, &f);
    for (int i = 0; i < 200; i++)
        submit(&g, &ticket);
    gpu_fixture_close(&g);
    ck_assert_uint_eq(ticket, 200);
    gpu_fixture_open(&h, &alone);
    for (int i = 0; i < 200; i++) {
        submit(&h, &ticket);
        ck_assert_int_eq(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT), KDAD_OK);
    }
    gpu_fixture_close(&h);
    struct outputs a = gather(&f, OPERAND_DQ_OUT), b = gather(&alone, OPERAND_DQ_OUT);
    assert_equal(&a, &b);
    free_outputs(&a);
    free_outputs(&b);
    destroy(&f);
    destroy(&alone);
}
END_TEST

/* An input that the trainer's stream writes late: a long series of memsets and copies stands before it. */
START_TEST(a_job_sees_what_was_put_before_it) {
    const struct gpu *gpu = gpu_open();
    struct shape s = plain;
    struct gpu_fixture g;
    kdad_ticket ticket;
    reseed(6);
    struct fixture f = make(&s);
    gpu_fixture_open(&g, &f);
    size_t bytes = f.bytes[OPERAND_G];
    CUdeviceptr late = gpu_alloc(bytes), load = gpu_alloc((size_t)1 << 30);
    gpu_write(late, f.memory[OPERAND_G], bytes);
    gpu_ok(gpu->driver->MemsetD8Async(g.memory[OPERAND_G], 0xff, bytes, gpu->stream)); /* NaN until later */
    gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    for (int i = 0; i < 50; i++)
        gpu_ok(gpu->driver->MemsetD8Async(load, (unsigned char)i, (size_t)1 << 30, gpu->stream));
    gpu_ok(gpu->driver->MemcpyDtoDAsync(g.memory[OPERAND_G], late, bytes, gpu->stream));
    submit(&g, &ticket);
    gpu_ok(
        gpu->driver->MemsetD8Async(g.memory[OPERAND_G], 0xff, bytes, gpu->stream)); /* and again behind it */
    gpu_fixture_close(&g);
    struct outputs out = gather(&f, OPERAND_DQ_OUT);
    for (size_t i = 0; i < out.count[0]; i++)
        ck_assert(isfinite(out.of[0][i]));
    free_outputs(&out);
    gpu_free(late);
    gpu_free(load);
    destroy(&f);
}
END_TEST

/* The same address, freed and allocated again, with other contents. */
START_TEST(an_address_may_be_used_again) {
    fixture_runner = run_by_daemon;
    cpu_use_isa(CPU_ISA_PORTABLE);
    for (int i = 0; i < 20; i++)
        compare(&plain, 300 + (uint64_t)i);
}
END_TEST

START_TEST(bad_cu_seqlens_are_told) {
    struct shape s = plain;
    struct gpu_fixture g;
    kdad_ticket ticket;
    const int64_t bad[3][4] = {{1, 2, 3, 4}, {0, 50, 40, 60}, {0, 1, 2, 100000}};
    const char *const sentences[3] = {"job 1: cu_seqlens: does not start at 0", "job 2: cu_seqlens: falls",
                                      "job 3: cu_seqlens: ends beyond T"};
    s.B = 1;
    s.N = 3;
    s.ends[0] = 10;
    s.ends[1] = 20;
    s.ends[2] = 30;
    s.cu = DTYPE_I64;
    for (int i = 0; i < 3; i++) {
        reseed(7);
        struct fixture f = make(&s);
        memcpy(f.cu, bad[i], sizeof bad[i]);
        gpu_fixture_open(&g, &f);
        submit(&g, &ticket);
        ck_assert_int_eq(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT), KDAD_BAD_DATA);
        ck_assert_str_eq(kdad_error(), sentences[i]);
        gpu_fixture_close(&g);
        struct outputs in = gather(&f, OPERAND_DQ), out = gather(&f, OPERAND_DQ_OUT);
        assert_equal(&in, &out);
        free_outputs(&in);
        free_outputs(&out);
        destroy(&f);
    }
}
END_TEST

/* --- deaths -------------------------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Jobs of some milliseconds each. */
static struct shape large(void) {
    struct shape s = plain;
    s.B = 1;
    s.T = 4096;
    s.H = s.HV = 8;
    s.in_place = true;
    return s;
}

START_TEST(a_killed_daemon_leaves_no_result) {
    struct shape s = large();
    struct gpu_fixture g;
    kdad_ticket first, last;
    reseed(8);
    struct fixture f = make(&s);
    gpu_fixture_open(&g, &f);
    submit(&g, &first);
    for (int i = 0; i < 99; i++)
        submit(&g, &last);
    harness_kill(&server);
    double start = seconds();
    gpu_ok(gpu_open()->driver->StreamSynchronize(gpu_open()->stream)); /* the trainer goes on */
    ck_assert_double_le(seconds() - start, 5.0);
    ck_assert_int_eq(kdad_wait(stream, last, KDAD_DEFAULT_TIMEOUT), KDAD_DAEMON_LOST);
    gpu_fixture_close(&g);
    struct outputs out = gather(&f, OPERAND_DQ_OUT);
    for (int o = 0; o < 4; o++)
        for (size_t i = 0; i < out.count[o]; i++)
            ck_assert(isnan(out.of[o][i]));
    free_outputs(&out);
    destroy(&f);
    harness_restart(&server);
    fixture_runner = run_by_daemon;
    cpu_use_isa(CPU_ISA_PORTABLE);
    compare(&plain, 9); /* by itself, on the same stream */
}
END_TEST

/* A client in a process of its own, which submits for ever, or stops. */
static pid_t start_client(bool ready) {
    int told[2];
    char byte;
    ck_assert_int_eq(pipe(told), 0);
    pid_t pid = fork();
    if (pid > 0) {
        ck_assert_int_eq(read(told[0], &byte, 1), 1);
        close(told[0]);
        close(told[1]);
        return pid;
    }
    execl("/proc/self/exe", "test_jobs", ready ? "busy" : "late", KDAD_BINARY,
          (char[]){(char)('0' + told[1] % 10), 0}, (char[]){(char)('0' + told[1] / 10), 0}, (char *)NULL);
    _exit(127);
}

static const char *client_kind;
static int client_told;

/* The child's side. late: its stream never comes to say that the inputs are ready. */
START_TEST(be_client) {
    struct shape s = large();
    struct gpu_fixture g;
    kdad_ticket ticket;
    const struct gpu *gpu = gpu_open();
    CUdeviceptr word = gpu_alloc(8);
    ck_assert_int_eq(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &connection), KDAD_OK);
    ck_assert_int_eq(kdad_cuda_stream_open(connection, gpu->stream, &stream), KDAD_OK);
    reseed(10);
    struct fixture f = make(&s);
    gpu_fixture_open(&g, &f);
    submit(&g, &ticket);
    kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT);
    if (strcmp(client_kind, "late") == 0) {
        uint64_t zero = 0;
        gpu_write(word, &zero, 8);
        gpu->driver->StreamWaitValue64(gpu->stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ);
    }
    for (int i = 0;; i++) {
        submit(&g, &ticket);
        if (i == 20)
            ck_assert_int_eq(write(client_told, "x", 1), 1);
        if (strcmp(client_kind, "late") == 0 && i == 20)
            for (;;)
                pause();
    }
}
END_TEST

static void compare_some(uint64_t number) {
    fixture_runner = run_by_daemon;
    cpu_use_isa(CPU_ISA_PORTABLE);
    for (int i = 0; i < 3; i++)
        compare(&plain, number + (uint64_t)i);
}

START_TEST(a_killed_client_harms_nobody) {
    for (int i = 0; i < 3; i++) {
        pid_t pid = start_client(true);
        compare_some(400);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        compare_some(410);
    }
}
END_TEST

START_TEST(clients_that_never_come_hold_back_nobody) {
    enum { CLIENTS = 12 };
    pid_t pids[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        pids[i] = start_client(false);
    kill(pids[0], SIGSTOP);
    double start = seconds();
    compare_some(500);
    ck_assert_double_le(seconds() - start, 5.0);
    for (int i = 0; i < CLIENTS; i++)
        kill(pids[i], SIGKILL);
    for (int i = 0; i < CLIENTS; i++)
        waitpid(pids[i], NULL, 0);
    compare_some(510);
}
END_TEST

/* What the trainer has freed goes back to the GPU: most of the card, again and again. */
START_TEST(freed_memory_goes_back) {
    const struct gpu *gpu = gpu_open();
    size_t available, total;
    kdad_ticket ticket;
    gpu_ok(gpu->driver->MemGetInfo(&available, &total));
    size_t bytes = available / 10 * 8;
    reseed(11);
    struct fixture f = make(&plain);
    struct gpu_fixture g;
    gpu_fixture_open(&g, &f);
    for (int i = 0; i < 100; i++) {
        CUdeviceptr large_one = gpu_alloc(bytes);
        uint64_t address = g.address[OPERAND_DQ_OUT];
        g.address[OPERAND_DQ_OUT] = large_one; /* fits: contiguous */
        submit(&g, &ticket);
        g.address[OPERAND_DQ_OUT] = address;
        ck_assert_int_eq(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT), KDAD_OK);
        gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
        gpu_free(large_one);
        ck_assert_int_eq(kdad_trim(connection), KDAD_OK);
    }
    gpu_fixture_close(&g);
    destroy(&f);
}
END_TEST

static int client_main(const char *kind, int told) {
    client_kind = kind;
    client_told = told;
    Suite *suite = suite_create("client");
    TCase *c = tcase_create("client");
    tcase_add_test(c, be_client);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    srunner_free(runner);
    return 1; /* a client never ends by itself */
}

int main(int argc, char **argv) {
    if (argc == 5)
        return client_main(argv[1], (argv[3][0] - '0') + 10 * (argv[4][0] - '0'));
    if (!gpu_is_there())
        return GPU_SKIPPED;
    const TTest *const tests[] = {
        values_are_right,
        two_hundred_jobs_keep_order,
        a_job_sees_what_was_put_before_it,
        an_address_may_be_used_again,
        bad_cu_seqlens_are_told,
        a_killed_daemon_leaves_no_result,
        a_killed_client_harms_nobody,
        clients_that_never_come_hold_back_nobody,
        freed_memory_goes_back,
    };
    Suite *suite = suite_create("gpu jobs");
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        TCase *c = tcase_create(tests[i]->name); /* so that CK_RUN_CASE can name it */
        tcase_add_checked_fixture(c, setup, teardown);
        tcase_set_timeout(c, 60);
        tcase_add_test(c, tests[i]);
        suite_add_tcase(suite, c);
    }
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#else
int main(void) {
    return 77; /* skipped: a build without CUDA */
}
#endif
