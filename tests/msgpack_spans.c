#include "tests/msgpack_spans.h"

#include <string.h>

enum { DEPTH_MAX = 8 };

struct walk {
    const uint8_t *data;
    size_t size, at;
    struct span *spans;
    size_t count, max;
};

static uint64_t big_endian(const uint8_t *bytes, size_t count) {
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* A value's first byte: bytes of its length field, bytes of its body beside that length, values inside for
 * each counted one. */
struct form {
    unsigned length, fixed, inside;
};

static int form_of(uint8_t first, struct form *form) {
    static const struct form forms[32] = {
        [0x00] = {0, 0, 0}, [0x02] = {0, 0, 0}, [0x03] = {0, 0, 0}, /* nil, false, true */
        [0x04] = {1, 0, 0}, [0x05] = {2, 0, 0}, [0x06] = {4, 0, 0}, /* bin */
        [0x07] = {1, 1, 0}, [0x08] = {2, 1, 0}, [0x09] = {4, 1, 0}, /* ext */
        [0x0a] = {0, 4, 0}, [0x0b] = {0, 8, 0}, [0x0c] = {0, 1, 0},  [0x0d] = {0, 2, 0}, /* float, uint */
        [0x0e] = {0, 4, 0}, [0x0f] = {0, 8, 0}, [0x10] = {0, 1, 0},  [0x11] = {0, 2, 0}, /* int */
        [0x12] = {0, 4, 0}, [0x13] = {0, 8, 0}, [0x14] = {0, 2, 0},  [0x15] = {0, 3, 0}, /* fixext */
        [0x16] = {0, 5, 0}, [0x17] = {0, 9, 0}, [0x18] = {0, 17, 0},                     /* fixext */
        [0x19] = {1, 0, 0}, [0x1a] = {2, 0, 0}, [0x1b] = {4, 0, 0},                      /* str */
        [0x1c] = {2, 0, 1}, [0x1d] = {4, 0, 1}, [0x1e] = {2, 0, 2},  [0x1f] = {4, 0, 2}, /* array, map */
    };
    *form = forms[first & 31];
    return first != 0xc1;
}

/* Steps over a value's head and body. Returns the values inside, or -1. */
static int64_t step(struct walk *w) {
    uint8_t first = w->data[w->at++];
    struct form form;
    if (first < 0x80 || first >= 0xe0)
        return 0;
    uint64_t bytes, inside = 0;
    if (first < 0xa0) {
        inside = (first & 15) * (first < 0x90 ? 2 : 1);
        bytes = 0;
    } else if (first < 0xc0) {
        bytes = first & 31;
    } else {
        if (!form_of(first, &form) || form.length > w->size - w->at)
            return -1;
        uint64_t counted = big_endian(w->data + w->at, form.length);
        w->at += form.length;
        inside = form.inside * counted;
        bytes = form.fixed + (form.inside ? 0 : counted);
    }
    if (bytes > w->size - w->at || inside > w->size - w->at - bytes)
        return -1;
    w->at += bytes;
    return (int64_t)inside;
}

static int walk(struct walk *w, int depth) { /* at most DEPTH_MAX deep */
    if (w->at == w->size || w->count == w->max || depth > DEPTH_MAX)
        return 0;
    struct span *own = &w->spans[w->count++];
    own->start = w->at;
    int64_t inside = step(w);
    for (int64_t i = 0; i < inside; i++) {
        if (!walk(w, depth + 1))
            return 0;
    }
    own->end = w->at;
    return inside >= 0;
}

size_t spans_find(const uint8_t *data, size_t size, struct span *spans, size_t max) {
    struct walk w = {.data = data, .size = size, .spans = spans, .max = max};
    return walk(&w, 0) ? w.count : 0;
}

size_t spans_replace(uint8_t *to, size_t room, const uint8_t *data, size_t size, struct span span,
                     const void *bytes, size_t count) {
    size_t behind = size - span.end, total = span.start + count + behind;
    if (total > room)
        return 0;
    memmove(to + span.start + count, data + span.end, behind);
    if (to != data)
        memmove(to, data, span.start);
    memcpy(to + span.start, bytes, count);
    return total;
}
