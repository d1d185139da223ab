/*
 * Ten processes at once, each with all cases of tests/data in an order of its own: every result has the bits
 * that one client alone gets.
 */
#include "client/kdactl/case.h"
#include "tests/harness.h"

#include <check.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 10, ROUNDS = 5, CASES_MAX = 64 };

static struct harness server;
static glob_t files;
static float *alone[CASES_MAX][CASE_OUTPUTS];

static void setup(void) {
    harness_start(&server, NULL);
    ck_assert_int_eq(glob(KDAD_TEST_DATA "/*.safetensors", 0, NULL, &files), 0);
    ck_assert_uint_ge(files.gl_pathc, 16);
    ck_assert_uint_le(files.gl_pathc, CASES_MAX);
}

static void teardown(void) {
    globfree(&files);
    harness_stop(&server);
}

/* Computes a case, and keeps its results or compares them with those kept. False if they differ. */
static bool compute(struct kdad_connection *c, struct kdad_stream *s, size_t number, bool keep) {
    char why[SAFETENSORS_WHY] = "";
    struct job_case job;
    int64_t ns;
    bool equal = true;
    ck_assert_msg(case_open(&job, c, files.gl_pathv[number], why) == KDAD_OK, "%s", why);
    ck_assert_msg(case_compute(&job, s, &ns) == KDAD_OK, "%s", kdad_error());
    for (int o = 0; o < CASE_OUTPUTS; o++) {
        size_t bytes = job.count[o] * sizeof(float);
        if (keep)
            alone[number][o] = malloc(bytes);
        ck_assert_ptr_nonnull(alone[number][o]);
        if (keep)
            memcpy(alone[number][o], job.out[o], bytes);
        else
            equal &= memcmp(alone[number][o], job.out[o], bytes) == 0;
    }
    case_close(&job);
    return equal;
}

static void open_all(struct kdad_connection **c, struct kdad_stream **s) {
    ck_assert_msg(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, c) == KDAD_OK, "%s", kdad_error());
    ck_assert_msg(kdad_stream_open(*c, NULL, s) == KDAD_OK, "%s", kdad_error());
}

/* Exits with the number of results that differed. */
static void be_one_of_many(unsigned seed) {
    struct kdad_connection *c;
    struct kdad_stream *s;
    int differing = 0;
    open_all(&c, &s);
    for (size_t i = 0; i < ROUNDS * files.gl_pathc; i++)
        differing += !compute(c, s, (size_t)rand_r(&seed) % files.gl_pathc, false);
    kdad_disconnect(c);
    _exit(differing < 255 ? differing : 255);
}

START_TEST(a_crowd_gets_what_one_gets_alone) {
    struct kdad_connection *c;
    struct kdad_stream *s;
    pid_t pids[PROCESSES];
    open_all(&c, &s);
    for (size_t i = 0; i < files.gl_pathc; i++)
        compute(c, s, i, true);
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            be_one_of_many((unsigned)i + 1);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: wait status %#x", i,
                      status);
    }
    kdad_disconnect(c);
    for (size_t i = 0; i < files.gl_pathc; i++)
        for (int o = 0; o < CASE_OUTPUTS; o++)
            free(alone[i][o]);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("crowd");
    TCase *c = tcase_create("crowd");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, a_crowd_gets_what_one_gets_alone);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
