#include "daemon/buffer.h"

#include <stdio.h>
#include <stdlib.h>

enum wire_status buffer_open(struct backend *backend, const struct wire_register *request, const int *fds,
                             int fd_count, struct buffer **buffer, char why[PROBLEM_WHY]) {
    struct buffer *b = calloc(1, sizeof *b);
    if (!b) {
        snprintf(why, PROBLEM_WHY, "buffer: the daemon is out of memory");
        return WIRE_NO_MEMORY;
    }
    enum wire_status status = backend->ops->map(backend, request, fds, fd_count, &b->mapping, why);
    if (status != WIRE_OK) {
        free(b);
        return status;
    }
    b->holders = 1;
    b->backend = backend;
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
    buffer->backend->ops->unmap(buffer->backend, &buffer->mapping);
    free(buffer);
}
