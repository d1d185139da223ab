/*
 * Hostile clients over the real socket, each beside a well-behaved one. Every attack ends in a clear error or
 * in a closed connection; the daemon lives, lets go of all that the attacker held, and the other client's
 * results stay right, bit for bit.
 */
#include "tests/harness.h"
#include "tests/msgpack_spans.h"
#include "tests/socket/companion.h"
#include "tests/socket/raw.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, SPANS = 512, PACKET_ROOM = 4096 };

static struct harness server;
static struct companion companion;
static int descriptors; /* of the daemon's, before the attack */

/* An attacker that has got as far as any client: greeted, with a stream and a buffer of BUFFER bytes. */
struct attacker {
    struct raw raw;
    struct timeline *timeline;
    uint64_t stream, buffer, ticket;
    int memfd;
    void *memory;
};

static int daemon_descriptors(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)server.pid);
    DIR *directory = opendir(path);
    int count = 0;
    ck_assert_msg(directory != NULL, "the daemon is gone");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static long daemon_kib(void) {
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", (int)server.pid);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        sscanf(line, "RssAnon: %ld", &kib);
    fclose(f);
    return kib;
}

static void setup(void) {
    harness_start(&server, NULL);
    companion_start(&companion);
    descriptors = daemon_descriptors();
}

/* The daemon lets go of an attacker soon after it has gone. */
static void teardown(void) {
    for (int i = 0; i < 2000 && daemon_descriptors() > descriptors; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    ck_assert_int_le(daemon_descriptors(), descriptors);
    companion_stop(&companion);
    harness_stop(&server);
}

static void attack(struct attacker *a) {
    raw_open(&a->raw, server.socket);
    a->stream = raw_stream(&a->raw, &a->timeline);
    a->memfd = raw_memfd(BUFFER);
    a->memory = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_SHARED, a->memfd, 0);
    ck_assert_ptr_ne(a->memory, MAP_FAILED);
    a->buffer = raw_buffer(&a->raw, BUFFER, a->memfd);
    a->ticket = 0;
}

static void retreat(struct attacker *a) {
    raw_close(&a->raw);
    munmap(a->memory, BUFFER);
    close(a->memfd);
    timeline_unmap(a->timeline);
}

/* A legal job of the attacker's. */
static void legal(const struct attacker *a, struct problem *p) {
    uint64_t size;
    raw_problem(p, 70, 2, 16, a->buffer, &size);
    ck_assert_uint_le(size, BUFFER);
}

/* A job's status: the connection must have survived it. */
static enum wire_status submit(struct attacker *a, const struct problem *p) {
    raw_submit(&a->raw, a->stream, ++a->ticket, p);
    enum wire_status status = raw_wait(a->timeline, a->ticket);
    ck_assert_int_eq(raw_fate(&a->raw), RAW_ALIVE);
    return status;
}

/* The attacker can still do what is legal: what was refused has done no harm. */
static void expect_service(struct attacker *a) {
    struct problem p;
    legal(a, &p);
    ck_assert_int_eq(submit(a, &p), WIRE_OK);
}

/* --- bytes --------------------------------------------------------------------------------------------- */

/* The requests that a client can make, as bytes. One attacker's ids are another's, as long as each does the
 * same. */
struct request {
    const char *name;
    uint8_t bytes[PACKET_ROOM];
    size_t size;
    int fd; /* that goes with it, or -1 */
};

enum { REQUESTS = 7 };

static void encode(struct request *r, const struct attacker *a, const char *name,
                   const struct wire_message *message, int fd) {
    const void *bytes = wire_encode(a->raw.codec, message, &r->size);
    ck_assert_uint_le(r->size, sizeof r->bytes);
    memcpy(r->bytes, bytes, r->size);
    r->name = name;
    r->fd = fd;
}

