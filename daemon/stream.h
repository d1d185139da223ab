/*
 * stream.h - a client's queue of jobs, and the timeline that tells the client how far they are.
 *
 * Tickets count 1, 2, 3 … The loop counts submitted. Whoever ends a job stores its ticket twice: in finished
 * before the timeline shows it, so that a client that keeps to its limit of jobs in flight never seems to
 * break it; in ended behind that, as the last thing, for the loop that wants to see all jobs told of.
 */
#ifndef DAEMON_STREAM_H
#define DAEMON_STREAM_H

#include "daemon/backend.h"

struct client;

struct stream {
    struct client *client;
    uint64_t id;
    struct queue *queue; /* NULL once closed */
    struct timeline *timeline;
    uint64_t submitted;
    uint64_t finished, ended; /* atomic */
    uint64_t last_end_ns;     /* when a job last ended, after having run: theirs who end jobs, one by one */
    const char *cancelled;    /* atomic: why queued jobs are not to run; NULL while they are */
    bool closing;             /* waits for its queue to become idle */
    uint64_t close_request;   /* id of the STREAM_CLOSE to answer; 0: none */
};

/* Opens a stream for a client's group. *fd is the timeline's descriptor for the client, the caller's to
 * close. */
enum wire_status stream_open(struct client *client, struct group *group, struct wire_string device,
                             struct stream **stream, int *fd, char why[PROBLEM_WHY]);

/* From here on queued jobs are ended with WIRE_CANCELLED instead of being run. why: a literal. */
void stream_cancel(struct stream *stream, const char *why);

/* Closes the queue of a cancelled stream. True if it was idle: the stream is freed. */
bool stream_close(struct stream *stream);

uint64_t stream_in_flight(const struct stream *stream);

/* True if the timeline shows all jobs that were submitted as done. */
bool stream_is_settled(const struct stream *stream);

/* Marks a job as finished, shows it in the timeline, unless a device has shown it already, and marks it as
 * ended. On any thread. Returns true if the stream is cancelled: the loop then wants to know. */
bool stream_finish(struct stream *stream, uint64_t ticket, enum wire_status status, bool shown);

#endif
