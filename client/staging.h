/*
 * staging.h - copies of plain memory that the daemon can map: one for each stream.
 *
 * A job with plain operands gets one block, which holds them without gaps. Blocks are taken from a ring in a
 * registered memfd, in ticket order, and given back in ticket order, when the job's outputs are copied out or
 * dropped. A ring that is too small is followed by a larger one, and freed with its last block; one that is
 * much too large for long is freed as well. All of it belongs to one session: when that is lost, a daemon
 * may still write into it, so nothing of it is used again.
 *
 * With the stream's lock, except staging_plan, staging_ring_new and staging_copy_in, which only the
 * submitting thread calls, on what nobody else looks at yet.
 */
#ifndef CLIENT_STAGING_H
#define CLIENT_STAGING_H

#include "client/error.h"
#include "kernels/problem.h"

struct session;

/* A job's block. Listed from its submission until its outputs are copied or dropped. */
struct staged {
    struct staged *next;
    kdad_ticket ticket;
    uint32_t plain;         /* bit o: operand o is plain */
    struct problem problem; /* as the caller described it: offsets are addresses */
    size_t bytes;
    struct staging_ring *ring;
    uint64_t start, end; /* positions in the ring */
    struct {
        uint64_t offset; /* from the block's start */
        int64_t stride[3];
    } at[OPERAND_COUNT];
};

struct staging {
    struct staged *first, **end; /* by ticket */
    struct staging_ring *rings;  /* the newest first: blocks are taken from that one */
    size_t bytes;                /* of all rings */
};

void staging_init(struct staging *staging);
void staging_destroy(struct staging *staging);

/* Lays out a job's block. NULL, with the error set, if memory is short. */
struct staged *staging_plan(const struct problem *problem, uint32_t plain);

/* Takes the block from the ring. False if there is no room. */
bool staging_reserve(struct staging *staging, struct staged *staged);

/* The size of a new ring that would give room; 0 if older blocks had better be waited for. */
size_t staging_growth(const struct staging *staging, size_t bytes);
kdad_status staging_ring_new(struct session *session, size_t bytes, int64_t deadline,
                             struct staging_ring **ring);
void staging_add(struct staging *staging, struct staging_ring *ring);

/* Copies the plain inputs into the block. */
void staging_copy_in(const struct staged *staged);

/* Says where an operand lies: buffer id, offset and strides. */
void staging_view(const struct staged *staged, enum operand o, struct operand_view *view);

/* The job was submitted; or was not. */
void staging_commit(struct staging *staging, struct staged *staged, kdad_ticket ticket);
void staging_cancel(struct staging *staging, struct staged *staged);

/* Takes the first job off the list, its outputs copied to the caller's memory or not. */
void staging_finish(struct staging *staging, bool copy);

/* The last listed job that has an output in memory that a plain operand of the problem covers; 0: none. */
kdad_ticket staging_conflict(const struct staging *staging, const struct problem *problem, uint32_t plain);

#endif
