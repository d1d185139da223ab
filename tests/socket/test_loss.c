/*
 * libkdad when something ends: the daemon killed, stopped or restarted, a forked child, many threads and
 * processes at once. No wait outlasts the daemon, and a job that was lost never looks like a result.
 */
#include "proto/wire.h"
#include "tests/harness.h"
#include "tests/socket/sample.h"

#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct harness server;
static struct kdad_connection *connection;
static struct kdad_stream *stream;

static void setup(void) {
    harness_start(&server, NULL);
    ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &connection));
    ck_ok(kdad_stream_open(connection, NULL, &stream));
}

static void teardown(void) {
    ck_ok(kdad_stream_close(stream));
    kdad_disconnect(connection);
    harness_stop(&server);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static kdad_ticket submit(const struct sample *s) {
    kdad_ticket ticket = 0;
    ck_ok(kdad_chunk_kda_bwd_intra(stream, &s->args, &ticket));
    return ticket;
}

static void run(const struct sample *s) {
    ck_ok(kdad_wait(stream, submit(s), KDAD_DEFAULT_TIMEOUT));
}

/* The stream gives right results. */
static void check_results(void) {
    struct sample s;
    sample_make(&s, &sample_small, connection, 0, 0, 99);
    run(&s);
    sample_check(&s);
    sample_free(&s);
}

/* --- the daemon ends ----------------------------------------------------------------------------------- */

START_TEST(jobs_of_a_killed_daemon_are_lost_and_the_next_goes_on) {
    struct sample s;
    sample_make(&s, &sample_small, connection, _i ? SAMPLE_ALL_PLAIN : 0, 0, 1);
    kdad_ticket done = 0, lost = 0;
    for (int i = 0; i < 10; i++)
        done = submit(&s);
    ck_ok(kdad_wait(stream, done, KDAD_DEFAULT_TIMEOUT));
    kill(server.pid, SIGSTOP);
    for (int i = _i; i < 2; i++) /* a second plain job would wait for the first: it has the same outputs */
        lost = submit(&s);
    for (int i = 0; i < 4; i++)
        memcpy(s.block[OPERAND_DQ_OUT + i], s.saved[OPERAND_DQ_OUT + i], s.bytes[OPERAND_DQ_OUT + i]);
    harness_kill(&server);
    int64_t start = now_ms();
    ck_status(kdad_wait(stream, lost, KDAD_DEFAULT_TIMEOUT), KDAD_DAEMON_LOST);
    ck_sentence(_i ? "job 11: the daemon was lost" : "job 12: the daemon was lost: it closed the connection");
    ck_assert_int_lt(now_ms() - start, 2000);
    for (kdad_ticket t = 1; t <= lost; t++)
        ck_status(kdad_poll(stream, t), t <= done ? KDAD_OK : KDAD_DAEMON_LOST);
    sample_check_untouched(&s);
    ck_status(kdad_chunk_kda_bwd_intra(stream, &s.args, NULL), KDAD_NO_DAEMON);
    harness_restart(&server);
    kdad_ticket next = submit(&s);
    ck_assert_uint_eq(next, lost + 1);
    ck_ok(kdad_wait(stream, next, KDAD_DEFAULT_TIMEOUT));
    sample_check(&s);
    for (kdad_ticket t = 1; t <= next; t++)
        ck_status(kdad_wait(stream, t, 10), t <= done || t == next ? KDAD_OK : KDAD_DAEMON_LOST);
    sample_free(&s);
}
END_TEST

/* Nobody waited for the lost jobs: the next submission tells of them once, as it may build upon them. */
START_TEST(a_loss_that_no_wait_has_told_is_told_by_the_next_submission) {
    struct sample s;
    sample_make(&s, &sample_small, connection, 0, 0, 2);
    run(&s);
    kill(server.pid, SIGSTOP);
    submit(&s);
    kdad_ticket lost = submit(&s);
    harness_kill(&server);
    harness_restart(&server);
    kdad_ticket ticket = 99;
    ck_status(kdad_chunk_kda_bwd_intra(stream, &s.args, &ticket), KDAD_DAEMON_LOST);
    ck_sentence("jobs from 2 on were lost");
    ck_assert_uint_eq(ticket, 99);
    ck_assert_uint_eq(submit(&s), lost + 1);
    ck_ok(kdad_wait(stream, lost + 1, KDAD_DEFAULT_TIMEOUT));
    sample_check(&s);
    ck_status(kdad_poll(stream, lost), KDAD_DAEMON_LOST);
    sample_free(&s);
}
END_TEST

/* A daemon that dies while nothing is in flight is not worth a word. */
START_TEST(an_idle_stream_survives_restarts) {
    struct sample s;
    struct kdad_stream *other;
    sample_make(&s, &sample_small, connection, 1u << OPERAND_Q | 1u << OPERAND_DG_OUT, 0, 3);
    ck_ok(kdad_stream_open(connection, NULL, &other));
    for (int i = 0; i < 5; i++) {
        run(&s);
        sample_check(&s);
        harness_kill(&server);
        harness_restart(&server);
        kdad_ticket ticket;
        ck_ok(kdad_chunk_kda_bwd_intra(i & 1 ? stream : other, &s.args, &ticket));
        ck_ok(kdad_wait(i & 1 ? stream : other, ticket, KDAD_DEFAULT_TIMEOUT));
        sample_check(&s);
    }
    ck_ok(kdad_stream_close(other));
    sample_free(&s);
}
END_TEST

static void *kill_later(void *argument) {
    (void)argument;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    kill(server.pid, SIGKILL);
    return NULL;
}

START_TEST(a_sleeping_wait_ends_with_the_daemon) {
    struct sample s;
    pthread_t killer;
    sample_make(&s, &sample_small, connection, 0, 0, 4);
    run(&s);
    kill(server.pid, SIGSTOP);
    kdad_ticket ticket = submit(&s);
    pthread_create(&killer, NULL, kill_later, NULL);
    int64_t start = now_ms();
    ck_status(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT), KDAD_DAEMON_LOST);
    ck_assert_int_lt(now_ms() - start, 400); /* woken, not looked up */
    pthread_join(killer, NULL);
    harness_kill(&server);
    harness_restart(&server);
    run(&s);
    sample_check(&s);
    sample_free(&s);
}
END_TEST

