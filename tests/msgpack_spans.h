/*
 * msgpack_spans.h - where the values of a msgpack packet lie, so that tests can put others in their places.
 */
#ifndef TESTS_MSGPACK_SPANS_H
#define TESTS_MSGPACK_SPANS_H

#include <stddef.h>
#include <stdint.h>

/* A value with all that it contains. */
struct span {
    size_t start, end;
};

/* Finds the values of a packet, containers before what is in them. Returns how many, at most max; 0 if the
 * bytes are no whole value. */
size_t spans_find(const uint8_t *data, size_t size, struct span *spans, size_t max);

/* Puts other bytes in the place of a value. Returns the new size; 0 if it is more than room. to may be data.
 */
size_t spans_replace(uint8_t *to, size_t room, const uint8_t *data, size_t size, struct span span,
                     const void *bytes, size_t count);

#endif
