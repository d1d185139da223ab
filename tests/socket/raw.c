#include "tests/socket/raw.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { STATUS_ID = 7777 };

void raw_connect(struct raw *raw, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {20, 0};
    ck_assert_uint_lt(strlen(path), sizeof address.sun_path);
    strcpy(address.sun_path, path);
    raw->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    raw->codec = wire_codec_new();
    raw->packet.data = malloc(WIRE_PACKET_MAX);
    ck_assert_int_eq(connect(raw->socket, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(setsockopt(raw->socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
}

void raw_open(struct raw *raw, const char *path) {
    struct wire_message m = {.opcode = WIRE_HELLO, .id = 1};
    m.hello = (struct wire_hello){WIRE_MAJOR, WIRE_MINOR, wire_string("0"), 0, wire_string("raw")};
    raw_connect(raw, path);
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_HELLO_REPLY);
    ck_assert_uint_eq(raw->message.id, 1);
}

void raw_close(struct raw *raw) {
    close(raw->socket);
    wire_codec_free(raw->codec);
    free(raw->packet.data);
}

void raw_send_bytes(struct raw *raw, const void *bytes, size_t size, const int *fds, int fd_count) {
    ck_assert_msg(packet_send(raw->socket, bytes, size, fds, fd_count, 0) == 0, "send: %s", strerror(errno));
}

void raw_send(struct raw *raw, const struct wire_message *message, int fd) {
    size_t size;
    const void *bytes = wire_encode(raw->codec, message, &size);
    raw_send_bytes(raw, bytes, size, &fd, fd >= 0);
}

void raw_receive(struct raw *raw, uint32_t opcode) {
    char why[PROBLEM_WHY];
    int got = packet_receive(raw->socket, &raw->packet, 0);
    ck_assert_msg(got == 1, "nothing received: %s", got ? strerror(errno) : "end of file");
    ck_assert_msg(wire_decode(raw->codec, raw->packet.data, raw->packet.size, &raw->message, why), "%s", why);
    ck_assert_msg(raw->message.opcode == opcode, "received opcode %u, but expected %u: %.*s",
                  raw->message.opcode, opcode,
                  raw->message.opcode == WIRE_ERROR ? (int)raw->message.error.sentence.size : 0,
                  raw->message.error.sentence.data);
}

static void expect_sentence(struct wire_string found, const char *sentence) {
    char text[WIRE_SENTENCE_MAX + 1] = {0};
    memcpy(text, found.data, found.size);
    ck_assert_str_eq(text, sentence);
}

void raw_expect_error(struct raw *raw, uint64_t id, enum wire_status status, const char *sentence) {
    raw_receive(raw, WIRE_ERROR);
    expect_sentence(raw->message.error.sentence, sentence);
    ck_assert_uint_eq(raw->message.id, id);
    ck_assert_uint_eq(raw->message.error.status, status);
    ck_assert(!raw->message.error.closing);
}

void raw_expect_closing(struct raw *raw, enum wire_status status, const char *sentence) {
    raw_receive(raw, WIRE_ERROR);
    expect_sentence(raw->message.error.sentence, sentence);
    ck_assert_uint_eq(raw->message.id, 0);
    ck_assert_uint_eq(raw->message.error.status, status);
    ck_assert(raw->message.error.closing);
    ck_assert_int_eq(packet_receive(raw->socket, &raw->packet, 0), 0);
}

bool raw_try(const struct raw *raw, const void *bytes, size_t size, const int *fds, int fd_count) {
    return packet_send(raw->socket, bytes, size, fds, fd_count, 0) == 0;
}

/* A socket that was closed with packets unread says ECONNRESET once, before what can still be read. */
static int receive_any(struct raw *raw) {
    int got = packet_receive(raw->socket, &raw->packet, 0);
    if (got < 0 && errno == ECONNRESET)
        got = packet_receive(raw->socket, &raw->packet, 0);
    ck_assert_msg(got >= 0, "no answer, and no end: %s", strerror(errno));
    return got;
}

/* Asks for the status, unless that is asked already. Waits until the socket takes the question, or something
 * has come: the daemon may read nothing before that is read. */
static bool ask(struct raw *raw) {
    struct wire_message status = {.opcode = WIRE_STATUS, .id = STATUS_ID};
    struct pollfd ready = {.fd = raw->socket, .events = POLLIN | POLLOUT};
    size_t size;
    const void *bytes = wire_encode(raw->codec, &status, &size);
    ck_assert_msg(poll(&ready, 1, 20000) > 0, "neither answer nor room for a question");
    return packet_send(raw->socket, bytes, size, NULL, 0, MSG_DONTWAIT) == 0 || errno != EAGAIN;
}

static bool has_come(const struct raw *raw) {
    struct pollfd readable = {.fd = raw->socket, .events = POLLIN};
    return poll(&readable, 1, 0) > 0;
}

enum raw_fate raw_fate(struct raw *raw) {
    char why[PROBLEM_WHY];
    bool told = false, asked = ask(raw);
    while (!asked && !has_come(raw))
        asked = ask(raw);
    while (receive_any(raw) == 1) {
        ck_assert_msg(wire_decode(raw->codec, raw->packet.data, raw->packet.size, &raw->message, why), "%s",
                      why);
        packet_close_fds(&raw->packet);
        ck_assert_msg(!told, "opcode %u behind the last word", raw->message.opcode);
        if (raw->message.opcode == WIRE_STATUS_REPLY && raw->message.id == STATUS_ID)
            return RAW_ALIVE;
        told = raw->message.opcode == WIRE_ERROR && raw->message.error.closing;
        ck_assert(!told || raw->message.error.sentence.size > 0);
        asked = asked || told;
        while (!asked && !has_come(raw))
            asked = ask(raw);
    }
    ck_assert_msg(told, "closed without a word");
    return RAW_CLOSED;
}

uint64_t raw_stream(struct raw *raw, struct timeline **timeline) {
    struct wire_message m = {.opcode = WIRE_STREAM_OPEN, .id = 2};
    m.stream_open = (struct wire_stream_open){wire_string("cpu"), 0};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_STREAM_OPEN_REPLY);
    ck_assert_int_eq(raw->packet.fd_count, 1);
    *timeline = timeline_map(raw->packet.fds[0]);
    ck_assert_ptr_nonnull(*timeline);
    packet_close_fds(&raw->packet);
    return raw->message.stream_open_reply.stream;
}

void raw_register(struct raw *raw, uint64_t size, int fd) {
    struct wire_message m = {.opcode = WIRE_REGISTER, .id = 3};
    m.reg = (struct wire_register){.kind = WIRE_BUFFER_HOST, .size = size};
    raw_send(raw, &m, fd);
}

uint64_t raw_buffer(struct raw *raw, uint64_t size, int fd) {
    raw_register(raw, size, fd);
    raw_receive(raw, WIRE_REGISTER_REPLY);
    return raw->message.reg_reply.buffer;
}

int raw_memfd(uint64_t size) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(posix_fallocate(fd, 0, (off_t)size), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

enum wire_status raw_wait(struct timeline *timeline, uint64_t ticket) {
    uint64_t before = 0;
    for (int idle = 0; idle < 200; idle++) { /* looks at which no job was done */
        uint64_t done = atomic_load(&timeline->done);
        if (done >= ticket)
            return (enum wire_status)atomic_load(&timeline->status[ticket % WIRE_STREAM_SLOTS]);
        if (done != before)
            idle = 0;
        before = done;
        timeline_sleep(timeline, done, 100000000);
    }
    ck_abort_msg("ticket %llu is not done, and none before it for 20 s", (unsigned long long)ticket);
}

void raw_problem(struct problem *p, int64_t T, int64_t HV, int64_t K, uint64_t buffer, uint64_t *size) {
    *p = (struct problem){.B = 1,
                          .T = T,
                          .H = HV,
                          .HV = HV,
                          .K = K,
                          .C = 64,
                          .N = -1,
                          .qk_dtype = DTYPE_F32,
                          .beta_dtype = DTYPE_F32,
                          .cu_dtype = DTYPE_I64};
    *size = 0;
    for (enum operand o = 0; o < OPERAND_DQ_OUT; o++) {
        int64_t shape[4] = {0};
        int ndim = problem_shape(p, o, shape);
        int64_t row = ndim == 4 ? shape[2] * shape[3] : shape[2];
        p->at[o] = (struct operand_view){buffer, UINT64_MAX, *size, {T * row, row, ndim == 4 ? shape[3] : 1}};
        *size += problem_extent(p, o);
    }
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
        p->at[o] = p->at[o - (OPERAND_DQ_OUT - OPERAND_DQ)];
}

void raw_submit(struct raw *raw, uint64_t stream, uint64_t ticket, const struct problem *p) {
    struct wire_message m = {.opcode = WIRE_SUBMIT};
    m.submit = (struct wire_submit){stream, ticket, WIRE_CHUNK_KDA_BWD_INTRA, *p};
    raw_send(raw, &m, -1);
}
