/*
 * The daemon at its socket, by a client that speaks the wire itself: what it answers, what it refuses and
 * how, and that nothing of a client stays behind.
 */
#include "tests/harness.h"
#include "tests/socket/raw.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Sanitizers keep memory that was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static struct harness server;
static struct raw client;

static void setup(void) {
    harness_start(&server, NULL);
}

static void teardown(void) {
    harness_stop(&server);
}

static void setup_client(void) {
    setup();
    raw_open(&client, server.socket);
}

static void teardown_client(void) {
    raw_close(&client);
    teardown();
}

static struct wire_status_reply *ask_status(struct raw *raw) {
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 77};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_STATUS_REPLY);
    return &raw->message.status_reply;
}

/* --- broken peers -------------------------------------------------------------------------------------- */

START_TEST(hello_comes_first_and_once) {
    struct raw raw;
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 1};
    raw_connect(&raw, server.socket);
    raw_send(&raw, &m, -1);
    raw_expect_closing(&raw, WIRE_PROTOCOL, "packet: opcode 7 before HELLO");
    raw_close(&raw);
    raw_open(&raw, server.socket);
    m.opcode = WIRE_HELLO;
    m.hello = (struct wire_hello){WIRE_MAJOR, WIRE_MINOR, wire_string("0"), 0, wire_string("raw")};
    raw_send(&raw, &m, -1);
    raw_expect_closing(&raw, WIRE_PROTOCOL, "HELLO: sent twice");
    raw_close(&raw);
}
END_TEST

START_TEST(another_major_version_is_refused) {
    struct raw raw;
    struct wire_message m = {.opcode = WIRE_HELLO, .id = 1};
    m.hello = (struct wire_hello){2, 3, wire_string("9"), 0, wire_string("new")};
    raw_connect(&raw, server.socket);
    raw_send(&raw, &m, -1);
    raw_expect_closing(&raw, WIRE_PROTOCOL, "HELLO: the client speaks protocol 2.3, this daemon 1.0");
    raw_close(&raw);
}
END_TEST

START_TEST(a_silent_client_is_closed) {
    struct raw raw;
    raw_connect(&raw, server.socket);
    raw_expect_closing(&raw, WIRE_PROTOCOL, "HELLO: did not come within 5000 ms");
    raw_close(&raw);
}
END_TEST

START_TEST(broken_packets_close_the_connection) {
    static char large[WIRE_PACKET_MAX + 1];
    struct {
        const char *bytes;
        size_t size;
        const char *sentence;
    } cases[] = {
        {"\xdd\x08\x00\x00\x00", 5, "packet: a count beyond the packet's end"},
        {"\xc1", 1, "packet: a msgpack type that the protocol does not use"},
        {"\x07", 1, "packet: is not a msgpack array"},
        {"\x93\x05\x05", 3, "packet: a count beyond the packet's end"},
        {"\x93\x05\x05\xff", 4,
         "packet: opcode 5: field 'buffer' is missing, of a wrong type or out of range"},
        {"\x90", 1, "packet: opcode 0: field 'opcode' is missing, of a wrong type or out of range"},
        {large, sizeof large, "packet: longer than 65536 bytes, or with more than 253 descriptors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct raw raw;
        raw_open(&raw, server.socket);
        raw_send_bytes(&raw, cases[i].bytes, cases[i].size, NULL, 0);
        raw_expect_closing(&raw, WIRE_PROTOCOL, cases[i].sentence);
        raw_close(&raw);
    }
    struct raw raw;
    raw_open(&raw, server.socket); /* others are still served */
    raw_close(&raw);
}
END_TEST

START_TEST(wrong_descriptors_close_the_connection) {
    struct raw raw;
    int fds[WIRE_FDS_MAX];
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 1};
    raw_open(&raw, server.socket);
    raw_send(&raw, &m, STDERR_FILENO);
    raw_expect_closing(&raw, WIRE_PROTOCOL, "packet: opcode 7 takes no descriptors");
    raw_close(&raw);
    raw_open(&raw, server.socket);
    raw_register(&raw, 4096, -1);
    raw_expect_closing(&raw, WIRE_PROTOCOL, "REGISTER: came with 0 descriptors, not 1");
    raw_close(&raw);
    for (int i = 0; i < WIRE_FDS_MAX; i++)
        fds[i] = STDERR_FILENO;
    raw_open(&raw, server.socket);
    raw_send_bytes(&raw, "\x94\x04\x03\x01\x01", 5, fds, WIRE_FDS_MAX);
    raw_expect_closing(&raw, WIRE_PROTOCOL, "REGISTER: came with 253 descriptors, not 1");
    raw_close(&raw);
}
END_TEST