static void make_requests(struct request requests[REQUESTS], const struct attacker *a) {
    struct wire_message m = {.opcode = WIRE_HELLO, .id = 1};
    m.hello = (struct wire_hello){WIRE_MAJOR, WIRE_MINOR, wire_string("0"), 0, wire_string("hostile")};
    encode(&requests[0], a, "HELLO", &m, -1);
    m = (struct wire_message){.opcode = WIRE_STREAM_OPEN, .id = 2};
    m.stream_open = (struct wire_stream_open){wire_string("cpu"), 0};
    encode(&requests[1], a, "STREAM_OPEN", &m, -1);
    m = (struct wire_message){.opcode = WIRE_REGISTER, .id = 3};
    m.reg = (struct wire_register){.kind = WIRE_BUFFER_HOST, .size = BUFFER};
    encode(&requests[2], a, "REGISTER", &m, a->memfd);
    m = (struct wire_message){.opcode = WIRE_SUBMIT};
    m.submit = (struct wire_submit){.stream = a->stream, .ticket = 1, .operation = WIRE_CHUNK_KDA_BWD_INTRA};
    legal(a, &m.submit.problem);
    m.submit.problem.N = 1;
    m.submit.problem.at[OPERAND_CU_SEQLENS] = (struct operand_view){a->buffer, 0, BUFFER - 64, {1, 1, 1}};
    m.submit.problem.at[OPERAND_G].stride[0]++; /* so that strides travel */
    encode(&requests[3], a, "SUBMIT", &m, -1);
    m = (struct wire_message){.opcode = WIRE_RELEASE, .id = 4, .release = {a->buffer}};
    encode(&requests[4], a, "RELEASE", &m, -1);
    m = (struct wire_message){.opcode = WIRE_STREAM_CLOSE, .id = 5, .stream_close = {a->stream}};
    encode(&requests[5], a, "STREAM_CLOSE", &m, -1);
    m = (struct wire_message){.opcode = WIRE_STATUS, .id = 6};
    encode(&requests[6], a, "STATUS", &m, -1);
}

/* Sends what was made of a request, in the state that the request needs. */
static enum raw_fate send_mangled(const struct request *request, const uint8_t *bytes, size_t size) {
    struct attacker a;
    enum raw_fate fate;
    if (strcmp(request->name, "HELLO") == 0) {
        raw_connect(&a.raw, server.socket);
        raw_try(&a.raw, bytes, size, NULL, 0);
        fate = raw_fate(&a.raw);
        raw_close(&a.raw);
        return fate;
    }
    attack(&a);
    raw_try(&a.raw, bytes, size, &request->fd, request->fd >= 0);
    fate = raw_fate(&a.raw);
    retreat(&a);
    return fate;
}

START_TEST(packets_cut_short_close_the_connection) {
    struct attacker a;
    struct request requests[REQUESTS];
    attack(&a);
    make_requests(requests, &a);
    for (const struct request *r = requests; r < requests + REQUESTS; r++) {
        for (size_t size = 1; size<r->size; size += r->size> 100 ? 3 : 1)
            ck_assert_msg(send_mangled(r, r->bytes, size) == RAW_CLOSED, "%s: %zu of %zu bytes are accepted",
                          r->name, size, r->size);
        ck_assert_msg(send_mangled(r, r->bytes, r->size) == RAW_ALIVE, "%s: a good one is not accepted",
                      r->name);
    }
    retreat(&a);
}
END_TEST

START_TEST(packets_too_long_close_the_connection) {
    static uint8_t large[200000];
    const size_t sizes[] = {WIRE_PACKET_MAX, WIRE_PACKET_MAX + 1, 131072, sizeof large};
    struct attacker a;
    struct request requests[REQUESTS];
    attack(&a);
    make_requests(requests, &a);
    retreat(&a);
    for (const struct request *r = requests; r < requests + REQUESTS; r++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            memset(large, 0, sizeof large);
            memcpy(large, r->bytes, r->size);
            ck_assert_int_eq(send_mangled(r, large, sizes[i]), RAW_CLOSED);
        }
    }
}
END_TEST

/* An empty packet cannot be told from the end: the connection ends without a word, and so with nobody misled.
 */
START_TEST(an_empty_packet_ends_the_connection) {
    struct attacker a;
    attack(&a);
    ck_assert_int_eq(send(a.raw.socket, "", 0, 0), 0);
    ck_assert_int_eq(packet_receive(a.raw.socket, &a.raw.packet, 0), 0);
    retreat(&a);
}
END_TEST

