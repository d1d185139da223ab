/*
 * test_trace.c - the trace: each job once, whole, in order, from when it was asked for; what is lost is
 * counted; others may not ask. And the file that kdactl trace makes of it.
 */
#include "tests/harness.h"
#include "tests/socket/raw.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEPT = 32768 }; /* as wire.md says */

static struct harness server;
static struct raw client, tracer;
static struct timeline *timeline;
static struct problem problem;
static uint64_t stream, ticket, buffer;

static void setup(void) {
    uint64_t size;
    harness_start(&server, NULL);
    raw_open(&client, server.socket);
    stream = raw_stream(&client, &timeline);
    raw_problem(&problem, 16, 1, 16, 1, &size);
    int fd = raw_memfd(size);
    buffer = raw_buffer(&client, size, fd);
    close(fd);
    raw_problem(&problem, 16, 1, 16, buffer, &size);
    ticket = 0;
    raw_open(&tracer, server.socket);
}

static void teardown(void) {
    timeline_unmap(timeline);
    raw_close(&tracer);
    raw_close(&client);
    harness_stop(&server);
}

static void run_jobs(int count) {
    for (int i = 0; i < count; i++) {
        raw_submit(&client, stream, ++ticket, &problem);
        if (i % 256 == 255 || i == count - 1)
            ck_assert_int_eq(raw_wait(timeline, ticket), WIRE_OK);
    }
}

static const struct wire_trace_reply *ask(uint64_t from) {
    struct wire_message m = {.opcode = WIRE_TRACE, .id = 5, .trace.from = from};
    raw_send(&tracer, &m, -1);
    raw_receive(&tracer, WIRE_TRACE_REPLY);
    ck_assert_uint_eq(tracer.message.id, 5);
    ck_assert_uint_le(tracer.message.trace_reply.count, WIRE_TRACE_JOBS);
    return &tracer.message.trace_reply;
}

START_TEST(each_job_comes_once_and_whole) {
    run_jobs(10); /* before it was asked for */
    const struct wire_trace_reply *r = ask(0);
    uint64_t begin = r->now_ns, next = r->next, expected = ticket, last_end = 0;
    ck_assert_uint_eq(r->count, 0);
    ck_assert_uint_gt(next, 0);
    run_jobs(1000);
    while ((r = ask(next))->count > 0) {
        ck_assert_uint_eq(r->next, next + r->count);
        ck_assert_uint_eq(r->lost, 0);
        next = r->next;
        for (uint32_t i = 0; i < r->count; i++) {
            const struct wire_trace_job *j = &r->job[i];
            ck_assert_uint_eq(j->ticket, ++expected);
            ck_assert_uint_eq(j->client, 1);
            ck_assert_int_eq(j->pid, getpid());
            ck_assert_uint_eq(j->stream, stream);
            ck_assert_uint_eq(j->status, WIRE_OK);
            ck_assert_uint_eq(j->bytes, problem_traffic(&problem));
            ck_assert(j->B == 1 && j->T == 16 && j->HV == 1 && j->K == 16);
            ck_assert(begin <= j->received_ns && j->received_ns <= j->started_ns &&
                      j->started_ns <= j->ended_ns && j->ended_ns <= r->now_ns);
            ck_assert_uint_ge(j->started_ns, last_end); /* a stream's jobs run one by one */
            last_end = j->ended_ns;
        }
    }
    ck_assert_uint_eq(expected, ticket);
    ck_assert_uint_eq(r->next, next);

    /* One that never ran. */
    struct problem bad = problem;
    bad.K = 17;
    raw_submit(&client, stream, ++ticket, &bad);
    ck_assert_int_eq(raw_wait(timeline, ticket), WIRE_INVALID);
    raw_receive(&client, WIRE_JOB_ERROR);
    r = ask(next);
    ck_assert_uint_eq(r->count, 1);
    ck_assert_uint_eq(r->job[0].ticket, ticket);
    ck_assert_uint_eq(r->job[0].status, WIRE_INVALID);
    ck_assert_uint_eq(r->job[0].started_ns, 0);
    ck_assert_uint_eq(r->job[0].bytes, 0);
}
END_TEST

START_TEST(nothing_is_kept_while_nobody_asks) {
    run_jobs(10);
    uint64_t next = ask(0)->next;
    run_jobs(5);
    ck_assert_uint_eq(ask(next)->count, 5);
    next += 5;
    raw_close(&tracer);
    raw_open(&tracer, server.socket); /* by when the end of the other may not be seen yet */
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 6};
    do {
        raw_send(&tracer, &m, -1);
        raw_receive(&tracer, WIRE_STATUS_REPLY);
    } while (tracer.message.status_reply.clients > 2);
    run_jobs(100);
    ck_assert_uint_eq(ask(0)->next, next);
    run_jobs(1);
    ck_assert_uint_eq(ask(next)->count, 1);
    ck_assert_uint_eq(tracer.message.trace_reply.job[0].ticket, ticket);
}
END_TEST