/* A submission that waits for the socket, or for a slot, when the daemon dies. */
START_TEST(a_waiting_submission_ends_with_the_daemon) {
    struct sample s;
    pthread_t killer;
    kdad_status status;
    sample_make(&s, _i ? &sample_large : &sample_tiny, connection, 0, _i ? SAMPLE_UNCHECKED : 0, 5);
    run(&s);
    if (_i == 0)
        kill(server.pid, SIGSTOP);
    pthread_create(&killer, NULL, kill_later, NULL);
    do
        status = kdad_chunk_kda_bwd_intra(stream, &s.args, NULL);
    while (status == KDAD_OK);
    ck_assert_int_eq(status, KDAD_DAEMON_LOST);
    ck_sentence("were lost");
    pthread_join(killer, NULL);
    harness_kill(&server);
    harness_restart(&server);
    check_results();
    sample_free(&s);
}
END_TEST

/* Plain outputs of jobs that were done are copied, those of lost jobs are not. */
START_TEST(plain_outputs_are_copied_only_of_jobs_that_were_done) {
    struct sample done, lost;
    sample_make(&done, &sample_small, connection, SAMPLE_ALL_PLAIN, SAMPLE_STRIDED, 6);
    sample_make(&lost, &sample_small, connection, SAMPLE_ALL_PLAIN, SAMPLE_STRIDED | SAMPLE_IN_PLACE, 7);
    kdad_ticket first = submit(&done);
    while (kdad_poll(stream, first) == KDAD_PENDING)
        ;
    first = submit(&done);
    nanosleep(&(struct timespec){0, 100000000}, NULL); /* by now done, but not waited for */
    kill(server.pid, SIGSTOP);
    kdad_ticket second = submit(&lost);
    harness_kill(&server);
    ck_status(kdad_wait(stream, second, KDAD_DEFAULT_TIMEOUT), KDAD_DAEMON_LOST);
    ck_ok(kdad_wait(stream, first, KDAD_DEFAULT_TIMEOUT));
    sample_check(&done);
    sample_check_untouched(&lost);
    harness_restart(&server);
    run(&lost);
    sample_check(&lost);
    sample_free(&lost);
    sample_free(&done);
}
END_TEST

static int statuses(kdad_ticket last, kdad_status status) {
    int count = 0;
    for (kdad_ticket t = 1; t <= last; t++)
        count += kdad_wait(stream, t, KDAD_DEFAULT_TIMEOUT) == status;
    return count;
}

