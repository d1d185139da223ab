/*
 * What the processes of one user may hold of the daemon, over all of their connections: reaching a limit is
 * told by name, harms nobody else, and what is given back can be had again.
 */
#include "tests/harness.h"
#include "tests/socket/raw.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTIONS = 3, STREAMS = 2, BUFFERS = 2, BYTES = 8 << 20, JOBS = 16 };

static const char *const options[] = {"--threads",
                                      "1",
                                      "--max-connections",
                                      "3",
                                      "--max-streams",
                                      "2",
                                      "--max-buffers",
                                      "2",
                                      "--max-bytes",
                                      "8M",
                                      "--max-jobs",
                                      "16",
                                      NULL};

static struct harness server;
static struct raw one, two; /* two connections of one user */

static void setup(void) {
    harness_start(&server, options);
    raw_open(&one, server.socket);
    raw_open(&two, server.socket);
}

static void teardown(void) {
    raw_close(&one);
    raw_close(&two);
    harness_stop(&server);
}

/* "stream: uid 0 has 2 of at most 2 streams (option max-streams), and wants 1 more" */
static const char *sentence(const char *what, uint64_t used, uint64_t max, const char *of, const char *option,
                            uint64_t more) {
    static char text[WIRE_SENTENCE_MAX + 1];
    snprintf(text, sizeof text, "%s: uid %u has %llu of at most %llu %s (option %s), and wants %llu more",
             what, (unsigned)geteuid(), (unsigned long long)used, (unsigned long long)max, of, option,
             (unsigned long long)more);
    return text;
}

static const struct wire_status_reply *ask(struct raw *raw) {
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 77};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_STATUS_REPLY);
    return &raw->message.status_reply;
}

/* The status's row of this user, who is the only one. */
static const struct wire_status_user *used(struct raw *raw) {
    const struct wire_status_reply *reply = ask(raw);
    ck_assert_uint_eq(reply->user_count, 1);
    ck_assert_int_eq(reply->user[0].uid, geteuid());
    return &reply->user[0];
}

START_TEST(connections_are_limited) {
    struct raw third, fourth;
    raw_open(&third, server.socket);
    for (int i = 0; i < 100; i++) {
        raw_connect(&fourth, server.socket);
        raw_expect_closing(&fourth, WIRE_LIMIT,
                           sentence("connection", 3, 3, "connections", "max-connections", 1));
        raw_close(&fourth);
    }
    ck_assert_uint_eq(used(&one)->connections, 3);
    ck_assert_uint_eq(ask(&one)->limits.connections, 3);
    raw_close(&third);
    while (used(&one)->connections > 2)
        usleep(1000);
    raw_open(&third, server.socket);
    raw_close(&third);
}
END_TEST

/* The sentence arrives even if the client has said something that nobody will read. */
START_TEST(who_has_said_hello_is_told_too) {
    struct raw third, fourth;
    struct wire_message m = {.opcode = WIRE_HELLO, .id = 1};
    m.hello = (struct wire_hello){WIRE_MAJOR, WIRE_MINOR, wire_string("0"), 0, wire_string("raw")};
    raw_open(&third, server.socket);
    for (int i = 0; i < 100; i++) {
        kill(server.pid, SIGSTOP);
        raw_connect(&fourth, server.socket);
        raw_send(&fourth, &m, -1);
        kill(server.pid, SIGCONT);
        raw_expect_closing(&fourth, WIRE_LIMIT,
                           sentence("connection", 3, 3, "connections", "max-connections", 1));
        raw_close(&fourth);
    }
    raw_close(&third);
}
END_TEST

START_TEST(streams_are_limited_over_connections) {
    struct timeline *timeline[2];
    struct wire_message open = {.opcode = WIRE_STREAM_OPEN, .id = 2}, close = {.opcode = WIRE_STREAM_CLOSE};
    open.stream_open = (struct wire_stream_open){wire_string("cpu"), 0};
    uint64_t first = raw_stream(&one, &timeline[0]);
    raw_stream(&two, &timeline[1]);
    raw_send(&two, &open, -1);
    raw_expect_error(&two, 2, WIRE_LIMIT, sentence("stream", 2, 2, "streams", "max-streams", 1));
    ck_assert_uint_eq(used(&two)->streams, 2);
    close.id = 9;
    close.stream_close.stream = first;
    raw_send(&one, &close, -1);
    raw_receive(&one, WIRE_STREAM_CLOSE_REPLY);
    timeline_unmap(timeline[0]);
    raw_stream(&two, &timeline[0]);
    timeline_unmap(timeline[0]);
    timeline_unmap(timeline[1]);
}
END_TEST