/* Each value of each request in turn is replaced by each of these. */
static const struct {
    const char *bytes;
    size_t size;
} values[] = {
    {"\xc0", 1},                                      /* nil */
    {"\xc3", 1},                                      /* true */
    {"\x00", 1},                                      /* 0 */
    {"\x7f", 1},                                      /* 127 */
    {"\xff", 1},                                      /* -1 */
    {"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9},      /* 2^64 - 1 */
    {"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", 9},      /* 2^63 - 1 */
    {"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9},      /* -2^63 */
    {"\xce\xff\xff\xff\xff", 5},                      /* 2^32 - 1 */
    {"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", 9},      /* infinity */
    {"\243abc", 4},                                   /* a string */
    {"\xc4\x02\x00\xff", 4},                          /* bytes */
    {"\x90", 1},                                      /* [] */
    {"\x93\x01\x02\x03", 4},                          /* [1, 2, 3] */
    {"\x81\x01\x02", 3},                              /* {1: 2} */
    {"\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01", 10}, /* nested deep */
    {"\xdd\xff\xff\xff\xff", 5},                      /* an array of 2^32 - 1 */
    {"\xdf\x7f\xff\xff\xff", 5},                      /* a map of 2^31 - 1 */
    {"\xdb\xff\xff\xff\xf0", 5},                      /* a string of 2^32 - 16 bytes */
    {"\xc1", 1},                                      /* what msgpack never uses */
    {"\xd4\x01\x02", 3},                              /* an extension */
};

enum { VALUES = sizeof values / sizeof values[0] };

/* _i is the request. */
START_TEST(any_value_in_any_place_is_answered_or_closes) {
    struct attacker a;
    struct request requests[REQUESTS];
    struct span spans[SPANS];
    uint8_t bytes[PACKET_ROOM];
    attack(&a);
    make_requests(requests, &a);
    const struct request *r = &requests[_i];
    size_t count = spans_find(r->bytes, r->size, spans, SPANS), closed = 0;
    ck_assert_uint_gt(count, 2);
    for (size_t i = 0; i < count; i++) {
        for (size_t v = 0; v < VALUES; v++) {
            size_t size = spans_replace(bytes, sizeof bytes, r->bytes, r->size, spans[i], values[v].bytes,
                                        values[v].size);
            ck_assert_uint_gt(size, 0);
            closed += send_mangled(r, bytes, size) == RAW_CLOSED;
        }
    }
    ck_assert_uint_gt(closed, count * 6); /* at least what no field may be */
    retreat(&a);
}
END_TEST

/* --- descriptors --------------------------------------------------------------------------------------- */

static int sealed_memfd(int seals) {
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(posix_fallocate(fd, 0, BUFFER), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

START_TEST(descriptors_of_other_kinds_are_refused) {
    struct attacker a;
    attack(&a);
    const int fds[] = {
        open("/tmp", O_RDONLY | O_DIRECTORY),
        open("/", O_PATH),
        open("/dev/zero", O_RDWR),
        open("/dev/null", O_RDWR),
        open("/proc/self/mem", O_RDWR),
        open("/proc/self/exe", O_RDONLY),
        open("/dev/shm", O_TMPFILE | O_RDWR, 0600),
        socket(AF_UNIX, SOCK_SEQPACKET, 0),
        dup(a.raw.socket),
        epoll_create1(0),
        eventfd(0, 0),
        sealed_memfd(0),
        sealed_memfd(F_SEAL_GROW | F_SEAL_SEAL),
        sealed_memfd(F_SEAL_SHRINK | F_SEAL_WRITE),
        sealed_memfd(F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE),
        memfd_create("closed to sealing", MFD_CLOEXEC),
    };
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (fds[i] < 0) /* the system has no such thing */
            continue;
        raw_register(&a.raw, BUFFER, fds[i]);
        raw_receive(&a.raw, WIRE_ERROR);
        ck_assert_msg(a.raw.message.error.status == WIRE_INVALID && !a.raw.message.error.closing,
                      "descriptor %zu: status %u", i, a.raw.message.error.status);
        close(fds[i]);
    }
    expect_service(&a);
    retreat(&a);
}
END_TEST

/* The seal keeps a file from shrinking; one that could is refused, so there is nothing to fault on. */
START_TEST(a_memfd_that_shrinks_is_refused_or_cannot) {
    struct attacker a;
    attack(&a);
    ck_assert_int_lt(ftruncate(a.memfd, 0), 0);
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(posix_fallocate(fd, 0, BUFFER), 0);
    raw_register(&a.raw, BUFFER, fd);
    raw_receive(&a.raw, WIRE_ERROR);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    ck_assert_int_eq(raw_fate(&a.raw), RAW_ALIVE);
    close(fd);
    retreat(&a);
}
END_TEST

/* Pages that are given back while a job runs: new ones come in their place, with zeroes. */
static void *punch(void *argument) {
    struct attacker *a = argument;
    for (int i = 0; i < 300; i++)
        fallocate(a->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, i * 4096 % BUFFER, BUFFER / 2);
    return NULL;
}

START_TEST(holes_under_a_running_job_harm_nobody) {
    struct attacker a;
    struct problem p;
    pthread_t puncher;
    attack(&a);
    legal(&a, &p);
    ck_assert_int_eq(pthread_create(&puncher, NULL, punch, &a), 0);
    for (int i = 0; i < 300; i++)
        ck_assert_int_eq(submit(&a, &p), WIRE_OK);
    pthread_join(puncher, NULL);
    retreat(&a);
}
END_TEST

START_TEST(descriptors_withheld_or_superfluous_close_the_connection) {
    struct attacker a;
    struct request requests[REQUESTS];
    int fds[WIRE_FDS_MAX];
    attack(&a);
    make_requests(requests, &a);
    retreat(&a);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        fds[i] = STDERR_FILENO;
    for (const struct request *r = requests; r < requests + REQUESTS; r++) {
        bool registers = strcmp(r->name, "REGISTER") == 0;
        for (int count = registers ? 0 : 1; count <= WIRE_FDS_MAX; count += 21) {
            if (strcmp(r->name, "HELLO") == 0) {
                raw_connect(&a.raw, server.socket);
            } else {
                raw_open(&a.raw, server.socket);
            }
            raw_send_bytes(&a.raw, r->bytes, r->size, fds, count == 1 && registers ? 2 : count);
            ck_assert_int_eq(raw_fate(&a.raw), RAW_CLOSED);
            raw_close(&a.raw);
        }
    }
}
END_TEST

/* As many as a packet may have, where one is due: none stays open in the daemon. */
START_TEST(too_many_descriptors_close_the_connection) {
    struct raw raw;
    int fds[WIRE_FDS_MAX];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof fds)];
    } control = {0};
    struct iovec iov = {"\x94\x04\x03\x01\x01", 5};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        fds[i] = STDERR_FILENO;
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(c), fds, sizeof fds);
    for (int i = 0; i < 20; i++) {
        raw_open(&raw, server.socket);
        ck_assert_int_gt(sendmsg(raw.socket, &header, MSG_NOSIGNAL), 0);
        ck_assert_int_eq(raw_fate(&raw), RAW_CLOSED);
        raw_close(&raw);
    }
}
END_TEST

