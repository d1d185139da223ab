/*
 * Descriptors and address space that run out, in the daemon and in a client: what cannot be had is told in
 * words, what is there goes on, and afterwards all is as before.
 */
#include "tests/harness.h"
#include "tests/socket/raw.h"
#include "tests/socket/sample.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { DESCRIPTORS = 64 };

static const char *const options[] = {"--threads", "1", NULL};
static struct harness server;

/* Its process has few descriptors, which this one passes on. */
static void setup_few_descriptors(void) {
    struct rlimit few = {DESCRIPTORS, DESCRIPTORS};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    harness_start(&server, options);
}

static void teardown(void) {
    harness_stop(&server);
}

static void run_job(struct raw *raw) {
    struct timeline *timeline;
    struct problem p;
    uint64_t size, stream = raw_stream(raw, &timeline);
    raw_problem(&p, 64, 1, 16, 1, &size);
    int fd = raw_memfd(size);
    uint64_t buffer = raw_buffer(raw, size, fd);
    close(fd);
    raw_problem(&p, 64, 1, 16, buffer, &size);
    raw_submit(raw, stream, 1, &p);
    ck_assert_int_eq(raw_wait(timeline, 1), WIRE_OK);
    struct wire_message m = {.opcode = WIRE_RELEASE, .id = 5, .release.buffer = buffer};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_RELEASE_REPLY);
    m = (struct wire_message){.opcode = WIRE_STREAM_CLOSE, .id = 6, .stream_close.stream = stream};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_STREAM_CLOSE_REPLY);
    timeline_unmap(timeline);
}

static uint32_t clients(struct raw *raw) {
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 77};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_STATUS_REPLY);
    return raw->message.status_reply.clients;
}

/* True if the connection is served; else it must have been told why not. */
static bool greet(struct raw *raw) {
    struct wire_message m = {.opcode = WIRE_HELLO, .id = 1};
    size_t size;
    char why[PROBLEM_WHY];
    m.hello = (struct wire_hello){WIRE_MAJOR, WIRE_MINOR, wire_string("0"), 0, wire_string("raw")};
    raw_connect(raw, server.socket);
    const void *bytes = wire_encode(raw->codec, &m, &size);
    raw_try(raw, bytes, size, NULL, 0);
    ck_assert_int_eq(packet_receive(raw->socket, &raw->packet, 0), 1);
    ck_assert(wire_decode(raw->codec, raw->packet.data, raw->packet.size, &raw->message, why));
    if (raw->message.opcode == WIRE_HELLO_REPLY)
        return true;
    const struct wire_error *error = &raw->message.error;
    static const char told[] = "connection: the daemon has no descriptors left (LimitNOFILE)";
    ck_assert_uint_eq(raw->message.opcode, WIRE_ERROR);
    ck_assert_uint_eq(error->status, WIRE_LIMIT);
    ck_assert(error->closing);
    ck_assert_uint_eq(error->sentence.size, sizeof told - 1);
    ck_assert_int_eq(memcmp(error->sentence.data, told, sizeof told - 1), 0);
    return false;
}

/* Those that are served have what they need for their work; those that are not know why. */
START_TEST(few_descriptors) {
    struct raw raw[DESCRIPTORS], more;
    int served = 0;
    while (greet(&raw[served])) {
        served++;
        ck_assert_int_lt(served, DESCRIPTORS);
    }
    raw_close(&raw[served]);
    ck_assert_int_ge(served, 8);
    for (int i = 0; i < served; i++)
        run_job(&raw[i]);
    for (int i = 0; i < 20; i++) {
        ck_assert(!greet(&more));
        raw_close(&more);
    }
    ck_assert_uint_eq(clients(&raw[0]), (uint32_t)served);
    for (int i = 1; i < served; i++)
        raw_close(&raw[i]);
    while (clients(&raw[0]) > 1)
        usleep(1000);
    for (int i = 1; i < served; i++)
        ck_assert_msg(greet(&raw[i]), "connection %d of %d is refused when the others have gone", i, served);
    for (int i = 0; i < served; i++) {
        run_job(&raw[i]);
        raw_close(&raw[i]);
    }
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their shadow needs terabytes */

static void setup(void) {
    harness_start(&server, options);
}

static struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};

