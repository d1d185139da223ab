/*
 * Two users at one daemon: what one holds is not charged to the other, nor does reaching a limit harm them.
 * Needs root, which may be anybody for a while, and a daemon that takes over a socket.
 */
#include "tests/harness.h"
#include "tests/socket/raw.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OTHER = 65534, THIRD = 65533 };

static const char *const options[] = {
    "--max-connections", "2", "--max-streams", "1", "--max-bytes", "8K", "--max-jobs", "100", NULL};
static char directory[] = "/tmp/kdad-test-XXXXXX", path[64];
static int listener;
static pid_t server;

static void setup(void) {
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(chmod(directory, 0755), 0);
    snprintf(path, sizeof path, "%s/kdad.sock", directory);
    listener = harness_listen(path);
    server = harness_spawn_on(listener, options);
}

static void teardown(void) {
    int status;
    kill(server, SIGTERM);
    ck_assert_int_eq(waitpid(server, &status, 0), server);
    ck_assert_int_eq(status, 0);
    close(listener);
    unlink(path);
    rmdir(directory);
}

/* Connects as a user: the kernel notes who it was then. */
static void open_as(struct raw *raw, uid_t uid) {
    ck_assert_int_eq(seteuid(uid), 0);
    raw_open(raw, path);
    ck_assert_int_eq(seteuid(0), 0);
}

static const struct wire_status_user *row(struct raw *raw, uid_t uid) {
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 77};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_STATUS_REPLY);
    const struct wire_status_reply *s = &raw->message.status_reply;
    for (uint32_t i = 0; i < s->user_count; i++) {
        if (s->user[i].uid == uid)
            return &s->user[i];
    }
    return NULL;
}

static void refuse_stream(struct raw *raw, const char *sentence) {
    struct wire_message open = {.opcode = WIRE_STREAM_OPEN, .id = 2};
    open.stream_open = (struct wire_stream_open){wire_string("cpu"), 0};
    raw_send(raw, &open, -1);
    raw_expect_error(raw, 2, WIRE_LIMIT, sentence);
}

START_TEST(each_user_has_its_own) {
    struct raw root[2], other[2], more;
    struct timeline *timeline[2];
    int fd = raw_memfd(8192);
    for (int i = 0; i < 2; i++) {
        open_as(&root[i], 0);
        open_as(&other[i], OTHER);
    }
    ck_assert_int_eq(seteuid(OTHER), 0);
    raw_connect(&more, path);
    ck_assert_int_eq(seteuid(0), 0);
    raw_expect_closing(&more, WIRE_LIMIT,
                       "connection: uid 65534 has 2 of at most 2 connections (option max-connections), and "
                       "wants 1 more");
    raw_close(&more);
    open_as(&more, THIRD); /* nobody else is refused */
    raw_stream(&root[0], &timeline[0]);
    raw_stream(&other[1], &timeline[1]);
    refuse_stream(&other[0], "stream: uid 65534 has 1 of at most 1 streams (option max-streams), and wants 1 "
                             "more");
    refuse_stream(&root[1],
                  "stream: uid 0 has 1 of at most 1 streams (option max-streams), and wants 1 more");
    raw_buffer(&root[0], 8192, fd);
    raw_buffer(&other[0], 4096, fd);
    raw_register(&other[1], 8192, fd);
    raw_expect_error(&other[1], 3, WIRE_LIMIT,
                     "buffer: uid 65534 has 4096 of at most 8192 mapped bytes (option max-bytes), and wants "
                     "8192 more");
    ck_assert_uint_eq(row(&more, 0)->buffer_bytes, 8192);
    ck_assert_uint_eq(row(&more, OTHER)->buffer_bytes, 4096);
    ck_assert_uint_eq(row(&more, OTHER)->streams, 1);
    ck_assert_uint_eq(row(&more, THIRD)->connections, 1);
    ck_assert_uint_eq(row(&more, THIRD)->streams, 0);
    for (int i = 0; i < 2; i++) {
        raw_close(&other[i]);
        timeline_unmap(timeline[i]);
    }
    while (row(&more, OTHER)) /* forgotten once it holds nothing */
        usleep(1000);
    open_as(&other[0], OTHER);
    raw_buffer(&other[0], 8192, fd);
    raw_close(&other[0]);
    raw_close(&root[0]);
    raw_close(&root[1]);
    raw_close(&more);
    close(fd);
}
END_TEST

/* Handles of a GPU's memory are taken from the daemon's own user alone, whatever backends there are. */
START_TEST(another_users_handles_are_refused) {
    struct raw other;
    char handle[WIRE_HANDLE_SIZE] = {0};
    struct wire_message m = {.opcode = WIRE_REGISTER, .id = 3};
    m.reg = (struct wire_register){.kind = WIRE_BUFFER_CUDA_IPC,
                                   .size = 4096,
                                   .device = wire_string("GPU-0"),
                                   .handle = {handle, sizeof handle}};
    open_as(&other, OTHER);
    raw_send(&other, &m, -1);
    raw_expect_error(&other, 3, WIRE_UNSUPPORTED,
                     "buffer: GPU memory by its IPC handle is mapped for uid 0 alone, who runs the daemon, "
                     "not for uid 65534");
    ck_assert_uint_eq(row(&other, OTHER)->buffers, 0);
    raw_close(&other);
}
END_TEST

int main(void) {
#ifndef HAVE_LIBSYSTEMD
    puts("skipped: this kdad takes over no socket");
    return 77;
#endif
    if (geteuid() != 0) {
        puts("skipped: needs root");
        return 77;
    }
    Suite *suite = suite_create("users");
    TCase *c = tcase_create("users");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, each_user_has_its_own);
    tcase_add_test(c, another_users_handles_are_refused);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
