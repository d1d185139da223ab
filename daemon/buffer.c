#include "daemon/buffer.h"

#include <stdio.h>
#include <stdlib.h>

/* A mapping by itself takes no memory: its pages are there already, and are the client's. What it is charged
 * for is what the mapping has, which may be more than was asked for. */
static enum wire_status map_charged(struct buffer *b, const struct wire_register *request, const int *fds,
                                    int fd_count, const struct limits *limits, char why[PROBLEM_WHY]) {
    const struct backend_ops *ops = b->backend->ops;
    enum wire_status status = ops->map(b->backend, request, fds, fd_count, &b->mapping, why);
    if (status == WIRE_OK && !limits_take(b->user, LIMIT_BYTES, b->mapping.size, limits, "buffer", why)) {
        ops->unmap(b->backend, &b->mapping);
        status = WIRE_LIMIT;
    }
    return status;
}

enum wire_status buffer_open(struct backend *backend, const struct wire_register *request, const int *fds,
                             int fd_count, struct user *user, const struct limits *limits,
                             struct buffer **buffer, char why[PROBLEM_WHY]) {
    if (!limits_take(user, LIMIT_BUFFERS, 1, limits, "buffer", why))
        return WIRE_LIMIT;
    enum wire_status status = WIRE_NO_MEMORY;
    struct buffer *b = calloc(1, sizeof *b);
    if (b) {
        b->holders = 1;
        b->backend = backend;
        b->user = user;
        status = map_charged(b, request, fds, fd_count, limits, why);
    } else {
        snprintf(why, PROBLEM_WHY, "buffer: the daemon is out of memory");
    }
    if (status != WIRE_OK) {
        limits_give(user, LIMIT_BUFFERS, 1);
        free(b);
        return status;
    }
    *buffer = b;
    return WIRE_OK;
}

void buffer_hold(struct buffer *buffer) {
    __atomic_fetch_add(&buffer->holders, 1, __ATOMIC_RELAXED);
}

bool buffer_is_unused(const struct buffer *buffer) {
    return __atomic_load_n(&buffer->holders, __ATOMIC_ACQUIRE) == 1;
}

void buffer_drop(struct buffer *buffer) {
    if (!buffer || __atomic_fetch_sub(&buffer->holders, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    uint64_t size = buffer->mapping.size;
    buffer->backend->ops->unmap(buffer->backend, &buffer->mapping);
    limits_give(buffer->user, LIMIT_BYTES, size);
    limits_give(buffer->user, LIMIT_BUFFERS, 1);
    free(buffer);
}
