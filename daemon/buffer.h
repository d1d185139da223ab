/*
 * buffer.h - memory of a client that the daemon has mapped.
 *
 * A buffer is held by its client's table and by each job that uses it; the last holder unmaps it, on its own
 * thread.
 */
#ifndef DAEMON_BUFFER_H
#define DAEMON_BUFFER_H

#include "daemon/backend.h"
#include "daemon/limits.h"

struct buffer {
    uint32_t holders; /* atomic */

    uint64_t request;    /* id of the RELEASE to answer, once released */
    struct buffer *next; /* of those that are released, but not yet unmapped */
    struct backend *backend;
    struct user *user; /* who is charged for it */
    struct mapping mapping;
    uint64_t allocation; /* equal for two buffers of a client only if they map the same memory */
};

/* Maps memory for a client, and charges its user. On WIRE_OK the caller holds the buffer. */
enum wire_status buffer_open(struct backend *backend, const struct wire_register *request, const int *fds,
                             int fd_count, struct user *user, const struct limits *limits,
                             struct buffer **buffer, char why[PROBLEM_WHY]);

void buffer_hold(struct buffer *buffer);
void buffer_drop(struct buffer *buffer); /* NULL is allowed */

/* For its client: true if no job uses it. */
bool buffer_is_unused(const struct buffer *buffer);

#endif
