/*
 * test_deaths.c - what kills and stops do to the others on a GPU: of the daemon, and of trainers beside one.
 *
 * KDAD_TEST_ROUNDS says how often each is done (default 3).
 */
#ifdef HAVE_CUDA

#include "tests/gpu/job.h"

#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WITHIN = 5 /* seconds in which the other side goes on */, STARTED = 30000 /* ms */ };

static int rounds(void) {
    const char *text = getenv("KDAD_TEST_ROUNDS");
    return text ? atoi(text) : 3;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Jobs of a millisecond or so each. */
static struct shape large(void) {
    struct shape s = plain;
    s.T = 4096;
    s.H = s.HV = 8;
    s.K = 128;
    s.in_place = true;
    return s;
}

static void synchronize(void) {
    gpu_ok(gpu_open()->driver->StreamSynchronize(gpu_open()->stream));
}

/* A daemon killed among jobs: the trainer's stream goes on, no output looks like a result, and the next job
 * finds the daemon that was started meanwhile. */
START_TEST(a_killed_daemon_leaves_no_result) {
    struct shape s = large();
    for (int round = 0; round < rounds(); round++) {
        struct gpu_fixture g;
        kdad_ticket last = 0;
        reseed(8);
        struct fixture f = make(&s);
        gpu_fixture_open(&g, &f);
        for (int i = 0; i < 100; i++)
            last = job_submit(&g);
        harness_kill(&job_server);
        double start = seconds();
        synchronize();
        ck_assert_double_le(seconds() - start, WITHIN);
        ck_assert_int_eq(kdad_wait(job_stream, last, KDAD_DEFAULT_TIMEOUT), KDAD_DAEMON_LOST);
        gpu_fixture_close(&g);
        struct outputs out = gather(&f, OPERAND_DQ_OUT);
        for (int o = 0; o < 4; o++)
            for (size_t i = 0; i < out.count[o]; i++)
                ck_assert(isnan(out.of[o][i]));
        free_outputs(&out);
        destroy(&f);
        harness_restart(&job_server);
        compare(&plain, 9);
    }
}
END_TEST

/* A trainer process, once its jobs are under way. */
static pid_t start_trainer(const char *mode) {
    int told[2];
    char line[16];
    const char *program = harness_path("tests/gpu-trainer");
    ck_assert_int_eq(pipe(told), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(told[1], STDOUT_FILENO);
        close(told[0]);
        close(told[1]);
        execl(program, "gpu-trainer", mode, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    close(told[1]);
    struct pollfd ends = {told[0], POLLIN, 0};
    ck_assert_int_eq(poll(&ends, 1, STARTED), 1);
    ck_assert_msg(read(told[0], line, sizeof line) > 0, "gpu-trainer %s ended", mode);
    close(told[0]);
    return pid;
}

static void kill_trainer(pid_t pid) {
    int status;
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status), "a trainer had ended by itself: wait status %#x", status);
}

static size_t available(void) {
    size_t bytes, total;
    gpu_ok(gpu_open()->driver->MemGetInfo(&bytes, &total));
    return bytes;
}

/* Until the GPU has as much memory as before, but for a little. */
static void expect_memory(size_t before) {
    const size_t little = (size_t)32 << 20;
    double start = seconds();
    while (available() + little < before) {
        ck_assert_msg(seconds() - start < WITHIN, "%zu MiB of the GPU stay taken",
                      (before - available()) >> 20);
        usleep(10000);
    }
}

START_TEST(a_killed_trainer_harms_nobody) {
    job_compare_some(400);
    size_t before = available();
    for (int round = 0; round < rounds(); round++) {
        pid_t pid = start_trainer("busy");
        job_compare_some(400);
        kill_trainer(pid);
        double start = seconds();
        job_compare_some(410);
        ck_assert_double_le(seconds() - start, WITHIN);
    }
    expect_memory(before);
}
END_TEST

/* Runs kdactl kill; true if it says that the process has ended. */
static bool end_safely(pid_t pid) {
    char command[PATH_MAX + 64];
    snprintf(command, sizeof command, "'%s' kill --seconds 1 %d", harness_path("bin/kdactl"), (int)pid);
    int status = system(command); /* NOLINT(bugprone-command-processor,cert-env33-c): a path of the build */
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* In the middle of a kernel that runs for a minute: under MPS a mere kill would take everybody along. */
START_TEST(a_trainer_ended_by_kdactl_harms_nobody) {
    static const char *const modes[] = {"long", "busy"};
    int status;
    job_compare_some(420);
    size_t before = available();
    for (int round = 0; round < 2 * rounds(); round++) {
        pid_t pid = start_trainer(modes[round % 2]);
        ck_assert_msg(end_safely(pid), "kdactl kill: gpu-trainer %s", modes[round % 2]);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        double start = seconds();
        job_compare_some(420);
        ck_assert_double_le(seconds() - start, WITHIN);
    }
    expect_memory(before);
}
END_TEST

/* Trainers whose inputs never come, the first of them stopped as well. */
START_TEST(trainers_that_never_come_hold_back_nobody) {
    const char *text = getenv("KDAD_TEST_TRAINERS");
    const int count = text ? atoi(text) : 12;
    pid_t pids[64] = {0};
    ck_assert(count >= 1 && count <= 64);
    job_compare_some(500);
    size_t before = available();
    for (int i = 0; i < count; i++)
        pids[i] = start_trainer("late");
    kill(pids[0], SIGSTOP);
    double start = seconds();
    job_compare_some(500);
    double took = seconds() - start;
    ck_assert_double_le(took, WITHIN);
    for (int i = 0; i < count; i++)
        kill_trainer(pids[i]);
    job_compare_some(510);
    expect_memory(before);
    printf("%d trainers that never come: jobs beside them took %.0f ms\n", count, took * 1e3);
}
END_TEST

/* A common setting of trainers: all of a process's streams share one hardware queue. */
static void setup_one_queue(void) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    job_setup_daemon();
}

START_TEST(one_hardware_queue_is_enough) {
    pid_t pid = start_trainer("busy");
    for (int i = 0; i < rounds(); i++)
        job_compare_some(700);
    kill_trainer(pid);
}
END_TEST

int main(void) {
    const struct job_test tests[] = {
        {a_killed_daemon_leaves_no_result, job_setup_daemon, job_teardown_daemon},
        {a_killed_trainer_harms_nobody, job_setup_daemon, job_teardown_daemon},
        {a_trainer_ended_by_kdactl_harms_nobody, job_setup_daemon, job_teardown_daemon},
        {trainers_that_never_come_hold_back_nobody, job_setup_daemon, job_teardown_daemon},
        {one_hardware_queue_is_enough, setup_one_queue, job_teardown_daemon},
    };
    return job_suite("gpu deaths", tests, sizeof tests / sizeof tests[0]);
}

#else
int main(void) {
    return 77; /* skipped: a build without CUDA */
}
#endif
