#include "daemon/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum wire_status stream_open(struct client *client, struct group *group, struct wire_string device,
                             struct stream **stream, int *fd, char why[PROBLEM_WHY]) {
    struct stream *s = calloc(1, sizeof *s);
    *fd = -1;
    if (s)
        s->timeline = timeline_create(fd);
    if (!s || !s->timeline) {
        snprintf(why, PROBLEM_WHY, "stream: no memory for its timeline: %s", strerror(errno));
        free(s);
        return WIRE_NO_MEMORY;
    }
    s->client = client;
    enum wire_status status = group->backend->ops->queue_open(group, device, s->timeline, &s->queue, why);
    if (status != WIRE_OK) {
        timeline_unmap(s->timeline);
        close(*fd);
        free(s);
        return status;
    }
    *stream = s;
    return WIRE_OK;
}

void stream_cancel(struct stream *stream, const char *why) {
    __atomic_store_n(&stream->cancelled, why, __ATOMIC_SEQ_CST);
}

bool stream_close(struct stream *stream) {
    stream->closing = true;
    if (!stream->queue->group->backend->ops->queue_close(stream->queue))
        return false;
    timeline_unmap(stream->timeline);
    free(stream);
    return true;
}

uint64_t stream_in_flight(const struct stream *stream) {
    return stream->submitted - __atomic_load_n(&stream->finished, __ATOMIC_ACQUIRE);
}

bool stream_is_settled(const struct stream *stream) {
    return stream->submitted == __atomic_load_n(&stream->ended, __ATOMIC_SEQ_CST);
}

/* Against stream_cancel followed by stream_is_settled: sequentially consistent, so one side sees the other.
 */
bool stream_finish(struct stream *stream, uint64_t ticket, enum wire_status status, bool shown) {
    __atomic_store_n(&stream->finished, ticket, __ATOMIC_RELEASE);
    if (shown)
        timeline_wake(stream->timeline);
    else
        timeline_finish(stream->timeline, ticket, status);
    __atomic_store_n(&stream->ended, ticket, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&stream->cancelled, __ATOMIC_SEQ_CST) != NULL;
}
