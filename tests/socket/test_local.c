/*
 * libkdad without a daemon: connections to "local:". The GPU's part is in tests/gpu.
 */
#include "proto/wire.h"
#include "tests/socket/sample.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static struct kdad_connection *connection;
static struct kdad_stream *stream;

static void setup(void) {
    ck_ok(kdad_connect("local:", KDAD_DEFAULT_TIMEOUT, &connection));
    ck_ok(kdad_stream_open(connection, NULL, &stream));
}

static void teardown(void) {
    ck_ok(kdad_stream_close(stream));
    kdad_disconnect(connection);
}

static void run(struct kdad_stream *on, const struct sample *s) {
    kdad_ticket ticket;
    ck_ok(kdad_chunk_kda_bwd_intra(on, &s->args, &ticket));
    ck_ok(kdad_poll(on, ticket));
    ck_ok(kdad_wait(on, ticket, 0));
}

START_TEST(results_are_right_in_any_memory) {
    static const struct {
        struct sample_shape shape;
        uint32_t plain;
        int flags;
    } cases[] = {
        {{2, 50, 2, 4, 33, 16, -1, KDAD_BF16, KDAD_F32, KDAD_I64}, 0, 0},
        {{1, 150, 2, 2, 64, 64, -1, KDAD_F16, KDAD_BF16, KDAD_I64}, SAMPLE_ALL_PLAIN, SAMPLE_IN_PLACE},
        {{1, 150, 1, 3, 128, 32, 4, KDAD_F32, KDAD_F16, KDAD_I32}, 0x5555, SAMPLE_STRIDED},
        {{3, 70, 2, 2, 40, 128, -1, KDAD_BF16, KDAD_F32, KDAD_I64}, SAMPLE_ALL_PLAIN, SAMPLE_EXPANDED},
    };
    struct sample s;
    sample_make(&s, &cases[_i].shape, connection, cases[_i].plain, cases[_i].flags, 7);
    run(stream, &s);
    sample_check(&s);
    sample_free(&s);
}
END_TEST

static void check_incoming(const struct sample *s) {
    for (int i = 0; i < 4; i++) {
        size_t n = oracle_count(&s->problem, OPERAND_DQ_OUT + i);
        float *out = malloc(n * sizeof *out);
        oracle_gather(out, &s->problem, s->data, OPERAND_DQ_OUT + i);
        ck_assert_mem_eq(out, s->incoming[i], n * sizeof *out);
        free(out);
    }
}

START_TEST(bad_cu_seqlens_leave_the_incoming_gradients) {
    const struct sample_shape shape = {1, 130, 1, 2, 64, 64, 4, KDAD_F32, KDAD_F32, KDAD_I64};
    struct sample bad, good;
    kdad_ticket first, second;
    sample_make(&bad, &shape, connection, SAMPLE_ALL_PLAIN, SAMPLE_BAD_SEQLENS, 1);
    sample_make(&good, &shape, connection, SAMPLE_ALL_PLAIN, 0, 2);
    ck_ok(kdad_chunk_kda_bwd_intra(stream, &bad.args, &first));
    ck_ok(kdad_chunk_kda_bwd_intra(stream, &good.args, &second));
    ck_status(kdad_wait(stream, first, 0), KDAD_BAD_DATA);
    ck_sentence("cu_seqlens");
    ck_ok(kdad_wait(stream, second, 0));
    ck_status(kdad_poll(stream, first), KDAD_BAD_DATA);
    check_incoming(&bad);
    sample_check(&good);
    sample_free(&bad);
    sample_free(&good);
}
END_TEST

START_TEST(arguments_are_checked_and_tickets_count) {
    struct sample s;
    kdad_ticket ticket = 0;
    sample_make(&s, &sample_tiny, connection, 0, 0, 3);
    struct kdad_chunk_kda_bwd_intra_args wrong = s.args;
    wrong.chunk_size = 17;
    ck_status(kdad_chunk_kda_bwd_intra(stream, &wrong, &ticket), KDAD_INVALID);
    ck_sentence("chunk_size");
    ck_status(kdad_wait(stream, 1, 0), KDAD_NOT_FOUND);
    for (kdad_ticket n = 1; n <= 2 * WIRE_STREAM_SLOTS + 5; n++) {
        ck_ok(kdad_chunk_kda_bwd_intra(stream, &s.args, &ticket));
        ck_assert_uint_eq(ticket, n);
    }
    ck_ok(kdad_wait(stream, ticket - WIRE_STREAM_SLOTS + 1, 0));
    ck_status(kdad_wait(stream, ticket - WIRE_STREAM_SLOTS, 0), KDAD_NOT_FOUND);
    struct kdad_stats stats;
    kdad_get_stats(connection, &stats);
    ck_assert_uint_eq(stats.jobs_in_process, ticket);
    ck_assert_uint_eq(stats.jobs_daemon + stats.jobs_captured, 0);
    sample_free(&s);
}
END_TEST

