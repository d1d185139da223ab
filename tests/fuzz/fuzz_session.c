#include "tests/fuzz/fuzz_session.h"

#include "tests/msgpack_spans.h"

#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);

size_t session_split(const uint8_t *data, size_t size, struct session_record records[SESSION_RECORDS]) {
    size_t count = 0;
    while (count < SESSION_RECORDS && size >= SESSION_HEAD) {
        uint16_t length = (uint16_t)(data[1] | data[2] << 8);
        if (length > size - SESSION_HEAD)
            break;
        records[count++] = (struct session_record){data[0], length, data + SESSION_HEAD};
        data += SESSION_HEAD + length;
        size -= SESSION_HEAD + (size_t)length;
    }
    return count;
}

size_t session_join(uint8_t *to, size_t room, const struct session_record *records, size_t count) {
    size_t size = 0;
    for (size_t i = 0; i < count && SESSION_HEAD + (size_t)records[i].size <= room - size; i++) {
        uint8_t *head = to + size;
        head[0] = records[i].fds;
        head[1] = records[i].size & 255;
        head[2] = (uint8_t)(records[i].size >> 8);
        memcpy(head + SESSION_HEAD, records[i].bytes, records[i].size);
        size += SESSION_HEAD + (size_t)records[i].size;
    }
    return size;
}

uint32_t session_random(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 8;
}

/* Numbers that are often the last good or the first bad one, and what is no number. */
static size_t make_value(uint8_t bytes[16], uint32_t *seed) {
    static const uint64_t numbers[] = {0,         1,         2,          3,          15,         16,
                                       64,        128,       256,        4096,       65535,      UINT32_MAX,
                                       INT32_MAX, INT64_MAX, UINT64_MAX, 1ULL << 48, 1ULL << 60, 1ULL << 63,
                                       65536,     1024,      1025};
    static const char *const others[] = {"\xc0",
                                         "\xc2",
                                         "\xc3",
                                         "\x90",
                                         "\x80",
                                         "\xa0",
                                         "\243cpu",
                                         "\xff",
                                         "\xc1",
                                         "\xdf\x7f\x7f\x7f\x7f",
                                         "\xdd\x7f\x7f\x7f\x7f",
                                         "\x91\x91\x91\x91\x91\x01"};
    uint32_t r = session_random(seed);
    if (r % 4 == 0) {
        const char *other = others[r / 4 % (sizeof others / sizeof others[0])];
        size_t size = strlen(other);
        memcpy(bytes, other, size);
        return size;
    }
    uint64_t number = numbers[r / 4 % (sizeof numbers / sizeof numbers[0])] + session_random(seed) % 3 - 1;
    bytes[0] = session_random(seed) % 8 ? 0xcf : 0xd3;
    for (int i = 0; i < 8; i++)
        bytes[1 + i] = (uint8_t)(number >> (56 - 8 * i));
    return 9;
}

size_t session_mutate_packet(uint8_t *packet, size_t size, size_t room, uint32_t *seed) {
    struct span spans[256];
    uint8_t bytes[256];
    size_t count = spans_find(packet, size, spans, 256), length, changed = 0;
    if (count == 0 || session_random(seed) % 8 == 0)
        return LLVMFuzzerMutate(packet, size, room);
    const struct span *place = &spans[session_random(seed) % count],
                      *other = &spans[session_random(seed) % count];
    if (session_random(seed) % 4 == 0 &&
        other->end - other->start <= sizeof bytes) { /* one of its own values */
        length = other->end - other->start;
        memcpy(bytes, packet + other->start, length);
    } else if (session_random(seed) % 3 == 0 && place->end - place->start <= sizeof bytes / 2) {
        length = place->end - place->start;
        memcpy(bytes, packet + place->start, length);
        length = LLVMFuzzerMutate(bytes, length, sizeof bytes);
    } else {
        length = make_value(bytes, seed);
    }
    changed = spans_replace(packet, room, packet, size, *place, bytes, length);
    return changed ? changed : size;
}
