/*
 * trace.c - a slot holds the number of its job, stored last, and its fields. The number is 0 while they are
 * written, so a reader that finds the same number before and behind the fields has them whole: a word that it
 * has read (acquire) of a later job (release) lets it see that the number is not what it was.
 */
#include "daemon/trace.h"

#include "daemon/client.h"
#include "daemon/job.h"

#include <stdlib.h>

enum { WORDS = sizeof(struct wire_trace_job) / sizeof(uint64_t) };

union entry {
    struct wire_trace_job job;
    uint64_t word[WORDS];
};

struct trace_ring {
    uint64_t next; /* number of the next job: 1, 2, 3 …; atomic */
    struct slot {
        uint64_t number; /* of its job; 0: none, or being written. Atomic, as are the words */
        uint64_t word[WORDS];
    } slot[TRACE_JOBS];
};

bool trace_begin(struct trace *trace) {
    if (!trace->ring) {
        struct trace_ring *ring = calloc(1, sizeof *ring);
        if (!ring)
            return false;
        ring->next = 1;
        __atomic_store_n(&trace->ring, ring, __ATOMIC_RELEASE);
    }
    __atomic_fetch_add(&trace->clients, 1, __ATOMIC_RELEASE);
    return true;
}

void trace_end(struct trace *trace) {
    __atomic_fetch_sub(&trace->clients, 1, __ATOMIC_RELAXED);
}

void trace_add(struct trace *trace, const struct job *job, uint64_t ended_ns) {
    struct trace_ring *ring = __atomic_load_n(&trace->ring, __ATOMIC_ACQUIRE);
    if (!ring) /* the count was seen before the ring */
        return;
    const struct problem *p = &job->problem;
    union entry entry = {
        .job = {
            .client = job->stream->client->number,
            .pid = job->stream->client->pid,
            .stream = job->stream->id,
            .ticket = job->ticket,
            .status = job->status,
            .received_ns = job->received_ns,
            .started_ns = job->started_ns,
            .ended_ns = ended_ns,
            .B = p->B,
            .T = p->T,
            .HV = p->HV,
            .K = p->K,
            .bytes = job->started_ns ? problem_traffic(p) : 0, /* else it may be no problem */
        }};
    uint64_t number = __atomic_fetch_add(&ring->next, 1, __ATOMIC_RELAXED);
    struct slot *slot = &ring->slot[number % TRACE_JOBS];
    __atomic_store_n(&slot->number, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < WORDS; i++)
        __atomic_store_n(&slot->word[i], entry.word[i], __ATOMIC_RELEASE);
    __atomic_store_n(&slot->number, number, __ATOMIC_RELEASE);
}

enum found { WHOLE, BEING_WRITTEN, OVERWRITTEN };

static enum found read_slot(const struct slot *slot, uint64_t number, struct wire_trace_job *job) {
    union entry entry;
    uint64_t before = __atomic_load_n(&slot->number, __ATOMIC_ACQUIRE);
    for (int i = 0; i < WORDS; i++)
        entry.word[i] = __atomic_load_n(&slot->word[i], __ATOMIC_ACQUIRE);
    uint64_t behind = __atomic_load_n(&slot->number, __ATOMIC_RELAXED);
    if (before > number || behind > number)
        return OVERWRITTEN;
    if (before != number || behind != number)
        return BEING_WRITTEN;
    *job = entry.job;
    return WHOLE;
}

void trace_fill(const struct trace *trace, uint64_t from, struct wire_trace_reply *reply) {
    const struct trace_ring *ring = trace->ring;
    uint64_t next = __atomic_load_n(&ring->next, __ATOMIC_RELAXED);
    *reply = (struct wire_trace_reply){.now_ns = uv_hrtime(), .next = next};
    if (from == 0 || from >= next)
        return;
    reply->next = from;
    while (reply->next < next && reply->count < WIRE_TRACE_JOBS) {
        enum found found =
            next - reply->next > TRACE_JOBS
                ? OVERWRITTEN
                : read_slot(&ring->slot[reply->next % TRACE_JOBS], reply->next, &reply->job[reply->count]);
        if (found == BEING_WRITTEN) /* the next request finds it */
            break;
        if (found == WHOLE)
            reply->count++;
        else
            reply->lost++;
        reply->next++;
    }
}

void trace_free(struct trace *trace) {
    free(trace->ring);
    trace->ring = NULL;
}