/* --- requests ------------------------------------------------------------------------------------------ */

START_TEST(an_unknown_opcode_is_answered) {
    raw_send_bytes(&client, "\x92\x63\x0a", 3, NULL, 0);
    raw_expect_error(&client, 10, WIRE_UNSUPPORTED, "packet: opcode 99 is not known");
    ask_status(&client);
}
END_TEST

static void refuse_memory(int fd, uint64_t size, enum wire_status status, const char *sentence) {
    ck_assert_int_ge(fd, 0);
    raw_register(&client, size, fd);
    raw_expect_error(&client, 3, status, sentence);
    close(fd);
}

static int unsealed(int seals, off_t allocated, off_t size) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, size), 0);
    if (allocated)
        ck_assert_int_eq(posix_fallocate(fd, 0, allocated), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

START_TEST(unfit_memory_is_refused) {
    const char no_memfd[] = "buffer: the descriptor is not a memfd of ordinary pages";
    int pair[2];
    ck_assert_int_eq(pipe(pair), 0);
    close(pair[1]);
    refuse_memory(pair[0], 4096, WIRE_INVALID, no_memfd);
    refuse_memory(open("/tmp", O_RDONLY | O_DIRECTORY), 4096, WIRE_INVALID, no_memfd);
    refuse_memory(open("/proc/self/exe", O_RDONLY), 4096, WIRE_INVALID, no_memfd);
    refuse_memory(open("/dev/zero", O_RDWR), 4096, WIRE_INVALID, no_memfd);
    refuse_memory(socket(AF_UNIX, SOCK_SEQPACKET, 0), 4096, WIRE_INVALID, no_memfd);
    refuse_memory(unsealed(F_SEAL_GROW, 4096, 4096), 4096, WIRE_INVALID,
                  "buffer: the memfd is not sealed with F_SEAL_SHRINK");
    refuse_memory(unsealed(F_SEAL_SHRINK, 0, (off_t)1 << 40), (uint64_t)1 << 40, WIRE_INVALID,
                  "buffer: only 0 of 1099511627776 bytes are allocated: fallocate the memfd first");
    refuse_memory(unsealed(F_SEAL_SHRINK, 4096, 8192), 8192, WIRE_INVALID,
                  "buffer: only 4096 of 8192 bytes are allocated: fallocate the memfd first");
    refuse_memory(raw_memfd(4096), 4097, WIRE_INVALID, "buffer: size is 4097, but the memfd has 4096 bytes");
    refuse_memory(raw_memfd(4096), 0, WIRE_INVALID, "buffer: size is 0, but the memfd has 4096 bytes");
    refuse_memory(raw_memfd(4096), UINT64_MAX, WIRE_INVALID,
                  "buffer: size is 18446744073709551615, but the memfd has 4096 bytes");
    refuse_memory(unsealed(F_SEAL_SHRINK | F_SEAL_WRITE, 4096, 4096), 4096, WIRE_INVALID,
                  "buffer: cannot be mapped: Operation not permitted");
    int fd = raw_memfd(4096);
    struct wire_message m = {.opcode = WIRE_REGISTER, .id = 3, .reg = {.kind = 7, .size = 4096}};
    raw_send(&client, &m, fd);
    raw_expect_error(&client, 3, WIRE_UNSUPPORTED, "buffer: kind is 7, which this daemon does not map");
    close(fd);
    ck_assert_uint_eq(ask_status(&client)->buffers, 0);
}
END_TEST

START_TEST(an_unknown_device_is_refused) {
    struct wire_message m = {.opcode = WIRE_STREAM_OPEN, .id = 2};
    m.stream_open = (struct wire_stream_open){wire_string("GPU-1"), 0};
    raw_send(&client, &m, -1);
    raw_expect_error(&client, 2, WIRE_UNSUPPORTED,
                     "stream: device is 'GPU-1', which this daemon does not serve");
}
END_TEST

START_TEST(limits_of_a_connection_are_told) {
    struct timeline *timeline;
    struct wire_message m = {.opcode = WIRE_STREAM_OPEN, .id = 2};
    m.stream_open = (struct wire_stream_open){wire_string(""), 0};
    for (int i = 0; i < WIRE_STREAMS_MAX; i++) {
        raw_stream(&client, &timeline);
        timeline_unmap(timeline);
    }
    raw_send(&client, &m, -1);
    raw_expect_error(&client, 2, WIRE_LIMIT, "stream: the connection has 256 already, and may have no more");
    int fd = raw_memfd(4096);
    for (int i = 0; i < WIRE_BUFFERS_MAX; i++)
        raw_buffer(&client, 4096, fd);
    raw_register(&client, 4096, fd);
    raw_expect_error(&client, 3, WIRE_LIMIT, "buffer: the connection has 4096 already, and may have no more");
    close(fd);
    struct wire_status_reply *status = ask_status(&client);
    ck_assert_uint_eq(status->streams, WIRE_STREAMS_MAX);
    ck_assert_uint_eq(status->buffers, WIRE_BUFFERS_MAX);
    ck_assert_uint_eq(status->buffer_bytes, (uint64_t)WIRE_BUFFERS_MAX * 4096);
}
END_TEST

static void expect_job_error(uint64_t stream, uint64_t ticket, enum wire_status status,
                             const char *sentence) {
    char text[WIRE_SENTENCE_MAX + 1] = {0};
    raw_receive(&client, WIRE_JOB_ERROR);
    const struct wire_job_error *e = &client.message.job_error;
    memcpy(text, e->sentence.data, e->sentence.size);
    ck_assert_str_eq(text, sentence);
    ck_assert_uint_eq(e->stream, stream);
    ck_assert_uint_eq(e->ticket, ticket);
    ck_assert_uint_eq(e->status, status);
}

/* Each bad job gets its status in the timeline and a sentence; the good one behind them runs. */
START_TEST(bad_jobs_fail_alone) {
    struct timeline *timeline;
    uint64_t stream = raw_stream(&client, &timeline), size, bytes = 1 << 20;
    int fd = raw_memfd(bytes);
    uint64_t buffer = raw_buffer(&client, bytes, fd), again = raw_buffer(&client, bytes, fd);
    struct problem good, p;
    close(fd);
    raw_problem(&good, 3, 1, 16, buffer, &size);
    p = good;
    p.at[OPERAND_G].allocation = 999;
    raw_submit(&client, stream, 1, &p);
    expect_job_error(stream, 1, WIRE_NOT_FOUND, "g: the connection has no buffer 999");
    p = good;
    p.at[OPERAND_G].offset = UINT64_MAX - 3;
    raw_submit(&client, stream, 2, &p);
    expect_job_error(stream, 2, WIRE_INVALID, "g: ends at byte 188 of its memory, which has only 1048576");
    p = good;
    p.at[OPERAND_G].stride[1] = INT64_MAX;
    raw_submit(&client, stream, 3, &p);
    expect_job_error(stream, 3, WIRE_INVALID, "g: spans more than 2^60 bytes");
    p = good;
    p.C = 65;
    raw_submit(&client, stream, 4, &p);
    expect_job_error(stream, 4, WIRE_INVALID, "chunk_size: is 65, but must be 16, 32, 64 or 128");
    p = good; /* the same memory under two ids is the same memory */
    p.at[OPERAND_DQ_OUT].allocation = again;
    p.at[OPERAND_DQ_OUT].offset = good.at[OPERAND_DK].offset;
    raw_submit(&client, stream, 5, &p);
    expect_job_error(stream, 5, WIRE_INVALID,
                     "dq_out: overlaps dk, but may share memory only with dq, as the identical view");
    struct wire_message m = {.opcode = WIRE_SUBMIT, .submit = {stream, 6, 42, good}};
    raw_send(&client, &m, -1);
    expect_job_error(stream, 6, WIRE_UNSUPPORTED, "job: operation 42 is not known");
    raw_submit(&client, 12345, 1, &good);
    expect_job_error(12345, 1, WIRE_NOT_FOUND, "stream: the connection has no such stream");
    raw_submit(&client, stream, 7, &good);
    enum wire_status expected[] = {WIRE_OK,      WIRE_NOT_FOUND, WIRE_INVALID,     WIRE_INVALID,
                                   WIRE_INVALID, WIRE_INVALID,   WIRE_UNSUPPORTED, WIRE_OK};
    for (uint64_t t = 1; t <= 7; t++)
        ck_assert_int_eq(raw_wait(timeline, t), expected[t]);
    struct wire_status_reply *status = ask_status(&client);
    ck_assert_uint_eq(status->jobs_done, 1);
    ck_assert_uint_eq(status->jobs_failed, 6);
    ck_assert_uint_eq(status->jobs_queued, 0);
    timeline_unmap(timeline);
}
END_TEST

/* What lies in the socket at once must not matter: all sizes up to well beyond what the daemon reads at once.
 */
START_TEST(bursts_of_any_size_are_served) {
    struct timeline *timeline;
    struct problem p;
    uint64_t size, stream = raw_stream(&client, &timeline), ticket = 0;
    int fd = raw_memfd(65536);
    raw_problem(&p, 3, 1, 16, raw_buffer(&client, 65536, fd), &size);
    close(fd);
    for (int round = 0; round < 200; round++) {
        int burst = 1 + round * 7 % 61;
        kill(server.pid, SIGSTOP);
        for (int i = 0; i < burst; i++)
            raw_submit(&client, stream, ++ticket, &p);
        kill(server.pid, SIGCONT);
        ck_assert_int_eq(raw_wait(timeline, ticket), WIRE_OK);
    }
    struct wire_status_reply *status = ask_status(&client);
    ck_assert_uint_eq(status->jobs_done, ticket);
    ck_assert_uint_eq(status->jobs_failed, 0);
    timeline_unmap(timeline);
}
END_TEST

START_TEST(another_clients_buffer_is_not_found) {
    struct raw other;
    struct timeline *timeline;
    struct problem p;
    uint64_t size;
    int fd = raw_memfd(1 << 20);
    raw_open(&other, server.socket);
    uint64_t foreign = raw_buffer(&other, 1 << 20, fd);
    uint64_t stream = raw_stream(&client, &timeline);
    raw_problem(&p, 3, 1, 16, foreign, &size);
    raw_submit(&client, stream, 1, &p);
    ck_assert_int_eq(raw_wait(timeline, 1), WIRE_NOT_FOUND);
    close(fd);
    timeline_unmap(timeline);
    raw_close(&other);
}
END_TEST

START_TEST(ids_end_with_their_objects) {
    struct timeline *timeline;
    uint64_t stream = raw_stream(&client, &timeline), size;
    int fd = raw_memfd(1 << 20);
    uint64_t buffer = raw_buffer(&client, 1 << 20, fd);
    struct wire_message release = {.opcode = WIRE_RELEASE, .id = 4, .release = {buffer}};
    struct wire_message end = {.opcode = WIRE_STREAM_CLOSE, .id = 5, .stream_close = {stream}};
    struct problem p;
    raw_problem(&p, 3, 1, 16, buffer, &size);
    raw_send(&client, &release, -1);
    raw_receive(&client, WIRE_RELEASE_REPLY);
    raw_submit(&client, stream, 1, &p);
    ck_assert_int_eq(raw_wait(timeline, 1), WIRE_NOT_FOUND);
    raw_receive(&client, WIRE_JOB_ERROR);
    raw_send(&client, &release, -1);
    raw_expect_error(&client, 4, WIRE_NOT_FOUND, "buffer: the connection has no such buffer");
    uint64_t next = raw_buffer(&client, 1 << 20, fd); /* in the same slot, but another id */
    ck_assert_uint_ne(next, buffer);
    raw_send(&client, &end, -1);
    raw_receive(&client, WIRE_STREAM_CLOSE_REPLY);
    raw_send(&client, &end, -1);
    raw_expect_error(&client, 5, WIRE_NOT_FOUND, "stream: the connection has no such stream");
    close(fd);
    timeline_unmap(timeline);
}
END_TEST

START_TEST(tickets_out_of_order_close_the_connection) {
    struct timeline *timeline;
    uint64_t stream = raw_stream(&client, &timeline), size;
    struct problem p;
    raw_problem(&p, 3, 1, 16, 1, &size);
    raw_submit(&client, stream, 2, &p);
    raw_expect_closing(&client, WIRE_PROTOCOL, "SUBMIT: ticket is 2, but must be 1");
    timeline_unmap(timeline);
}
END_TEST

/* A job of some hundred milliseconds on two cores. */
static uint64_t big_job(struct problem *p, uint64_t *stream, struct timeline **timeline, struct raw *raw) {
    uint64_t size;
    *stream = raw_stream(raw, timeline);
    raw_problem(p, 16384, 8, 128, 0, &size);
    int fd = raw_memfd(size);
    uint64_t buffer = raw_buffer(raw, size, fd);
    close(fd);
    raw_problem(p, 16384, 8, 128, buffer, &size);
    return buffer;
}

START_TEST(more_jobs_than_allowed_close_the_connection) {
    struct timeline *timeline;
    struct problem p;
    uint64_t stream;
    big_job(&p, &stream, &timeline, &client);
    for (uint64_t t = 1; t <= WIRE_STREAM_SLOTS + 1; t++)
        raw_submit(&client, stream, t, &p);
    raw_expect_closing(&client, WIRE_PROTOCOL, "SUBMIT: 1024 jobs of the stream are in flight");
    timeline_unmap(timeline);
}
END_TEST

START_TEST(closing_a_stream_cancels_what_is_queued) {
    struct timeline *timeline;
    struct problem p;
    uint64_t stream;
    big_job(&p, &stream, &timeline, &client);
    struct wire_message end = {.opcode = WIRE_STREAM_CLOSE, .id = 5, .stream_close = {stream}};
    for (uint64_t t = 1; t <= 20; t++)
        raw_submit(&client, stream, t, &p);
    raw_send(&client, &end, -1);
    ck_assert_int_eq(raw_wait(timeline, 20), WIRE_CANCELLED);
    int cancelled = 0;
    for (uint64_t t = 1; t <= 20; t++)
        cancelled += raw_wait(timeline, t) == WIRE_CANCELLED;
    ck_assert_int_ge(cancelled, 18); /* one may have run, one have just begun */
    for (int i = 0; i < cancelled; i++)
        raw_receive(&client, WIRE_JOB_ERROR);
    raw_receive(&client, WIRE_STREAM_CLOSE_REPLY);
    ck_assert_uint_eq(client.message.id, 5);
    ck_assert_uint_eq(ask_status(&client)->streams, 0);
    timeline_unmap(timeline);
}
END_TEST

/* A buffer that is released while jobs that use it are queued stays until they are done. */
START_TEST(released_memory_outlives_its_jobs) {
    struct timeline *timeline;
    struct problem p;
    uint64_t stream, buffer = big_job(&p, &stream, &timeline, &client);
    struct wire_message release = {.opcode = WIRE_RELEASE, .id = 4, .release = {buffer}};
    for (uint64_t t = 1; t <= 3; t++)
        raw_submit(&client, stream, t, &p);
    raw_send(&client, &release, -1);
    ck_assert_uint_eq(ask_status(&client)->buffer_bytes, 0); /* this answer comes first: jobs are running */
    ck_assert_int_eq(raw_wait(timeline, 3), WIRE_OK);
    raw_receive(&client, WIRE_RELEASE_REPLY);
    timeline_unmap(timeline);
}
END_TEST

START_TEST(a_crowd_does_not_hold_back_a_single_job) {
    struct raw other;
    struct timeline *crowd, *single;
    struct problem p;
    uint64_t size, bytes;
    raw_problem(&p, 512, 4, 128, 0, &bytes);
    int fd = raw_memfd(bytes);
    uint64_t stream = raw_stream(&client, &crowd);
    raw_problem(&p, 512, 4, 128, raw_buffer(&client, bytes, fd), &size);
    for (uint64_t t = 1; t <= 1000; t++)
        raw_submit(&client, stream, t, &p);
    raw_open(&other, server.socket);
    uint64_t stream2 = raw_stream(&other, &single);
    raw_problem(&p, 512, 4, 128, raw_buffer(&other, bytes, fd), &size);
    uint64_t before = atomic_load(&crowd->done);
    raw_submit(&other, stream2, 1, &p);
    ck_assert_int_eq(raw_wait(single, 1), WIRE_OK);
    uint64_t after = atomic_load(&crowd->done);
    ck_assert_msg(after - before <= 50 && after < 1000, "the crowd did %llu jobs meanwhile, %llu in all",
                  (unsigned long long)(after - before), (unsigned long long)after);
    close(fd);
    timeline_unmap(crowd);
    timeline_unmap(single);
    raw_close(&other);
}
END_TEST

/* --- life and death ------------------------------------------------------------------------------------ */

/* Waits until the daemon knows of no client but the one that asks. */
static void wait_for_clients_to_go(struct raw *raw) {
    time_t end = time(NULL) + 60;
    while (time(NULL) < end) {
        if (ask_status(raw)->clients == 1)
            return;
    }
    ck_abort_msg("clients stay");
}

START_TEST(a_killed_client_leaves_nothing) {
    int told[2];
    char byte;
    ck_assert_int_eq(pipe(told), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct raw raw;
        struct timeline *timeline;
        struct problem p;
        uint64_t stream;
        raw_open(&raw, server.socket);
        big_job(&p, &stream, &timeline, &raw);
        for (uint64_t t = 1; t <= 50; t++)
            raw_submit(&raw, stream, t, &p);
        if (fork() == 0) /* a child that inherits the socket does not keep the connection alive */
            for (;;)
                pause();
        if (write(told[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    struct wire_status_reply *status = ask_status(&client);
    ck_assert_uint_eq(status->clients, 2);
    while (status->jobs_queued + status->jobs_done < 50) /* until all of them have been received */
        status = ask_status(&client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    wait_for_clients_to_go(&client);
    status = ask_status(&client);
    ck_assert_uint_eq(status->streams, 0);
    ck_assert_uint_eq(status->buffers, 0);
    ck_assert_uint_eq(status->jobs_queued, 0);
    ck_assert_uint_eq(status->jobs_done + status->jobs_failed, 50);
}
END_TEST

static int count_entries(const char *format, pid_t pid) {
    char command[128], path[64];
    int count = -1;
    snprintf(path, sizeof path, format, (int)pid);
    snprintf(command, sizeof command, "ls %s | wc -l", path);
    FILE *f = popen(command, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%d", &count), 1);
    pclose(f);
    return count;
}

/* Mappings of memory that is shared. (Of private memory an allocator, or a sanitizer, takes more at any
 * time.) */
static int count_shared(pid_t pid) {
    char path[64], line[512], kind[8];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%*s %7s", kind) == 1 && kind[3] == 's')
            count++;
    }
    fclose(f);
    return count;
}

static long resident_kib(pid_t pid) {
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        sscanf(line, "VmRSS: %ld", &kib);
    fclose(f);
    return kib;
}

/* One connection with a stream, a buffer and two jobs, of which one fails. */
static void one_visit(int fd) {
    struct raw raw;
    struct timeline *timeline;
    struct problem p;
    uint64_t size;
    raw_open(&raw, server.socket);
    uint64_t stream = raw_stream(&raw, &timeline);
    raw_problem(&p, 3, 1, 16, raw_buffer(&raw, 65536, fd), &size);
    raw_submit(&raw, stream, 1, &p);
    p.C = 1;
    raw_submit(&raw, stream, 2, &p);
    ck_assert_int_eq(raw_wait(timeline, 2), WIRE_INVALID);
    timeline_unmap(timeline);
    raw_close(&raw);
}

START_TEST(ten_thousand_connects_leave_nothing) {
    int fd = raw_memfd(65536), fds = 0, maps = 0;
    long kib = 0;
    for (int i = 1; i <= 10000; i++) {
        one_visit(fd);
        if (i != 100 && i != 10000)
            continue;
        wait_for_clients_to_go(&client);
        if (i == 100) {
            while (ask_status(&client)->device[0].copy_rate ==
                   0) /* it takes memory as long as it is measured */
                usleep(10000);
            fds = count_entries("/proc/%d/fd", server.pid);
            maps = count_shared(server.pid);
            kib = resident_kib(server.pid);
        }
    }
    ck_assert_int_eq(count_entries("/proc/%d/fd", server.pid), fds);
    ck_assert_int_eq(count_shared(server.pid), maps);
    ck_assert_msg(SANITIZED || resident_kib(server.pid) <= kib + 64,
                  "resident memory went from %ld to %ld KiB", kib, resident_kib(server.pid));
    ck_assert_uint_eq(ask_status(&client)->connections, 10001);
    close(fd);
}
END_TEST

START_TEST(sigterm_tells_each_job) {
    struct timeline *timeline;
    struct problem p;
    uint64_t stream;
    big_job(&p, &stream, &timeline, &client);
    for (uint64_t t = 1; t <= 100; t++)
        raw_submit(&client, stream, t, &p);
    ask_status(&client); /* all have arrived */
    kill(server.pid, SIGTERM);
    ck_assert_int_eq(raw_wait(timeline, 100), WIRE_CANCELLED);
    int cancelled = 0, ran = 0;
    for (uint64_t t = 1; t <= 100; t++) {
        cancelled += raw_wait(timeline, t) == WIRE_CANCELLED;
        ran += raw_wait(timeline, t) == WIRE_OK;
    }
    ck_assert_int_eq(cancelled + ran, 100);
    for (int i = 0; i < cancelled; i++)
        raw_receive(&client, WIRE_JOB_ERROR);
    raw_expect_closing(&client, WIRE_CANCELLED, "the daemon is stopping");
    timeline_unmap(timeline);
}
END_TEST

/* Runs kdad and returns its exit code; for starts that must fail. */
static int failed_start(const char *socket_path) {
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        execl(KDAD_BINARY, "kdad", "--socket", socket_path, "--backend", "cpu", (char *)NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

START_TEST(a_second_daemon_is_refused) {
    ck_assert_int_eq(failed_start(server.socket), 1);
    ask_status(&client); /* the first one serves on */
    struct raw raw;
    raw_open(&raw, server.socket);
    raw_close(&raw);
}
END_TEST

START_TEST(a_stale_socket_is_replaced_and_a_file_is_not) {
    struct stat st;
    char path[sizeof server.socket];
    strcpy(path, server.socket);
    kill(server.pid, SIGKILL);
    waitpid(server.pid, NULL, 0);
    ck_assert_int_eq(lstat(path, &st), 0); /* left behind */
    harness_restart(&server);
    struct raw raw;
    raw_open(&raw, path);
    raw_close(&raw);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    char file[sizeof server.socket + 8];
    snprintf(file, sizeof file, "%s.file", path);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(failed_start(file), 1);
    ck_assert_int_eq(unlink(file), 0);
    char too_long[200];
    memset(too_long, 'x', sizeof too_long - 1);
    too_long[0] = '/';
    too_long[199] = 0;
    ck_assert_int_eq(failed_start(too_long), 1);
    ck_assert_int_eq(failed_start("/proc/no/kdad.sock"), 1);
}
END_TEST

/* As a service manager does: the listening socket is descriptor 3, and outlives the daemon. */
#ifdef HAVE_LIBSYSTEMD
START_TEST(a_socket_is_taken_over) {
    char path[sizeof server.socket + 8];
    snprintf(path, sizeof path, "%s.own", server.socket);
    int listener = harness_listen(path);
    for (int round = 0; round < 2; round++) {
        struct raw raw;
        pid_t pid = harness_spawn_on(listener, NULL);
        raw_open(&raw, path);
        kill(pid, SIGTERM);
        raw_expect_closing(&raw, WIRE_CANCELLED, "the daemon is stopping");
        raw_close(&raw);
        int status;
        waitpid(pid, &status, 0);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        struct stat st;
        ck_assert_int_eq(lstat(path, &st), 0); /* not the daemon's to remove */
    }
    close(listener);
    unlink(path);
}
END_TEST
#endif

int main(void) {
    Suite *suite = suite_create("daemon");
    TCase *alone = tcase_create("daemon alone"), *c = tcase_create("daemon and client");
    tcase_add_checked_fixture(alone, setup, teardown);
    tcase_set_timeout(alone, 120);
    tcase_add_test(alone, hello_comes_first_and_once);
    tcase_add_test(alone, another_major_version_is_refused);
    tcase_add_test(alone, a_silent_client_is_closed);
    tcase_add_test(alone, broken_packets_close_the_connection);
    tcase_add_test(alone, wrong_descriptors_close_the_connection);
    tcase_add_test(alone, a_stale_socket_is_replaced_and_a_file_is_not);
#ifdef HAVE_LIBSYSTEMD /* else kdad says that it cannot */
    tcase_add_test(alone, a_socket_is_taken_over);
#endif
    tcase_add_checked_fixture(c, setup_client, teardown_client);
    tcase_set_timeout(c, 300);
    tcase_add_test(c, an_unknown_opcode_is_answered);
    tcase_add_test(c, unfit_memory_is_refused);
    tcase_add_test(c, an_unknown_device_is_refused);
    tcase_add_test(c, limits_of_a_connection_are_told);
    tcase_add_test(c, bad_jobs_fail_alone);
    tcase_add_test(c, bursts_of_any_size_are_served);
    tcase_add_test(c, another_clients_buffer_is_not_found);
    tcase_add_test(c, ids_end_with_their_objects);
    tcase_add_test(c, tickets_out_of_order_close_the_connection);
    tcase_add_test(c, more_jobs_than_allowed_close_the_connection);
    tcase_add_test(c, closing_a_stream_cancels_what_is_queued);
    tcase_add_test(c, released_memory_outlives_its_jobs);
    tcase_add_test(c, a_crowd_does_not_hold_back_a_single_job);
    tcase_add_test(c, a_killed_client_leaves_nothing);
    tcase_add_test(c, ten_thousand_connects_leave_nothing);
    tcase_add_test(c, sigterm_tells_each_job);
    tcase_add_test(c, a_second_daemon_is_refused);
    suite_add_tcase(suite, alone);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