START_TEST(sigterm_cancels_what_is_queued) {
    struct sample s;
    kdad_ticket last = 0;
    sample_make(&s, &sample_large, connection, 0, SAMPLE_UNCHECKED, 8);
    run(&s);
    for (int i = 0; i < 200; i++)
        last = submit(&s);
    kill(server.pid, SIGTERM);
    ck_status(kdad_wait(stream, last, KDAD_DEFAULT_TIMEOUT), KDAD_CANCELLED);
    ck_sentence("job 201: was cancelled before it ran");
    int cancelled = statuses(last, KDAD_CANCELLED), ok = statuses(last, KDAD_OK);
    ck_assert_int_gt(cancelled, 0);
    ck_assert_int_eq(cancelled + ok, (int)last);
    int status;
    ck_assert_int_eq(waitpid(server.pid, &status, 0), server.pid);
    ck_assert_int_eq(status, 0);
    ck_status(kdad_chunk_kda_bwd_intra(stream, &s.args, NULL), KDAD_NO_DAEMON);
    harness_restart(&server);
    check_results();
    ck_status(kdad_poll(stream, last), KDAD_CANCELLED);
    sample_free(&s);
}
END_TEST

START_TEST(cancelled_jobs_that_no_wait_has_told_are_told_by_the_next_submission) {
    struct sample s;
    int status;
    sample_make(&s, &sample_large, connection, 0, SAMPLE_UNCHECKED, 9);
    for (int i = 0; i < 100; i++)
        submit(&s);
    kill(server.pid, SIGTERM);
    ck_assert_int_eq(waitpid(server.pid, &status, 0), server.pid);
    harness_restart(&server);
    ck_status(kdad_chunk_kda_bwd_intra(stream, &s.args, NULL), KDAD_CANCELLED);
    ck_sentence("were cancelled");
    check_results();
    sample_free(&s);
}
END_TEST

START_TEST(closing_after_the_daemon_is_quick) {
    struct sample s;
    struct kdad_stream *other;
    struct kdad_connection *c;
    ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c));
    ck_ok(kdad_stream_open(c, NULL, &other));
    sample_make(&s, &sample_small, c, 0, 0, 10);
    ck_ok(kdad_chunk_kda_bwd_intra(other, &s.args, NULL));
    ck_ok(kdad_wait(other, 1, KDAD_DEFAULT_TIMEOUT));
    kill(server.pid, SIGSTOP);
    ck_ok(kdad_chunk_kda_bwd_intra(other, &s.args, NULL));
    harness_kill(&server);
    int64_t start = now_ms();
    ck_status(kdad_stream_close(other), KDAD_DAEMON_LOST); /* nobody had asked for its job */
    sample_free(&s);
    kdad_disconnect(c);
    ck_assert_int_lt(now_ms() - start, 2000);
    harness_restart(&server);
}
END_TEST

/* --- fork ---------------------------------------------------------------------------------------------- */

static int open_descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* In the child: 0, or the line that went wrong. */
#define expect(condition)              \
    do {                               \
        if (!(condition))              \
            _exit(__LINE__ % 251 + 1); \
    } while (0)

static void child(struct sample *s, int descriptors, pid_t parent) {
    char pid[32];
    struct kdad_connection *own;
    struct kdad_stream *other;
    snprintf(pid, sizeof pid, "%d", (int)parent);
    expect(open_descriptors() < descriptors);
    expect(kdad_chunk_kda_bwd_intra(stream, &s->args, NULL) == KDAD_FORKED);
    expect(strstr(kdad_error(), pid) != NULL);
    expect(kdad_wait(stream, 1, 0) == KDAD_FORKED && kdad_poll(stream, 1) == KDAD_FORKED);
    expect(kdad_stream_open(connection, NULL, &other) == KDAD_FORKED);
    expect(kdad_alloc(connection, 100) == NULL);
    float first = *(float *)s->block[OPERAND_DQ_OUT]; /* still mapped, and shared */
    *(float *)s->block[OPERAND_DQ_OUT] = first + 1;
    kdad_free(connection, s->block[OPERAND_DQ_OUT]);
    expect(kdad_stream_close(stream) == KDAD_FORKED);
    kdad_disconnect(connection);
    expect(*(float *)s->block[OPERAND_DQ_OUT] == first + 1);
    expect(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &own) == KDAD_OK);
    expect(kdad_stream_open(own, NULL, &stream) == KDAD_OK);
    expect(kdad_chunk_kda_bwd_intra(stream, &s->args, NULL) ==
           KDAD_OK); /* the parent's memory is plain here */
    expect(kdad_wait(stream, 1, KDAD_DEFAULT_TIMEOUT) == KDAD_OK);
    kdad_disconnect(own);
    _exit(0);
}