/* The page that says how far jobs are, handed back as a buffer that jobs write to: it can mislead its owner
 * alone. */
START_TEST(a_timeline_as_a_buffer_misleads_its_owner_alone) {
    struct attacker a;
    struct problem p;
    uint64_t size;
    attack(&a);
    struct wire_message m = {.opcode = WIRE_STREAM_OPEN, .id = 9};
    m.stream_open = (struct wire_stream_open){wire_string("cpu"), 0};
    raw_send(&a.raw, &m, -1);
    raw_receive(&a.raw, WIRE_STREAM_OPEN_REPLY);
    uint64_t stream = a.raw.message.stream_open_reply.stream;
    int fd = a.raw.packet.fds[0];
    a.raw.packet.fd_count = 0;
    raw_register(&a.raw, 8192, fd);
    ck_assert_int_eq(packet_receive(a.raw.socket, &a.raw.packet, 0), 1);
    char why[PROBLEM_WHY];
    ck_assert(wire_decode(a.raw.codec, a.raw.packet.data, a.raw.packet.size, &a.raw.message, why));
    if (a.raw.message.opcode == WIRE_REGISTER_REPLY) {
        raw_problem(&p, 16, 1, 16, a.raw.message.reg_reply.buffer, &size);
        ck_assert_uint_le(size, 16384);
        for (uint64_t ticket = 1; ticket <= 50; ticket++) {
            for (enum operand o = 0; o < OPERAND_COUNT; o++)
                p.at[o].allocation = o < OPERAND_DQ ? a.buffer : p.at[OPERAND_DQ].allocation;
            for (enum operand o = OPERAND_DQ; o <= OPERAND_DG; o++)
                p.at[o].offset = p.at[o + 4].offset = (uint64_t)(o - OPERAND_DQ) * 1024;
            raw_submit(&a.raw, stream, ticket, &p);
        }
    }
    ck_assert_int_eq(raw_fate(&a.raw), RAW_ALIVE);
    close(fd);
    expect_service(&a);
    retreat(&a);
}
END_TEST