START_TEST(what_is_lost_is_counted) {
    enum { JOBS = KEPT + 5000 };
    uint64_t next = ask(0)->next, lost = 0, found = 0;
    const struct wire_trace_reply *r;
    run_jobs(JOBS);
    while ((r = ask(next))->count > 0 || r->lost > 0) {
        ck_assert_uint_eq(r->next, next + r->count + r->lost);
        next = r->next;
        lost += r->lost;
        found += r->count;
        for (uint32_t i = 0; i < r->count; i++)
            ck_assert_uint_eq(r->job[i].ticket, lost + found - r->count + i + 1);
    }
    ck_assert_uint_eq(lost, JOBS - KEPT);
    ck_assert_uint_eq(found, KEPT);
    ck_assert_uint_eq(ask(UINT64_MAX)->count, 0); /* not there yet */
    ck_assert_uint_eq(ask(UINT64_MAX)->next, next);
}
END_TEST

/* Several clients' jobs end on several threads while they are asked for: none is told of in parts, or twice.
 */
START_TEST(jobs_of_many_clients_stay_whole) {
    enum { CLIENTS = 4, JOBS = 4000 };
    static struct raw crowd[CLIENTS];
    static struct timeline *lines[CLIENTS];
    static uint64_t seen[CLIENTS];
    struct problem problems[CLIENTS];
    uint64_t streams[CLIENTS], next = ask(0)->next, total = 0, size;
    for (int i = 0; i < CLIENTS; i++) {
        raw_open(&crowd[i], server.socket);
        streams[i] = raw_stream(&crowd[i], &lines[i]);
        raw_problem(&problems[i], 1 + i, 1, 16, 1, &size);
        int fd = raw_memfd(size);
        raw_problem(&problems[i], 1 + i, 1, 16, raw_buffer(&crowd[i], size, fd), &size);
        close(fd);
    }
    for (uint64_t n = 1; total < (uint64_t)CLIENTS * JOBS; n++) {
        for (int i = 0; i < CLIENTS && n <= JOBS; i++) {
            if (n > 512)
                ck_assert_int_eq(raw_wait(lines[i], n - 512), WIRE_OK);
            raw_submit(&crowd[i], streams[i], n, &problems[i]);
        }
        if (n % 32 != 0 && n <= JOBS)
            continue;
        const struct wire_trace_reply *r = ask(next);
        next = r->next;
        ck_assert_uint_eq(r->lost, 0);
        for (uint32_t k = 0; k < r->count; k++, total++) {
            const struct wire_trace_job *j = &r->job[k];
            ck_assert_uint_ge(j->client, 3); /* behind client and tracer */
            ck_assert_uint_lt(j->client, 3 + CLIENTS);
            ck_assert_int_eq(j->T, (int64_t)j->client - 2);
            ck_assert_uint_eq(j->ticket, ++seen[j->client - 3]);
            ck_assert_uint_eq(j->bytes, problem_traffic(&problems[j->client - 3]));
        }
    }
    for (int i = 0; i < CLIENTS; i++) {
        timeline_unmap(lines[i]);
        raw_close(&crowd[i]);
    }
}
END_TEST

#ifdef HAVE_LIBSYSTEMD
/* A service manager's socket lets another user in, who may see the status, but not the jobs of all. */
START_TEST(another_user_may_not_trace) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct raw other;
    int status;
    if (getuid() != 0)
        return;
    snprintf(address.sun_path, sizeof address.sun_path, "%s.own", server.socket);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listener, 8), 0);
    ck_assert_int_eq(chmod(server.directory, 0755), 0);
    ck_assert_int_eq(chmod(address.sun_path, 0666), 0);
    pid_t daemon = fork();
    if (daemon == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", (int)getpid());
        setenv("LISTEN_PID", number, 1);
        setenv("LISTEN_FDS", "1", 1);
        if (listener == 3)
            fcntl(3, F_SETFD, 0);
        else
            dup2(listener, 3);
        execl(KDAD_BINARY, "kdad", "--config", "/dev/null", "--backend", "cpu", "--quiet", (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(seteuid(65534), 0); /* the kernel tells of the user who connects */
    raw_open(&other, address.sun_path);
    ck_assert_int_eq(seteuid(0), 0);
    struct wire_message ask_trace = {.opcode = WIRE_TRACE, .id = 9},
                        ask_status = {.opcode = WIRE_STATUS, .id = 8};
    raw_send(&other, &ask_trace, -1);
    raw_expect_error(&other, 9, WIRE_DENIED, "trace: only the daemon's user and root may ask for it");
    raw_send(&other, &ask_status, -1);
    raw_receive(&other, WIRE_STATUS_REPLY);
    ck_assert_int_eq(other.message.status_reply.client[0].uid, 65534);
    raw_close(&other);
    kill(daemon, SIGTERM);
    ck_assert_int_eq(waitpid(daemon, &status, 0), daemon);
    close(listener);
    unlink(address.sun_path);
}
END_TEST
#endif

/* --- kdactl trace -------------------------------------------------------------------------------------- */

static pid_t start_kdactl(const char *file, const char *seconds) {
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        execl(KDACTL_BINARY, "kdactl", "trace", file, "--seconds", seconds, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

static int exit_code(pid_t pid) {
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status), "wait status %#x", status);
    return WEXITSTATUS(status);
}

static cJSON *read_json(const char *path) {
    struct stat st;
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(fstat(fd, &st), 0);
    char *text = calloc(1, (size_t)st.st_size + 1);
    ck_assert_int_eq(read(fd, text, (size_t)st.st_size), st.st_size);
    close(fd);
    cJSON *json = cJSON_Parse(text);
    ck_assert_msg(json != NULL, "no JSON: %.300s", text);
    free(text);
    return json;
}

static double number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItem(object, key);
    ck_assert_msg(cJSON_IsNumber(item), "there is no %s", key);
    return item->valuedouble;
}

static const char *text(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItem(object, key);
    ck_assert_msg(cJSON_IsString(item), "there is no %s", key);
    return item->valuestring;
}

static bool has_begun(void) {
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 6};
    raw_send(&tracer, &m, -1);
    raw_receive(&tracer, WIRE_STATUS_REPLY);
    const struct wire_status_reply *r = &tracer.message.status_reply;
    return r->clients > 2 && r->client[0].busy_ns > 0;
}

