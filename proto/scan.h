/*
 * scan.h - a bounded look at msgpack bytes before msgpack-c parses them.
 *
 * msgpack-c allocates an array's elements from the count that its header claims: five bytes can ask for 4
 * GiB. The scan proves first that the packet is exactly one object, that every count and length fits in the
 * bytes that follow, and that depth and number of objects are within the limits of wire.h.
 */
#ifndef PROTO_SCAN_H
#define PROTO_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns NULL if the bytes are safe to parse, else what is wrong with them. */
const char *scan_msgpack(const uint8_t *data, size_t size);

#endif