static void *run_many(void *argument) {
    struct kdad_stream *own;
    (void)argument;
    ck_ok(kdad_stream_open(connection, "cpu", &own));
    for (uint32_t seed = 0; seed < 10; seed++) {
        struct sample s;
        sample_make(&s, &sample_small, connection, SAMPLE_ALL_PLAIN, 0, seed);
        run(own, &s);
        sample_check(&s);
        sample_free(&s);
    }
    ck_ok(kdad_stream_close(own));
    return NULL;
}

START_TEST(threads_run_side_by_side) {
    pthread_t thread[4];
    for (int i = 0; i < COUNT(thread); i++)
        pthread_create(&thread[i], NULL, run_many, NULL);
    for (int i = 0; i < COUNT(thread); i++)
        pthread_join(thread[i], NULL);
}
END_TEST

START_TEST(there_is_one_device) {
    struct kdad_stream *other = NULL;
    ck_status(kdad_stream_open(connection, "GPU-0", &other), KDAD_UNSUPPORTED);
    ck_sentence("kdad_cuda_stream_open");
    ck_assert_ptr_null(other);
    ck_ok(kdad_trim(connection));
}
END_TEST

/* A child has none of the threads; it may connect for itself. */
START_TEST(a_child_connects_for_itself) {
    pid_t pid = fork();
    if (pid == 0) {
        struct kdad_connection *own;
        struct kdad_stream *on;
        bool refused = kdad_stream_open(connection, NULL, &on) == KDAD_FORKED;
        bool opened = kdad_connect("local:", KDAD_DEFAULT_TIMEOUT, &own) == KDAD_OK &&
                      kdad_stream_open(own, NULL, &on) == KDAD_OK;
        kdad_disconnect(own);
        _exit(refused && opened ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(the_environment_may_say_so) {
    struct kdad_connection *c;
    struct kdad_stats stats;
    setenv("KDAD_SOCKET", "local:", 1);
    ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c));
    kdad_get_stats(c, &stats);
    ck_assert_uint_eq(stats.jobs_in_process, 0);
    kdad_disconnect(c);
}
END_TEST

/* libkdad.so by itself, as a package without the kernels would leave it. The program is moved as well: a
 * sanitizer's dlopen looks where the program's run path says, which is relative to it. */
START_TEST(a_missing_kernel_library_is_named) {
    char directory[] = "/tmp/kdad-local-XXXXXX", command[1024];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(command, sizeof command,
             "cd %s && cp '%s' libkdad.so.0 && cp '%s' example && "
             "LD_LIBRARY_PATH=%s KDAD_SOCKET=local: ./example 2>said; "
             "test $? -eq 1 && grep -q libkdad-kernels.so said",
             directory, KDAD_LIBRARY, KDAD_EXAMPLE, directory);
    int status = system(command);
    snprintf(command, sizeof command, "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(status, 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("local");
    TCase *without = tcase_create("connecting");
    TCase *with = tcase_create("connected");
    tcase_add_test(without, the_environment_may_say_so);
    tcase_add_test(without, a_missing_kernel_library_is_named);
    tcase_add_checked_fixture(with, setup, teardown);
    tcase_add_loop_test(with, results_are_right_in_any_memory, 0, 4);
    tcase_add_test(with, bad_cu_seqlens_leave_the_incoming_gradients);
    tcase_add_test(with, arguments_are_checked_and_tickets_count);
    tcase_add_test(with, threads_run_side_by_side);
    tcase_add_test(with, there_is_one_device);
    tcase_add_test(with, a_child_connects_for_itself);
    suite_add_tcase(suite, without);
    suite_add_tcase(suite, with);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
