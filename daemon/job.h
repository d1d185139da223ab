/*
 * job.h - one submitted job, from its packet to its status in the timeline.
 *
 * Made by the loop; ended once, on whatever thread the backend is done on. While it lives it keeps its
 * buffers mapped; its stream and client outlive it.
 */
#ifndef DAEMON_JOB_H
#define DAEMON_JOB_H

#include "daemon/backend.h"

struct buffer;
struct stream;

struct job {
    struct stream *stream;
    uint64_t ticket;
    enum wire_status status; /* WIRE_OK until something is wrong */
    char why[PROBLEM_WHY];
    struct problem problem;
    uint64_t address[OPERAND_COUNT]; /* of element 0 of each operand; 0 where absent */
    struct buffer *buffer[OPERAND_COUNT];
    uint64_t received_ns;        /* uv_hrtime when its packet was read */
    uint64_t started_ns;         /* and when it began to run, set by the backend; 0: it never did */
    uint64_t busy_ns;            /* threads' time, set by the backend; 0: a device's, as long as it ran */
    bool shown;                  /* a device has advanced the timeline's done for it */
    struct job *next;            /* the backend's */
    _Alignas(16) char private[]; /* backend_ops.job_size bytes */
};

/* A new job of a stream; NULL: out of memory. */
struct job *job_new(struct stream *stream, uint64_t ticket, size_t private_size);

/* Sets the status of a job that is not to run. */
__attribute__((format(printf, 3, 4))) void job_refuse(struct job *job, enum wire_status status,
                                                      const char *format, ...);

/* What a backend asks before it runs a job: false if the job is refused, or its stream was cancelled by now.
 */
bool job_runnable(struct job *job);

/* Tells the client and frees the job: a sentence first if it failed, then status and done in the timeline. */
void job_end(struct job *job);

#endif