/* A process may have that much more address space than it has. */
static void limit_space(pid_t pid, uint64_t more) {
    char path[64];
    unsigned long long pages;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    struct rlimit limit = {pages * (uint64_t)sysconf(_SC_PAGESIZE) + more, RLIM_INFINITY};
    ck_assert_int_eq(prlimit(pid, RLIMIT_AS, &limit, NULL), 0);
}

START_TEST(a_daemon_with_little_address_space) {
    enum { LARGE = 64 << 20 };
    struct raw raw;
    int fd = raw_memfd(LARGE);
    raw_open(&raw, server.socket);
    limit_space(server.pid, LARGE / 2);
    raw_register(&raw, LARGE, fd);
    raw_expect_error(&raw, 3, WIRE_NO_MEMORY, "buffer: cannot be mapped: Cannot allocate memory");
    run_job(&raw);
    ck_assert_int_eq(prlimit(server.pid, RLIMIT_AS, &unlimited, NULL), 0);
    raw_buffer(&raw, LARGE, fd);
    run_job(&raw);
    raw_close(&raw);
    close(fd);
}
END_TEST

/* The daemon has no address space at all to gain: whatever it says then, it goes on, and serves afterwards.
 */
START_TEST(a_daemon_without_address_space) {
    struct raw raw, more;
    struct wire_message open = {.opcode = WIRE_STREAM_OPEN, .id = 2};
    open.stream_open = (struct wire_stream_open){wire_string("cpu"), 0};
    int failures = 0;
    raw_open(&raw, server.socket);
    limit_space(server.pid, 0);
    for (int i = 0; i < WIRE_STREAMS_MAX; i++) {
        char why[PROBLEM_WHY];
        raw_send(&raw, &open, -1);
        ck_assert_int_eq(packet_receive(raw.socket, &raw.packet, 0), 1);
        ck_assert(wire_decode(raw.codec, raw.packet.data, raw.packet.size, &raw.message, why));
        packet_close_fds(&raw.packet);
        failures += raw.message.opcode == WIRE_ERROR && raw.message.error.status == WIRE_NO_MEMORY &&
                    !raw.message.error.closing;
    }
    ck_assert_int_eq(failures, WIRE_STREAMS_MAX);
    ck_assert_int_eq(prlimit(server.pid, RLIMIT_AS, &unlimited, NULL), 0);
    run_job(&raw);
    raw_open(&more, server.socket);
    run_job(&more);
    raw_close(&more);
    raw_close(&raw);
}
END_TEST

START_TEST(a_client_with_little_address_space) {
    enum { LARGE = 256 << 20 };
    struct kdad_connection *connection, *second;
    ck_assert_int_eq(kdad_connect(server.socket, 20000, &connection), KDAD_OK);
    limit_space(getpid(), LARGE / 4);
    ck_assert_ptr_null(kdad_alloc(connection, LARGE));
    ck_assert_str_eq(kdad_error(), "memory: 268435456 bytes cannot be mapped: Cannot allocate memory");
    void *small = kdad_alloc(connection, 4096);
    ck_assert_ptr_nonnull(small);
    limit_space(getpid(), 0);
    ck_assert_int_eq(kdad_connect(server.socket, 20000, &second), KDAD_NO_MEMORY);
    ck_assert_msg(strncmp(kdad_error(), "connection: ", 12) == 0, "%s", kdad_error());
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &unlimited), 0);
    kdad_free(connection, small);
    void *large = kdad_alloc(connection, LARGE);
    ck_assert_ptr_nonnull(large);
    kdad_free(connection, large);
    ck_assert_int_eq(kdad_connect(server.socket, 20000, &second), KDAD_OK);
    kdad_disconnect(second);
    kdad_disconnect(connection);
}
END_TEST

#endif

int main(void) {
    Suite *suite = suite_create("scarcity");
    TCase *c = tcase_create("descriptors");
    tcase_add_checked_fixture(c, setup_few_descriptors, teardown);
    tcase_add_test(c, few_descriptors);
    suite_add_tcase(suite, c);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    c = tcase_create("address space");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, a_daemon_with_little_address_space);
    tcase_add_test(c, a_daemon_without_address_space);
    tcase_add_test(c, a_client_with_little_address_space);
    suite_add_tcase(suite, c);
#endif
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
