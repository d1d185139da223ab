/*
 * fuzz_codec.c - any bytes as a packet. What decodes is encoded and decoded again, and must say the same.
 */
#include "proto/wire.h"
#include "tests/fuzz/fuzz_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);

#define require(condition)                                     \
    do {                                                       \
        if (!(condition)) {                                    \
            fprintf(stderr, "%s does not hold\n", #condition); \
            abort();                                           \
        }                                                      \
    } while (0)

static bool is_known(uint32_t opcode) {
    return (opcode >= WIRE_HELLO && opcode <= WIRE_TRACE) ||
           (opcode >= WIRE_HELLO_REPLY && opcode <= WIRE_TRACE_REPLY && opcode != WIRE_RELEASE_REPLY + 1) ||
           opcode == WIRE_JOB_ERROR || opcode == WIRE_ERROR;
}

/* Encodes what was decoded, and decodes that again. Returns the size, 0 where it is longer than a packet may
 * be. */
static size_t turn(struct wire_codec *codec, struct wire_message *message, uint8_t bytes[WIRE_PACKET_MAX]) {
    char why[PROBLEM_WHY];
    size_t size;
    const void *encoded = wire_encode(codec, message, &size);
    if (!encoded)
        return 0;
    memcpy(bytes, encoded, size);
    require(wire_decode(codec, bytes, size, message, why));
    return size;
}

/* Strides of dimensions of size 1 mean nothing, and are lost in the first turn; an output can then be seen to
 * be in place, in the second. From there on nothing changes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct wire_message message;
    static uint8_t first[WIRE_PACKET_MAX], second[WIRE_PACKET_MAX], third[WIRE_PACKET_MAX];
    static struct wire_codec *codec;
    char why[PROBLEM_WHY] = "";
    if (!codec)
        codec = wire_codec_new();
    if (!wire_decode(codec, data, size, &message, why)) {
        require(why[0] != 0);
        return 0;
    }
    if (!is_known(message.opcode)) /* decodes, for an answer, and is never sent */
        return 0;
    if (turn(codec, &message, first) == 0)
        return 0;
    size_t length = turn(codec, &message, second);
    require(length > 0 && turn(codec, &message, third) == length);
    require(memcmp(second, third, length) == 0);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    uint32_t state = seed;
    return session_mutate_packet(data, size, room, &state);
}