START_TEST(the_file_has_a_row_for_each_stream) {
    char path[160], own[32];
    double last_end = 0, last_ticket = 0;
    int slices = 0, marks = 0, names = 0;
    snprintf(path, sizeof path, "%s/trace.json", server.directory);
    struct problem bad = problem;
    bad.K = 17;
    pid_t pid = start_kdactl(path, "3600");
    while (!has_begun())
        usleep(1000);
    for (int i = 0; i < 500; i++) { /* it may be between HELLO and TRACE: jobs go on until behind that */
        run_jobs(1);
        raw_submit(&client, stream, ++ticket, &bad);
        ck_assert_int_eq(raw_wait(timeline, ticket), WIRE_INVALID);
        raw_receive(&client, WIRE_JOB_ERROR);
        usleep(1000);
    }
    ck_assert_int_eq(kill(pid, SIGINT), 0); /* enough: the file is finished */
    ck_assert_int_eq(exit_code(pid), 0);

    cJSON *json = read_json(path), *event;
    cJSON_ArrayForEach(event, cJSON_GetObjectItem(json, "traceEvents")) {
        const char *kind = text(event, "ph");
        const cJSON *arguments = cJSON_GetObjectItem(event, "args");
        if (strcmp(kind, "X") == 0) {
            slices++;
            ck_assert_double_eq(number(event, "pid"), 1);
            ck_assert_double_eq(number(event, "tid"), (double)stream);
            ck_assert_str_eq(text(event, "name"), "1x16x1x16");
            ck_assert_str_eq(text(arguments, "status"), "success");
            ck_assert_double_eq(number(arguments, "bytes"), (double)problem_traffic(&problem));
            ck_assert_double_ge(number(event, "ts"), last_end - 0.0005); /* slices of a row do not overlap */
            last_end = number(event, "ts") + number(event, "dur");
        } else if (strcmp(kind, "i") == 0) {
            marks++;
            ck_assert_str_ne(text(arguments, "status"), "success");
            last_ticket = number(arguments, "ticket");
        } else if (strcmp(text(event, "name"), "process_name") == 0) {
            names++;
            snprintf(own, sizeof own, "raw, pid %d", (int)getpid());
            ck_assert_str_eq(text(arguments, "name"), own);
        } else if (strcmp(text(event, "name"), "thread_name") == 0) {
            names++;
            ck_assert_str_eq(text(arguments, "name"), "stream 1");
        }
    }
    ck_assert_double_eq(last_ticket, (double)ticket);
    ck_assert_int_gt(slices, 0);
    ck_assert_int_gt(marks, 0);
    ck_assert_int_le(abs(slices - marks), 1); /* they took turns */
    ck_assert_int_eq(names, 2);
    cJSON_Delete(json);
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

START_TEST(a_file_that_cannot_be_whole_is_none) {
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/trace.json", server.directory);
    pid_t pid = start_kdactl(path, "3600");
    while (!has_begun())
        usleep(1000);
    harness_kill(&server);
    ck_assert_int_eq(exit_code(pid), 3);
    ck_assert_int_eq(stat(path, &st), -1);
    ck_assert_int_eq(exit_code(start_kdactl("/nonexistent/trace.json", "1")), 3);
    harness_restart(&server);
    ck_assert_int_eq(exit_code(start_kdactl("/nonexistent/trace.json", "1")), 1);
    raw_close(&client);
    raw_close(&tracer);
    raw_open(&client, server.socket); /* for teardown */
    raw_open(&tracer, server.socket);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("trace");
    TCase *c = tcase_create("trace");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, each_job_comes_once_and_whole);
    tcase_add_test(c, nothing_is_kept_while_nobody_asks);
    tcase_add_test(c, what_is_lost_is_counted);
    tcase_add_test(c, jobs_of_many_clients_stay_whole);
#ifdef HAVE_LIBSYSTEMD
    tcase_add_test(c, another_user_may_not_trace);
#endif
    tcase_add_test(c, the_file_has_a_row_for_each_stream);
    tcase_add_test(c, a_file_that_cannot_be_whole_is_none);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