START_TEST(a_forked_child_is_told_and_does_no_harm) {
    struct sample s;
    pid_t parent = getpid();
    sample_make(&s, &sample_small, connection, 0, 0, 11);
    run(&s);
    sample_check(&s);
    kill(server.pid, SIGSTOP);
    kdad_ticket ticket = submit(&s); /* in flight while it forks */
    int descriptors = open_descriptors();
    pid_t pid = fork();
    if (pid == 0)
        child(&s, descriptors, parent);
    kill(server.pid, SIGCONT);
    ck_ok(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT));
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == 0, "the child ended with wait status %#x", status);
    run(&s);
    sample_check(&s);
    sample_free(&s);
}
END_TEST

/* The daemon sees the parent's end although a child lives that was forked while connected. */
START_TEST(a_child_does_not_keep_its_parents_connection_open) {
    int hold[2];
    char byte;
    ck_assert_int_eq(pipe(hold), 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct kdad_connection *c;
        struct kdad_stream *s;
        expect(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c) == KDAD_OK);
        expect(kdad_stream_open(c, NULL, &s) == KDAD_OK);
        if (fork() == 0) {
            close(hold[1]);
            expect(read(hold[0], &byte, 1) == 0); /* until the test is over */
            _exit(0);
        }
        raise(SIGKILL);
    }
    int status;
    waitpid(parent, &status, 0);
    ck_assert(WIFSIGNALED(status));
    harness_stop(&server); /* ends at once: no connection is left but this test's */
    close(hold[1]);
    close(hold[0]);
    harness_start(&server, NULL);
}
END_TEST

/* --- many at once -------------------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    int number, jobs;
    struct kdad_stream *stream;
};

static void work(struct kdad_connection *c, int number, int jobs) {
    struct kdad_stream *own;
    ck_ok(kdad_stream_open(c, NULL, &own));
    for (int i = 0; i < jobs; i++) {
        struct sample s;
        kdad_ticket ticket;
        sample_make(&s, i & 1 ? &sample_small : &sample_tiny, c, (i + number) % 3 ? 0 : SAMPLE_ALL_PLAIN,
                    i & 2 ? SAMPLE_IN_PLACE : 0, (uint32_t)(number * 1000 + i));
        ck_ok(kdad_chunk_kda_bwd_intra(own, &s.args, &ticket));
        ck_ok(kdad_wait(own, ticket, KDAD_DEFAULT_TIMEOUT));
        sample_check(&s);
        sample_free(&s);
    }
    ck_ok(kdad_stream_close(own));
}

static void *work_in_thread(void *argument) {
    struct worker *w = argument;
    work(connection, w->number, w->jobs);
    return NULL;
}

START_TEST(threads_share_a_connection) {
    struct worker workers[8];
    for (int i = 0; i < 8; i++) {
        workers[i] = (struct worker){.number = i, .jobs = 40};
        pthread_create(&workers[i].thread, NULL, work_in_thread, &workers[i]);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(workers[i].thread, NULL);
}
END_TEST

static struct sample shared;
static _Atomic kdad_ticket submitted;

static void *wait_beside(void *argument) {
    (void)argument;
    for (kdad_ticket t = 1; t <= 20000; t++) {
        while (submitted < t)
            ;
        kdad_status status = kdad_wait(stream, t, KDAD_DEFAULT_TIMEOUT);
        ck_assert_msg(status == KDAD_OK || status == KDAD_NOT_FOUND, "%s", kdad_error());
    }
    return NULL;
}

/* One thread submits, another waits for the same stream's jobs: documented as allowed. */
START_TEST(a_wait_may_run_beside_submissions) {
    pthread_t waiter;
    sample_make(&shared, &sample_tiny, connection, _i ? SAMPLE_ALL_PLAIN : 0, 0, 12);
    pthread_create(&waiter, NULL, wait_beside, NULL);
    for (int i = 0; i < 20000; i++)
        submitted = submit(&shared);
    pthread_join(waiter, NULL);
    ck_ok(kdad_wait(stream, 20000, KDAD_DEFAULT_TIMEOUT));
    sample_check(&shared);
    sample_free(&shared);
}
END_TEST

/* Waits and submissions go on in threads while the daemon is killed and started again. */
static _Atomic bool over;

static void *work_through_losses(void *argument) {
    struct worker *w = argument;
    struct kdad_stream *own = w->stream;
    struct sample s;
    int done = 0;
    sample_make(&s, &sample_small, connection, w->number & 1 ? SAMPLE_ALL_PLAIN : 0, 0, (uint32_t)w->number);
    while (!over || done == 0) {
        kdad_ticket ticket = 0;
        kdad_status status = kdad_chunk_kda_bwd_intra(own, &s.args, &ticket);
        if (status == KDAD_OK)
            status = kdad_wait(own, ticket, KDAD_DEFAULT_TIMEOUT);
        ck_assert_msg(status == KDAD_OK || status == KDAD_DAEMON_LOST || status == KDAD_NO_DAEMON, "%s: %s",
                      kdad_status_string(status), kdad_error());
        if (status == KDAD_OK)
            sample_check(&s);
        done = status == KDAD_OK ? done + 1 : 0;
    }
    ck_ok(kdad_stream_close(own));
    sample_free(&s);
    return NULL;
}

