#include "daemon/job.h"

#include "daemon/buffer.h"
#include "daemon/daemon.h"
#include "daemon/stream.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct job *job_new(struct stream *stream, uint64_t ticket, size_t private_size) {
    struct job *job = malloc(sizeof *job + private_size);
    if (!job)
        return NULL;
    job->stream = stream;
    job->ticket = ticket;
    job->status = WIRE_OK;
    job->why[0] = 0;
    job->received_ns = stream->client->daemon->now;
    job->started_ns = 0;
    job->busy_ns = 0;
    job->shown = false;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        job->address[o] = 0;
        job->buffer[o] = NULL;
    }
    return job;
}

void job_refuse(struct job *job, enum wire_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(job->why, sizeof job->why, format, list);
    va_end(list);
    job->status = status;
}

bool job_runnable(struct job *job) {
    const char *cancelled = __atomic_load_n(&job->stream->cancelled, __ATOMIC_ACQUIRE);
    if (job->status == WIRE_OK && cancelled)
        job_refuse(job, WIRE_CANCELLED, "job: cancelled before it ran: %s", cancelled);
    return job->status == WIRE_OK;
}

/* Jobs of a stream run one behind the other, also where several of them wait on the device. */
static void measure(struct job *job, uint64_t now) {
    struct stream *stream = job->stream;
    struct client *client = stream->client;
    if (job->started_ns < stream->last_end_ns)
        job->started_ns = stream->last_end_ns;
    stream->last_end_ns = now;
    meter_add(&client->daemon->meter, job->started_ns - job->received_ns, now - job->started_ns);
    recent_add(&client->recent, now - job->received_ns);
    if (job->busy_ns == 0)
        job->busy_ns = now - job->started_ns;
    if (job->status == WIRE_OK) {
        uint64_t bytes = problem_traffic(&job->problem);
        __atomic_fetch_add(&client->bytes_moved, bytes, __ATOMIC_RELAXED);
        pace_add(stream->queue->pace, bytes, now - job->started_ns);
    }
}

void job_end(struct job *job) {
    struct stream *stream = job->stream;
    struct client *client = stream->client;
    uint64_t now = uv_hrtime();
    if (job->started_ns != 0)
        measure(job, now);
    if (trace_is_on(&client->daemon->trace))
        trace_add(&client->daemon->trace, job, now);
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        buffer_drop(job->buffer[o]);
    __atomic_fetch_add(&client->busy_ns, job->busy_ns, __ATOMIC_RELAXED);
    if (job->status == WIRE_OK) {
        __atomic_fetch_add(&client->jobs_done, 1, __ATOMIC_RELAXED);
    } else {
        __atomic_fetch_add(&client->jobs_failed, 1, __ATOMIC_RELAXED);
        client_job_error(client, stream->id, job->ticket, job->status, job->why);
    }
    limits_give(client->user, LIMIT_JOBS, 1);
    if (stream_finish(stream, job->ticket, job->status, job->shown))
        uv_async_send(&client->daemon->settle);
    free(job);
}
