/*
 * fuzz_record.c - makes the seeds: sessions of libkdad with a daemon, as they go over the socket. Every
 * packet that this process sends is written down (sendmsg is wrapped by the linker), a file for each session.
 *
 *     fuzz-record DIRECTORY: writes DIRECTORY/connection/… and DIRECTORY/codec/… (single packets, of both
 * ends)
 */
#include "tests/fuzz/fuzz_session.h"
#include "tests/harness.h"
#include "tests/socket/raw.h"
#include "tests/socket/sample.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* The linker's names for what it wraps. */
ssize_t real_sendmsg(int socket, const struct msghdr *message, int flags) __asm__("__real_sendmsg");
ssize_t real_recvmsg(int socket, struct msghdr *message, int flags) __asm__("__real_recvmsg");
ssize_t wrapped_sendmsg(int socket, const struct msghdr *message, int flags) __asm__("__wrap_sendmsg");
ssize_t wrapped_recvmsg(int socket, struct msghdr *message, int flags) __asm__("__wrap_recvmsg");

static const char *directory;
static FILE *session;
static int packets;

static void write_packet(const void *bytes, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/codec/packet-%02d", directory, packets++);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, size, f) != size || fclose(f) != 0)
        perror(path);
}

ssize_t wrapped_sendmsg(int socket, const struct msghdr *message, int flags) {
    size_t size = message->msg_iov[0].iov_len;
    if (session && size < 65536) {
        fputc(message->msg_controllen ? SESSION_MEMFD : SESSION_NONE, session);
        fputc((int)(size & 255), session);
        fputc((int)(size >> 8), session);
        fwrite(message->msg_iov[0].iov_base, 1, size, session);
        if (packets < 40)
            write_packet(message->msg_iov[0].iov_base, size);
    }
    return real_sendmsg(socket, message, flags);
}

ssize_t wrapped_recvmsg(int socket, struct msghdr *message, int flags) {
    ssize_t n = real_recvmsg(socket, message, flags);
    if (session && n > 0 && packets < 60)
        write_packet(message->msg_iov[0].iov_base, (size_t)n);
    return n;
}

static void begin(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/connection/%s", directory, name);
    session = fopen(path, "wb");
    ck_assert_msg(session != NULL, "%s", path);
}

static void end(void) {
    fclose(session);
    session = NULL;
}

static void record_library(const char *name, const struct sample_shape *shape, uint32_t plain, int flags,
                           int jobs) {
    struct kdad_connection *c;
    struct kdad_stream *s;
    struct sample sample;
    kdad_ticket ticket = 0;
    begin(name);
    ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c));
    ck_ok(kdad_stream_open(c, NULL, &s));
    sample_make(&sample, shape, c, plain, flags, 1);
    for (int i = 0; i < jobs; i++)
        ck_ok(kdad_chunk_kda_bwd_intra(s, &sample.args, &ticket));
    kdad_wait(s, ticket, KDAD_DEFAULT_TIMEOUT);
    sample_free(&sample);
    kdad_stream_close(s);
    kdad_disconnect(c);
    end();
}

/* By hand: a session in which everything lies in one buffer of the fuzzer's size. */
static void record_raw(const struct harness *server) {
    struct raw raw;
    struct timeline *timeline;
    struct problem p;
    uint64_t size, stream, buffer;
    int fd = raw_memfd(65536);
    begin("raw");
    raw_open(&raw, server->socket);
    stream = raw_stream(&raw, &timeline);
    buffer = raw_buffer(&raw, 65536, fd);
    raw_problem(&p, 20, 2, 16, buffer, &size);
    raw_submit(&raw, stream, 1, &p);
    ck_assert_int_eq(raw_wait(timeline, 1), WIRE_OK);
    p.C = 17;
    raw_submit(&raw, stream, 2, &p);
    ck_assert_int_eq(raw_wait(timeline, 2), WIRE_INVALID);
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 5};
    raw_send(&raw, &m, -1);
    m = (struct wire_message){.opcode = WIRE_RELEASE, .id = 6, .release = {buffer}};
    raw_send(&raw, &m, -1);
    m = (struct wire_message){.opcode = WIRE_STREAM_CLOSE, .id = 7, .stream_close = {stream}};
    raw_send(&raw, &m, -1);
    ck_assert_int_eq(raw_fate(&raw), RAW_ALIVE);
    raw_close(&raw);
    timeline_unmap(timeline);
    end();
}

START_TEST(sessions) {
    static const struct sample_shape varlen = {1, 40, 1, 2, 16, 16, 3, KDAD_BF16, KDAD_BF16, KDAD_I32};
    struct harness server;
    harness_start(&server, NULL);
    record_raw(&server);
    record_library("tiny", &sample_tiny, 0, 0, 3);
    record_library("in_place", &sample_tiny, 0, SAMPLE_IN_PLACE, 1);
    record_library("varlen", &varlen, 0, 0, 2);
    record_library("strided", &sample_small, 0, SAMPLE_STRIDED | SAMPLE_EXPANDED, 1);
    record_library("staged", &sample_tiny, SAMPLE_ALL_PLAIN, 0, 2);
    harness_stop(&server);
}
END_TEST

int main(int argc, char **argv) {
    char path[512];
    if (argc != 2) {
        fputs("Usage: fuzz-record DIRECTORY\n", stderr);
        return 2;
    }
    directory = argv[1];
    snprintf(path, sizeof path, "%s/connection", directory);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/codec", directory);
    mkdir(path, 0755);
    Suite *suite = suite_create("record");
    TCase *c = tcase_create("record");
    tcase_add_test(c, sessions);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