START_TEST(threads_survive_restarts) {
    struct worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.number = i};
        ck_ok(kdad_stream_open(connection, NULL, &workers[i].stream));
        pthread_create(&workers[i].thread, NULL, work_through_losses, &workers[i]);
    }
    for (int i = 0; i < 15; i++) {
        nanosleep(&(struct timespec){0, 40000000}, NULL);
        harness_kill(&server);
        harness_restart(&server);
    }
    over = true;
    for (int i = 0; i < 4; i++)
        pthread_join(workers[i].thread, NULL);
}
END_TEST

START_TEST(processes_share_a_daemon) {
    enum { PROCESSES = 10 };
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            struct kdad_connection *c;
            ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c));
            work(c, i, 30);
            kdad_disconnect(c);
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        ck_assert_int_eq(status, 0);
    }
}
END_TEST

static int mappings_of_kdad(void) {
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:kdad") != NULL;
    fclose(maps);
    return count;
}

/* Connections, streams, memory, losses: in the end no descriptor, mapping or thread is left. */
START_TEST(nothing_is_left_behind) {
    int descriptors = open_descriptors(), mappings = mappings_of_kdad();
    for (int i = 0; i < 20; i++) {
        struct kdad_connection *c;
        struct kdad_stream *s;
        struct sample job;
        ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c));
        ck_ok(kdad_stream_open(c, NULL, &s));
        sample_make(&job, &sample_small, c, 1u << OPERAND_K | 1u << OPERAND_DK_OUT, 0, (uint32_t)i);
        kdad_ticket ticket;
        ck_ok(kdad_chunk_kda_bwd_intra(s, &job.args, &ticket));
        if (i & 1)
            ck_ok(kdad_wait(s, ticket, KDAD_DEFAULT_TIMEOUT));
        if (i % 5 == 4) {
            harness_kill(&server);
            harness_restart(&server);
            kdad_chunk_kda_bwd_intra(s, &job.args, NULL);
        }
        if (i & 2)
            kdad_stream_close(s);
        if (i % 3)
            sample_free(&job);
        kdad_disconnect(c);
        if (i % 3 == 0) { /* kdad_disconnect freed the rest */
            job.plain = SAMPLE_ALL_PLAIN;
            for (enum operand o = 0; o < OPERAND_COUNT; o++)
                job.block[o] = o == OPERAND_K || o == OPERAND_DK_OUT ? job.block[o] : NULL;
            sample_free(&job);
        }
    }
    struct sample own;
    sample_make(&own, &sample_tiny, connection, 0, 0, 1);
    run(&own); /* the test's own stream has lost its daemon too */
    sample_free(&own);
    ck_assert_int_eq(open_descriptors(), descriptors);
    ck_assert_int_eq(mappings_of_kdad(), mappings);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("loss");
    TCase *cases = tcase_create("loss");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, jobs_of_a_killed_daemon_are_lost_and_the_next_goes_on, 0, 2);
    tcase_add_test(cases, a_loss_that_no_wait_has_told_is_told_by_the_next_submission);
    tcase_add_test(cases, an_idle_stream_survives_restarts);
    tcase_add_test(cases, a_sleeping_wait_ends_with_the_daemon);
    tcase_add_loop_test(cases, a_waiting_submission_ends_with_the_daemon, 0, 2);
    tcase_add_test(cases, plain_outputs_are_copied_only_of_jobs_that_were_done);
    tcase_add_test(cases, sigterm_cancels_what_is_queued);
    tcase_add_test(cases, cancelled_jobs_that_no_wait_has_told_are_told_by_the_next_submission);
    tcase_add_test(cases, closing_after_the_daemon_is_quick);
    tcase_add_test(cases, a_forked_child_is_told_and_does_no_harm);
    tcase_add_test(cases, a_child_does_not_keep_its_parents_connection_open);
    tcase_add_test(cases, threads_share_a_connection);
    tcase_add_loop_test(cases, a_wait_may_run_beside_submissions, 0, 2);
    tcase_add_test(cases, threads_survive_restarts);
    tcase_add_test(cases, processes_share_a_daemon);
    tcase_add_test(cases, nothing_is_left_behind);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
