/*
 * trace.h - the jobs that ended lately, one by one, while somebody asks for them.
 *
 * A ring that jobs write to where they end, on any thread, and that the loop reads. Nobody waits: who reads
 * too slowly loses the oldest. It is made when first asked for, and written to as long as a client traces.
 */
#ifndef DAEMON_TRACE_H
#define DAEMON_TRACE_H

#include "proto/wire.h"

struct job;

enum { TRACE_JOBS = 32768 }; /* that the ring holds; a power of two */

struct trace {
    unsigned clients;        /* that trace: atomic */
    struct trace_ring *ring; /* atomic; NULL: never asked for */
};

/* A client begins to trace, or ends. False: out of memory. On the loop's thread. */
bool trace_begin(struct trace *trace);
void trace_end(struct trace *trace);

static inline bool trace_is_on(const struct trace *trace) {
    return __atomic_load_n(&trace->clients, __ATOMIC_RELAXED) > 0;
}

/* Enters a job, while it still is whole. On any thread. */
void trace_add(struct trace *trace, const struct job *job, uint64_t ended_ns);

/* Fills in the jobs from that number on; from 0, none: the first number to ask for. On the loop's thread. */
void trace_fill(const struct trace *trace, uint64_t from, struct wire_trace_reply *reply);

void trace_free(struct trace *trace);

#endif