/* --- numbers ------------------------------------------------------------------------------------------- */

START_TEST(offsets_near_the_end_of_numbers_are_refused) {
    const uint64_t offsets[] = {UINT64_MAX,
                                UINT64_MAX - 3,
                                UINT64_MAX - 4095,
                                (uint64_t)1 << 63,
                                ((uint64_t)1 << 63) - 4,
                                (uint64_t)1 << 62,
                                (uint64_t)1 << 60,
                                BUFFER,
                                BUFFER - 4,
                                BUFFER + 4};
    struct attacker a;
    attack(&a);
    for (enum operand o = 0; o <= OPERAND_DG_OUT; o++) {
        for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
            struct problem p;
            legal(&a, &p);
            p.at[o].offset = offsets[i];
            ck_assert_msg(submit(&a, &p) == WIRE_INVALID, "%s at %llu", operand_name(o),
                          (unsigned long long)offsets[i]);
        }
    }
    expect_service(&a);
    retreat(&a);
}
END_TEST

START_TEST(strides_that_overflow_or_overlap_are_refused) {
    const int64_t strides[] = {
        INT64_MAX, INT64_MAX / 2, INT64_MAX / 69 + 1, (int64_t)1 << 62, (int64_t)1 << 60, -1,
        INT64_MIN, BUFFER};
    struct attacker a;
    struct problem p;
    attack(&a);
    for (enum operand o = 0; o <= OPERAND_DG_OUT; o++) {
        for (int d = 1; d < 2 + (problem_shape((legal(&a, &p), &p), o, (int64_t[4]){0}) == 4); d++) {
            for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
                legal(&a, &p);
                p.at[o].stride[d] = strides[i];
                ck_assert_msg(submit(&a, &p) == WIRE_INVALID, "%s: stride %d is %lld", operand_name(o), d,
                              (long long)strides[i]);
            }
            legal(&a, &p);
            p.at[o].stride[d] =
                0; /* inputs may be expanded, unless an output is written over them in place */
            enum wire_status status = submit(&a, &p);
            ck_assert_msg(status == (o < OPERAND_DQ ? WIRE_OK : WIRE_INVALID),
                          "%s: stride %d is 0: status %d", operand_name(o), d, (int)status);
        }
    }
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++) { /* outputs over every other operand */
        for (enum operand other = 0; other <= OPERAND_DG; other++) {
            legal(&a, &p);
            if (other == o - (OPERAND_DQ_OUT - OPERAND_DQ))
                continue;
            p.at[o].offset = p.at[other].offset + 4;
            ck_assert_msg(submit(&a, &p) == WIRE_INVALID, "%s over %s", operand_name(o), operand_name(other));
        }
    }
    expect_service(&a);
    retreat(&a);
}
END_TEST

START_TEST(sizes_that_overflow_are_refused) {
    const int64_t sizes[] = {
        -1, INT64_MIN, INT64_MAX, (int64_t)1 << 62, (int64_t)1 << 40, (int64_t)1 << 32, (int64_t)1 << 31};
    struct attacker a;
    attack(&a);
    for (int field = 0; field < 7; field++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct problem p;
            legal(&a, &p);
            int64_t *const fields[] = {&p.B, &p.T, &p.H, &p.HV, &p.K, &p.C, &p.N};
            if (fields[field] == &p.N && sizes[i] == -1)
                continue; /* no cu_seqlens */
            *fields[field] = sizes[i];
            p.at[OPERAND_CU_SEQLENS] = (struct operand_view){a.buffer, 0, 0, {1, 1, 1}};
            struct wire_message m = {.opcode = WIRE_SUBMIT};
            m.submit = (struct wire_submit){a.stream, a.ticket + 1, WIRE_CHUNK_KDA_BWD_INTRA, p};
            raw_send(&a.raw, &m, -1);
            if (raw_fate(&a.raw) == RAW_CLOSED) {
                retreat(&a);
                attack(&a);
                continue;
            }
            enum wire_status status = raw_wait(a.timeline, ++a.ticket);
            ck_assert_msg(status == WIRE_INVALID, "size %d is %lld: status %d", field, (long long)sizes[i],
                          (int)status);
        }
    }
    expect_service(&a);
    retreat(&a);
}
END_TEST

