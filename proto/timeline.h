/*
 * timeline.h - the page that a stream's two ends share: how far its jobs are.
 *
 * The daemon makes it, as a memfd sealed against any change of size, and sends it with STREAM_OPEN_REPLY;
 * both map it. Jobs of a stream are numbered 1, 2, 3 … (tickets). Before job n counts as done, its status is
 * stored in status[n % slots]; then done = n, with release order. A failed or cancelled job advances done
 * like any other. The daemon keeps its own count and never reads done back: a client that scribbles here
 * harms only itself.
 *
 * Waiting: done's low 32 bits are a futex (shared). A waiter first adds 1 to waiters, then looks at done
 * again, then sleeps; the daemon looks at waiters after storing done and wakes only where there are any.
 */
#ifndef PROTO_TIMELINE_H
#define PROTO_TIMELINE_H

#include "proto/wire.h"

#include <stdatomic.h>

struct timeline {
    _Alignas(
        64) _Atomic uint64_t ready;     /* written by the client: inputs of jobs up to here are ready (GPU) */
    _Alignas(64) _Atomic uint64_t done; /* written by the daemon; by the client once the daemon is lost */
    _Alignas(64) _Atomic uint32_t waiters;                    /* written by the client */
    _Alignas(4096) _Atomic int32_t status[WIRE_STREAM_SLOTS]; /* written by the daemon: enum wire_status */
};

/* done, once the daemon is lost: the largest number that a GPU's wait, which compares differences, takes for
 * more than any ticket. */
#define TIMELINE_LOST ((uint64_t)INT64_MAX)

/* Makes the memfd of a new timeline and maps it. Returns NULL with errno. */
struct timeline *timeline_create(int *fd);

/* Maps a timeline that the peer made, after checking its size and seals. Returns NULL with errno. */
struct timeline *timeline_map(int fd);

void timeline_unmap(struct timeline *timeline);

/* Stores a job's status and advances done to its ticket; wakes waiters. */
void timeline_finish(struct timeline *timeline, uint64_t ticket, enum wire_status status);

/* Stores the status of a job that is not done yet: for jobs whose done a device writes. */
void timeline_set_status(struct timeline *timeline, uint64_t ticket, enum wire_status status);

/* Wakes waiters, if there are any, after a device has advanced done. */
void timeline_wake(struct timeline *timeline);

/* Sets done and wakes all waiters: for the side that found its peer dead. */
void timeline_set_done(struct timeline *timeline, uint64_t done);

/* Sleeps until done differs from seen, or for at most timeout_ns. May wake early. */
void timeline_sleep(struct timeline *timeline, uint64_t seen, int64_t timeout_ns);

#endif
