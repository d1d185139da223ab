/*
 * raw.h - a client that speaks the wire itself, for tests that libkdad would keep from doing wrong.
 *
 * All functions fail the running test when something else happens than they say. Receiving gives up after 20
 * s.
 */
#ifndef TESTS_SOCKET_RAW_H
#define TESTS_SOCKET_RAW_H

#include "proto/packet.h"
#include "proto/timeline.h"

struct raw {
    int socket;
    struct wire_codec *codec;
    struct packet packet;
    struct wire_message message; /* the last one received */
};

void raw_connect(struct raw *raw, const char *path); /* without HELLO */
void raw_open(struct raw *raw, const char *path);    /* with HELLO */
void raw_close(struct raw *raw);

void raw_send_bytes(struct raw *raw, const void *bytes, size_t size, const int *fds, int fd_count);
void raw_send(struct raw *raw, const struct wire_message *message, int fd); /* fd -1: none */
void raw_receive(struct raw *raw, uint32_t opcode);
void raw_expect_error(struct raw *raw, uint64_t id, enum wire_status status, const char *sentence);
void raw_expect_closing(struct raw *raw, enum wire_status status,
                        const char *sentence); /* and the end behind it */

/* Sends without a word on failure: the daemon may have closed already. False with errno. */
bool raw_try(const struct raw *raw, const void *bytes, size_t size, const int *fds, int fd_count);

/* What became of a connection: reads all that has come, asks for the status, and reads until that is
 * answered, or the daemon's closing ERROR and the end behind it have come. Anything else, or nothing for 20
 * s, fails the test. */
enum raw_fate { RAW_ALIVE, RAW_CLOSED };
enum raw_fate raw_fate(struct raw *raw);

uint64_t raw_stream(struct raw *raw, struct timeline **timeline);
void raw_register(struct raw *raw, uint64_t size, int fd); /* only sends */
uint64_t raw_buffer(struct raw *raw, uint64_t size, int fd);

/* A sealed memfd with all pages allocated, as the daemon wants it. */
int raw_memfd(uint64_t size);

/* Waits for a job, and returns its status. */
enum wire_status raw_wait(struct timeline *timeline, uint64_t ticket);

/* A contiguous problem in float32, in place, all of whose operands lie in one buffer; *size: bytes it needs.
 */
void raw_problem(struct problem *p, int64_t T, int64_t HV, int64_t K, uint64_t buffer, uint64_t *size);
void raw_submit(struct raw *raw, uint64_t stream, uint64_t ticket, const struct problem *p);

#endif