START_TEST(ids_of_others_are_not_found) {
    struct attacker a;
    struct problem p;
    attack(&a);
    for (uint64_t id = 0; id < 400; id++) {
        uint64_t guess = id < 200 ? id : id < 300 ? (id - 200) << 16 | 1 : UINT64_MAX - (id - 300);
        if (guess == a.buffer || guess == a.stream)
            continue;
        legal(&a, &p);
        p.at[OPERAND_K].allocation = guess;
        ck_assert_int_eq(submit(&a, &p), WIRE_NOT_FOUND);
        struct wire_message m = {.opcode = WIRE_RELEASE, .id = 8, .release = {guess}};
        raw_send(&a.raw, &m, -1);
        raw_expect_error(&a.raw, 8, WIRE_NOT_FOUND, "buffer: the connection has no such buffer");
        m = (struct wire_message){.opcode = WIRE_STREAM_CLOSE, .id = 9, .stream_close = {guess}};
        raw_send(&a.raw, &m, -1);
        raw_expect_error(&a.raw, 9, WIRE_NOT_FOUND, "stream: the connection has no such stream");
    }
    expect_service(&a);
    retreat(&a);
}
END_TEST

START_TEST(what_was_released_is_not_found) {
    struct attacker a;
    struct problem p;
    attack(&a);
    for (int i = 0; i < 50; i++) {
        struct wire_message m = {.opcode = WIRE_RELEASE, .id = 8, .release = {a.buffer}};
        raw_send(&a.raw, &m, -1);
        raw_receive(&a.raw, WIRE_RELEASE_REPLY);
        legal(&a, &p);
        ck_assert_int_eq(submit(&a, &p), WIRE_NOT_FOUND);
        raw_send(&a.raw, &m, -1);
        raw_expect_error(&a.raw, 8, WIRE_NOT_FOUND, "buffer: the connection has no such buffer");
        uint64_t next = raw_buffer(&a.raw, BUFFER, a.memfd);
        ck_assert_uint_ne(next, a.buffer);
        a.buffer = next;
        expect_service(&a);
    }
    retreat(&a);
}
END_TEST

/* --- time ---------------------------------------------------------------------------------------------- */

static _Atomic bool enough;

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Sequences' ends that change all the time, most of them to what would lead far beyond the memory. */
static void *rewrite_sequences(void *argument) {
    _Atomic int64_t *cu = argument;
    uint32_t state = 1;
    while (!enough) {
        for (int i = 0; i <= 8; i++) {
            uint32_t r = next_random(&state);
            int64_t good = i * 70 / 8;
            cu[i] = r % 4 ? good : r % 8 ? INT64_MAX - r : -(int64_t)r;
        }
        for (int i = 0; i <= 8; i++)
            cu[i] = i * 70 / 8;
    }
    return NULL;
}

START_TEST(cu_seqlens_rewritten_while_jobs_run) {
    struct attacker a;
    struct problem p;
    pthread_t writer;
    int good = 0, bad = 0;
    attack(&a);
    legal(&a, &p);
    p.N = 8;
    p.at[OPERAND_CU_SEQLENS] = (struct operand_view){a.buffer, 0, BUFFER - 4096, {1, 1, 1}};
    enough = false;
    ck_assert_int_eq(pthread_create(&writer, NULL, rewrite_sequences, (char *)a.memory + BUFFER - 4096), 0);
    for (int i = 0; i < 20000 && (i < 2000 || good == 0 || bad == 0); i++) {
        enum wire_status status = submit(&a, &p);
        ck_assert_msg(status == WIRE_OK || status == WIRE_BAD_DATA, "status %d", (int)status);
        good += status == WIRE_OK;
        bad += status == WIRE_BAD_DATA;
    }
    enough = true;
    pthread_join(writer, NULL);
    ck_assert_int_gt(good, 0);
    ck_assert_int_gt(bad, 0);
    retreat(&a);
}
END_TEST

static void *scribble(void *argument) {
    struct timeline *timeline = argument;
    uint32_t state = 2;
    while (!enough) {
        atomic_store(&timeline->done, (uint64_t)next_random(&state) << (state & 40));
        atomic_store(&timeline->ready, UINT64_MAX - next_random(&state));
        atomic_store(&timeline->waiters, next_random(&state));
        atomic_store(&timeline->status[next_random(&state) % WIRE_STREAM_SLOTS], (int32_t)state);
    }
    return NULL;
}