static void release(struct raw *raw, uint64_t buffer) {
    struct wire_message m = {.opcode = WIRE_RELEASE, .id = 5, .release.buffer = buffer};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_RELEASE_REPLY);
}

START_TEST(buffers_are_limited_over_connections) {
    int fd = raw_memfd(4096);
    uint64_t first = raw_buffer(&one, 4096, fd);
    raw_buffer(&two, 4096, fd);
    raw_register(&two, 4096, fd);
    raw_expect_error(&two, 3, WIRE_LIMIT, sentence("buffer", 2, 2, "buffers", "max-buffers", 1));
    release(&one, first);
    raw_buffer(&two, 4096, fd);
    ck_assert_uint_eq(used(&two)->buffers, 2);
    ck_assert_uint_eq(used(&two)->buffer_bytes, 2 * 4096);
    close(fd);
}
END_TEST

START_TEST(mapped_bytes_are_limited_over_connections) {
    int fd = raw_memfd(BYTES), small = raw_memfd(4096);
    raw_buffer(&one, 4096, small);
    raw_register(&two, BYTES, fd);
    raw_expect_error(&two, 3, WIRE_LIMIT,
                     sentence("buffer", 4096, BYTES, "mapped bytes", "max-bytes", BYTES));
    raw_register(&two, 1, STDERR_FILENO); /* what is refused for another reason is not charged */
    raw_receive(&two, WIRE_ERROR);
    ck_assert_uint_eq(used(&two)->buffer_bytes, 4096);
    raw_close(&one); /* an end gives back all */
    while (used(&two)->buffer_bytes > 0)
        usleep(1000);
    raw_buffer(&two, BYTES, fd);
    raw_open(&one, server.socket);
    close(fd);
    close(small);
}
END_TEST

/* A problem that keeps the one thread busy for some milliseconds, on a buffer of that connection. */
static void busy_problem(struct raw *raw, struct problem *p) {
    uint64_t size;
    raw_problem(p, 256, 4, 64, 1, &size);
    ck_assert_uint_le(size, BYTES);
    int fd = raw_memfd(size);
    raw_problem(p, 256, 4, 64, raw_buffer(raw, size, fd), &size);
    close(fd);
}

/* The daemon finds all of these packets at once. */
START_TEST(jobs_are_limited) {
    enum { MORE = 40 };
    struct timeline *timeline;
    struct problem p;
    uint64_t stream = raw_stream(&one, &timeline), done = 0, ticket = 0;
    busy_problem(&one, &p);
    kill(server.pid, SIGSTOP);
    for (int i = 0; i < JOBS + MORE; i++)
        raw_submit(&one, stream, ++ticket, &p);
    kill(server.pid, SIGCONT);
    for (uint64_t t = 1; t <= ticket; t++) {
        enum wire_status status = raw_wait(timeline, t);
        ck_assert_msg(status == WIRE_OK || status == WIRE_LIMIT, "job %d: status %d", (int)t, (int)status);
        ck_assert(t > JOBS || status == WIRE_OK);
        done += status == WIRE_OK;
    }
    ck_assert_uint_lt(done, ticket);
    for (uint64_t i = done; i < ticket; i++) {
        char text[WIRE_SENTENCE_MAX + 1] = {0};
        raw_receive(&one, WIRE_JOB_ERROR);
        ck_assert_uint_eq(one.message.job_error.status, WIRE_LIMIT);
        memcpy(text, one.message.job_error.sentence.data, one.message.job_error.sentence.size);
        ck_assert_ptr_nonnull(strstr(text, "of at most 16 jobs (option max-jobs), and wants 1 more"));
    }
    ck_assert_uint_eq(used(&two)->jobs_queued, 0);
    for (int i = 0; i < JOBS; i++)
        raw_submit(&one, stream, ++ticket, &p);
    for (uint64_t t = ticket - JOBS + 1; t <= ticket; t++)
        ck_assert_int_eq(raw_wait(timeline, t), WIRE_OK);
    timeline_unmap(timeline);
}
END_TEST

/* Reads a packet; false if it is the daemon's last word. */
static bool read_on(struct raw *raw) {
    char why[PROBLEM_WHY];
    ck_assert_int_eq(packet_receive(raw->socket, &raw->packet, 0), 1);
    ck_assert_msg(wire_decode(raw->codec, raw->packet.data, raw->packet.size, &raw->message, why), "%s", why);
    return raw->message.opcode == WIRE_JOB_ERROR;
}

