#include "proto/scan.h"

#include "proto/wire.h"

static uint32_t big_endian(const uint8_t *p, unsigned bytes) {
    uint32_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value = value << 8 | p[i];
    return value;
}

/* What one header says: how many bytes belong to it (itself included), and how many objects follow inside. */
struct head {
    uint64_t bytes;
    uint64_t children;
    bool known;
};

/* p has at least one byte; left is how many. A header that does not fit has bytes > left. */
static struct head read_head(const uint8_t *p, size_t left) {
    uint8_t t = p[0];
    if (t <= 0x7f || t >= 0xe0) /* fixint */
        return (struct head){1, 0, true};
    if (t <= 0x8f) /* fixmap */
        return (struct head){1, 2 * (uint64_t)(t & 0x0f), true};
    if (t <= 0x9f) /* fixarray */
        return (struct head){1, t & 0x0f, true};
    if (t <= 0xbf) /* fixstr */
        return (struct head){1 + (uint64_t)(t & 0x1f), 0, true};
    switch (t) {
    case 0xc0: /* nil, false, true */
    case 0xc2:
    case 0xc3:
        return (struct head){1, 0, true};
    case 0xcc: /* unsigned and signed integers, floats */
    case 0xd0:
        return (struct head){2, 0, true};
    case 0xcd:
    case 0xd1:
        return (struct head){3, 0, true};
    case 0xca:
    case 0xce:
    case 0xd2:
        return (struct head){5, 0, true};
    case 0xcb:
    case 0xcf:
    case 0xd3:
        return (struct head){9, 0, true};
    default:
        break;
    }
    unsigned width; /* of the length or count behind the type byte */
    switch (t) {
    case 0xc4: /* bin 8, str 8 */
    case 0xd9:
        width = 1;
        break;
    case 0xc5: /* bin 16, str 16, array 16, map 16 */
    case 0xda:
    case 0xdc:
    case 0xde:
        width = 2;
        break;
    case 0xc6: /* bin 32, str 32, array 32, map 32 */
    case 0xdb:
    case 0xdd:
    case 0xdf:
        width = 4;
        break;
    default: /* ext types and 0xc1: the protocol has none */
        return (struct head){1, 0, false};
    }
    if (left < 1 + width)
        return (struct head){1 + (uint64_t)width, 0, true};
    uint64_t n = big_endian(p + 1, width);
    if (t == 0xdc || t == 0xdd)
        return (struct head){1 + width, n, true};
    if (t == 0xde || t == 0xdf)
        return (struct head){1 + width, 2 * n, true};
    return (struct head){1 + width + n, 0, true};
}

const char *scan_msgpack(const uint8_t *data, size_t size) {
    uint64_t open[WIRE_DEPTH_MAX + 1]; /* objects still to come at each depth */
    unsigned depth = 0;
    size_t at = 0, objects = 0;
    open[0] = 1;
    for (;;) {
        while (open[depth] == 0) {
            if (depth == 0)
                return at == size ? NULL : "bytes behind the message";
            depth--;
        }
        open[depth]--;
        if (at == size)
            return "message is cut short";
        if (++objects > WIRE_OBJECTS_MAX)
            return "too many objects";
        if (data[at] <= 0x7f) { /* a small number: most objects of a packet are */
            at++;
            continue;
        }
        struct head head = read_head(data + at, size - at);
        if (!head.known)
            return "a msgpack type that the protocol does not use";
        if (head.bytes > size - at)
            return "a length beyond the packet's end";
        at += (size_t)head.bytes;
        if (head.children > size - at)
            return "a count beyond the packet's end";
        if (head.children > 0) {
            if (depth == WIRE_DEPTH_MAX)
                return "nested too deep";
            open[++depth] = head.children;
        }
    }
}
