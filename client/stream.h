/*
 * stream.h - a stream: its tickets, their statuses, and its timeline in the session of the moment.
 *
 * Tickets count up over all sessions. Those up to base belong to sessions that have ended, and what became of
 * the last 1,024 of them stands in status; base + n is job n of the current track. Only the submitting thread
 * changes the track; a waiting thread may end it (stream_end), which leaves it where it is.
 */
#ifndef CLIENT_STREAM_H
#define CLIENT_STREAM_H

#include "client/connection.h"
#include "client/staging.h"

/* A thread in a wait; in its frame. status is set when the ticket's slot is about to be used again. */
struct stream_waiter {
    struct stream_waiter *next;
    kdad_ticket ticket;
    kdad_status status;
};

struct kdad_stream {
    struct kdad_connection *connection;
    struct kdad_stream *next; /* with the connection's lock */
    char device[WIRE_NAME_MAX + 1];
    struct cuda_stream *cuda;   /* the trainer's stream on a GPU; NULL: host memory */
    struct local_stream *local; /* jobs in this process: all, or those that the daemon cannot run; or NULL */
    _Atomic uint32_t spin_ns;   /* how long a wait spins before it sleeps */

    struct wire_codec *codec; /* the submitting thread's, as is all up to hint */
    struct wire_message message;
    struct kdad_chunk_kda_bwd_intra_args args; /* the last that were found right … */
    struct problem problem;                    /* … and what follows from them */
    uint64_t extent[OPERAND_COUNT];
    bool checked; /* there are such */
    size_t hint;  /* the region that was last used */

    pthread_mutex_t lock;  /* for what follows */
    struct track *track;   /* NULL: never opened */
    bool ended;            /* the track's session is lost, and all its tickets are in status */
    kdad_ticket told;      /* the last ticket when a call last returned that jobs were lost or cancelled */
    struct track *retired; /* former tracks that a waiter may still look at */
    struct stream_waiter *waiters;
    kdad_ticket last; /* submitted */
    kdad_ticket base;
    int16_t status[WIRE_STREAM_SLOTS];
    kdad_status untold; /* what befell jobs behind untold_first, if no call has returned it yet */
    kdad_ticket untold_first;
    struct staging staging;
};

kdad_status stream_check(const struct kdad_stream *stream);

/* Frees a stream without a word to the daemon. */
void stream_free(struct kdad_stream *stream);

/* All that follow: with the lock, which they give up while they wait. */

/* Opens the stream in a new session if its own is lost. The first call after a loss that no call has told of
 * yet returns what befell the jobs, instead. By the submitting thread. */
kdad_status stream_ready(struct kdad_stream *stream);

/* Gives the stream its part for jobs in this process, unless it has one. */
kdad_status stream_open_local(struct kdad_stream *stream);

/* Waits for a job that is one of the last 1,024: its status, or KDAD_PENDING at the deadline. */
kdad_status stream_await(struct kdad_stream *stream, kdad_ticket ticket, int64_t deadline);

/* Copies plain outputs of jobs up to a ticket that is done, if they succeeded. */
void stream_settle(struct kdad_stream *stream, kdad_ticket ticket);

/* Before a job takes the slot of one that is done: what is still to be known of that one is written down. */
void stream_reuse_slot(struct kdad_stream *stream, kdad_ticket old);

/* Sets the error of a job that failed. */
kdad_status stream_job_error(struct kdad_stream *stream, kdad_ticket ticket, kdad_status status);

#endif