/* Two streams may have twice 1024 jobs in flight: more than this user may have, be they refused. A client
 * that keeps both full, and reads what it must, is closed before long: when the first jobs of both still run
 * while a thousand more come. */
START_TEST(who_submits_on_and_on_loses_the_connection) {
    struct timeline *timeline[2];
    struct problem p;
    uint64_t stream[2], size, ticket[2] = {0};
    char text[WIRE_SENTENCE_MAX + 1] = {0};
    raw_problem(&p, 512, 4, 128, 1, &size);
    for (int i = 0; i < 2; i++)
        stream[i] = raw_stream(&one, &timeline[i]);
    int fd = raw_memfd(size);
    raw_problem(&p, 512, 4, 128, raw_buffer(&one, size, fd), &size);
    bool open = true;
    for (int s = 0; open; s = 1 - s) {
        struct wire_message m = {.opcode = WIRE_SUBMIT};
        if (ticket[s] - atomic_load(&timeline[s]->done) == WIRE_STREAM_SLOTS) {
            open = read_on(&one); /* both full: then a refusal comes, sooner or later */
            continue;
        }
        m.submit = (struct wire_submit){stream[s], ticket[s] + 1, WIRE_CHUNK_KDA_BWD_INTRA, p};
        const void *bytes = wire_encode(one.codec, &m, &size);
        if (packet_send(one.socket, bytes, size, NULL, 0, MSG_DONTWAIT) == 0)
            ticket[s]++;
        else
            open = errno == EAGAIN && !poll(&(struct pollfd){.fd = one.socket, .events = POLLIN}, 1, 1)
                       ? true
                       : read_on(&one);
    }
    ck_assert_uint_eq(one.message.opcode, WIRE_ERROR);
    ck_assert_uint_eq(one.message.error.status, WIRE_LIMIT);
    ck_assert(one.message.error.closing);
    memcpy(text, one.message.error.sentence.data, one.message.error.sentence.size);
    ck_assert_ptr_nonnull(strstr(text, "of at most 16 jobs (option max-jobs)"));
    raw_close(&one);
    while (used(&two)->jobs_queued > 0)
        usleep(1000);
    raw_open(&one, server.socket);
    for (int i = 0; i < 2; i++)
        timeline_unmap(timeline[i]);
    close(fd);
}
END_TEST

/* A lower limit takes nothing away; a higher one is there at once. */
START_TEST(a_reload_changes_them) {
    char path[sizeof server.directory + 16];
    snprintf(path, sizeof path, "%s/kdad.conf", server.directory);
    static const char *reloadable[] = {"--config", NULL, NULL};
    harness_kill(&server);
    reloadable[1] = path;
    server.options = reloadable;
    FILE *file = fopen(path, "w");
    fputs("max-connections = 2\n", file);
    fclose(file);
    harness_restart(&server);
    raw_close(&one);
    raw_close(&two);
    raw_open(&one, server.socket);
    raw_open(&two, server.socket);
    file = fopen(path, "w");
    fputs("max-connections = 1\n", file);
    fclose(file);
    kill(server.pid, SIGHUP);
    while (ask(&one)->limits.connections != 1)
        usleep(1000);
    ck_assert_uint_eq(used(&two)->connections, 2);
    struct raw third;
    raw_connect(&third, server.socket);
    raw_expect_closing(&third, WIRE_LIMIT, sentence("connection", 2, 1, "connections", "max-connections", 1));
    raw_close(&third);
    file = fopen(path, "w");
    fputs("max-connections = 3\n", file);
    fclose(file);
    kill(server.pid, SIGHUP);
    while (ask(&one)->limits.connections != 3)
        usleep(1000);
    raw_open(&third, server.socket);
    raw_close(&third);
    unlink(path);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("limits");
    TCase *c = tcase_create("limits");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, connections_are_limited);
    tcase_add_test(c, who_has_said_hello_is_told_too);
    tcase_add_test(c, streams_are_limited_over_connections);
    tcase_add_test(c, buffers_are_limited_over_connections);
    tcase_add_test(c, mapped_bytes_are_limited_over_connections);
    tcase_add_test(c, jobs_are_limited);
    tcase_add_test(c, who_submits_on_and_on_loses_the_connection);
    tcase_add_test(c, a_reload_changes_them);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
