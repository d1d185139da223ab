/*
 * fuzz_session.h - a client's session as a fuzzer's input: the packets that it sends, and what goes with
 * each.
 *
 * A record is one byte that says which descriptors go with the packet, two bytes of its length,
 * little-endian, and its bytes. What follows the last whole record is ignored.
 */
#ifndef TESTS_FUZZ_SESSION_H
#define TESTS_FUZZ_SESSION_H

#include <stddef.h>
#include <stdint.h>

enum session_fds {
    SESSION_NONE,
    SESSION_MEMFD,    /* good: sealed, all pages allocated */
    SESSION_UNSEALED, /* memfds that are no good */
    SESSION_SPARSE,
    SESSION_DIRECTORY,
    SESSION_EVENTFD,
    SESSION_SOCKET,
    SESSION_TWO,  /* good memfds */
    SESSION_MANY, /* as many as a packet may have */
    SESSION_FDS,  /* how many kinds there are */
};

enum { SESSION_HEAD = 3, SESSION_RECORDS = 64 };

struct session_record {
    uint8_t fds;
    uint16_t size;
    const uint8_t *bytes;
};

/* Splits an input. Returns how many records it has, at most SESSION_RECORDS. */
size_t session_split(const uint8_t *data, size_t size, struct session_record records[SESSION_RECORDS]);

/* Writes records one behind the other: returns the size, without those that there is no room for. */
size_t session_join(uint8_t *to, size_t room, const struct session_record *records, size_t count);

/* Changes one value, or all the bytes, of a packet of msgpack. Returns the new size. */
size_t session_mutate_packet(uint8_t *packet, size_t size, size_t room, uint32_t *seed);

uint32_t session_random(uint32_t *seed);

#endif