/* Only the daemon's own count decides: jobs all run, in order, and no more of them than may be in flight. */
START_TEST(a_scribbled_timeline_misleads_its_owner_alone) {
    struct attacker a;
    struct problem p;
    pthread_t writer;
    attack(&a);
    legal(&a, &p);
    enough = false;
    ck_assert_int_eq(pthread_create(&writer, NULL, scribble, a.timeline), 0);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < WIRE_STREAM_SLOTS / 2; i++)
            raw_submit(&a.raw, a.stream, ++a.ticket, &p);
        do
            ck_assert_int_eq(raw_fate(&a.raw), RAW_ALIVE);
        while (a.raw.message.status_reply.jobs_queued > 1); /* the other client may have one */
    }
    enough = true;
    pthread_join(writer, NULL);
    ck_assert_int_eq(raw_fate(&a.raw), RAW_ALIVE);
    retreat(&a);
}
END_TEST

/* --- floods -------------------------------------------------------------------------------------------- */

/* Sends packets without ever reading, until the socket takes no more for a while. */
static int flood(const struct raw *raw, const void *bytes, size_t size, const int *fds, int fd_count) {
    int sent = 0, full = 0;
    while (sent < 100000 && full < 100) {
        if (packet_send(raw->socket, bytes, size, fds, fd_count, MSG_DONTWAIT) == 0) {
            sent++;
            full = 0;
        } else if (errno == EAGAIN || errno == ETOOMANYREFS) {
            full++;
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        } else {
            break;
        }
    }
    return sent;
}

/* _i is the request, of which replies are never read. The daemon stops to listen instead of hoarding them. */
START_TEST(floods_without_reading_are_held_back) {
    struct attacker a;
    struct request requests[REQUESTS];
    attack(&a);
    make_requests(requests, &a);
    const struct request *r = &requests[_i];
    do /* the first question has the daemon measure its memory, which takes some meanwhile */
        ck_assert_int_eq(raw_fate(&a.raw), RAW_ALIVE);
    while (a.raw.message.status_reply.device[0].copy_rate == 0);
    long before = daemon_kib();
    int sent = flood(&a.raw, r->bytes, r->size, &r->fd, r->fd >= 0);
    ck_assert_int_gt(sent, 0);
    long after = daemon_kib();
    ck_assert_msg(after - before < 32768, "%s: the daemon grew by %ld KiB", r->name, after - before);
    retreat(&a);
}
END_TEST

/* Jobs that fail, each with a sentence to be sent, and a client that reads none until it is held back. */
START_TEST(sentences_that_nobody_reads_are_bounded) {
    struct attacker a;
    struct problem p;
    attack(&a);
    legal(&a, &p);
    p.C = 17;
    long before = daemon_kib();
    struct wire_message m = {.opcode = WIRE_SUBMIT};
    m.submit = (struct wire_submit){a.stream, 0, WIRE_CHUNK_KDA_BWD_INTRA, p};
    for (int full = 0; full < 100 && a.ticket < 100000;) {
        size_t size;
        m.submit.ticket = a.ticket + 1;
        const void *bytes = wire_encode(a.raw.codec, &m, &size);
        if (packet_send(a.raw.socket, bytes, size, NULL, 0, MSG_DONTWAIT) == 0) {
            a.ticket++;
            full = 0;
        } else {
            ck_assert_int_eq(errno, EAGAIN);
            full++;
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
    }
    ck_assert_int_gt(a.ticket, 100);
    long after = daemon_kib();
    ck_assert_msg(after - before < 16384, "the daemon grew by %ld KiB", after - before);
    ck_assert_int_eq(raw_fate(&a.raw), RAW_ALIVE);
    ck_assert_int_eq(raw_wait(a.timeline, a.ticket), WIRE_INVALID);
    expect_service(&a);
    retreat(&a);
}
END_TEST

/* --- connections --------------------------------------------------------------------------------------- */

/* What connects and goes, in all ways that a socket has. */
START_TEST(half_open_connections_end) {
    for (int i = 0; i < 600; i++) {
        struct raw raw;
        if (i % 2)
            raw_open(&raw, server.socket);
        else
            raw_connect(&raw, server.socket);
        if (i % 3)
            shutdown(raw.socket, i % 3 == 1 ? SHUT_WR : SHUT_RD);
        if (i % 5 == 0) {
            raw_try(&raw, "\x93\x07\x01\x00", 4, NULL, 0);
            raw_try(&raw, "\x93\x07\x01\x00", 4, NULL, 0);
        }
        raw_close(&raw);
    }
    struct raw raw;
    raw_open(&raw, server.socket);
    shutdown(raw.socket, SHUT_WR); /* half-closed is closed */
    ck_assert_int_eq(packet_receive(raw.socket, &raw.packet, 0), 0);
    raw_close(&raw);
}
END_TEST

/* Connects without a word, or with a full backlog's worth at once: each is served or told why not. */
START_TEST(a_crowd_of_connections_is_served_or_told) {
    enum { CROWD = 3000 };
    static int sockets[CROWD];
    struct rlimit limit;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    strcpy(address.sun_path, server.socket);
    int count = limit.rlim_max > CROWD + 64 ? CROWD : (int)limit.rlim_max - 64;
    for (int i = 0; i < count; i++) {
        sockets[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(sockets[i], 0);
        if (connect(sockets[i], (struct sockaddr *)&address, sizeof address) < 0) {
            ck_assert_int_eq(errno, EAGAIN);
            close(sockets[i]);
            sockets[i] = -1;
        }
    }
    int served = 0, told = 0;
    for (int i = 0; i < count; i++) {
        struct raw raw = {.socket = sockets[i], .codec = wire_codec_new()};
        struct timeval patience = {20, 0};
        struct wire_message m = {.opcode = WIRE_HELLO, .id = 1};
        size_t size;
        char why[PROBLEM_WHY];
        m.hello = (struct wire_hello){WIRE_MAJOR, WIRE_MINOR, wire_string("0"), 0, wire_string("crowd")};
        raw.packet.data = malloc(WIRE_PACKET_MAX);
        const void *bytes = wire_encode(raw.codec, &m, &size);
        setsockopt(raw.socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (raw.socket >= 0) {
            raw_try(&raw, bytes, size, NULL, 0);
            int got = packet_receive(raw.socket, &raw.packet, 0);
            if (got < 0 && errno == ECONNRESET)
                got = packet_receive(raw.socket, &raw.packet, 0);
            ck_assert_msg(got >= 0, "connection %d: %s", i, strerror(errno));
            if (got == 1) {
                ck_assert(wire_decode(raw.codec, raw.packet.data, raw.packet.size, &raw.message, why));
                served += raw.message.opcode == WIRE_HELLO_REPLY;
                told += raw.message.opcode == WIRE_ERROR && raw.message.error.closing;
            }
        }
        wire_codec_free(raw.codec);
        free(raw.packet.data);
    }
    ck_assert_int_gt(served, 0);
    ck_assert_int_ge(served + told, count * 9 / 10);
    for (int i = 0; i < count; i++)
        close(sockets[i]);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("hostile");
    TCase *c = tcase_create("beside a well-behaved client");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 180);
    tcase_add_test(c, packets_cut_short_close_the_connection);
    tcase_add_test(c, packets_too_long_close_the_connection);
    tcase_add_test(c, an_empty_packet_ends_the_connection);
    tcase_add_loop_test(c, any_value_in_any_place_is_answered_or_closes, 0, REQUESTS);
    tcase_add_test(c, descriptors_of_other_kinds_are_refused);
    tcase_add_test(c, a_memfd_that_shrinks_is_refused_or_cannot);
    tcase_add_test(c, holes_under_a_running_job_harm_nobody);
    tcase_add_test(c, descriptors_withheld_or_superfluous_close_the_connection);
    tcase_add_test(c, too_many_descriptors_close_the_connection);
    tcase_add_test(c, a_timeline_as_a_buffer_misleads_its_owner_alone);
    tcase_add_test(c, offsets_near_the_end_of_numbers_are_refused);
    tcase_add_test(c, strides_that_overflow_or_overlap_are_refused);
    tcase_add_test(c, sizes_that_overflow_are_refused);
    tcase_add_test(c, ids_of_others_are_not_found);
    tcase_add_test(c, what_was_released_is_not_found);
    tcase_add_test(c, cu_seqlens_rewritten_while_jobs_run);
    tcase_add_test(c, a_scribbled_timeline_misleads_its_owner_alone);
    tcase_add_loop_test(c, floods_without_reading_are_held_back, 0, REQUESTS);
    tcase_add_test(c, sentences_that_nobody_reads_are_bounded);
    tcase_add_test(c, half_open_connections_end);
    tcase_add_test(c, a_crowd_of_connections_is_served_or_told);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
