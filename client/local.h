/*
 * local.h - jobs that run in this process: those of a connection to "local:", and those of a daemon's client
 * whose memory the daemon cannot map. The kernels are the daemon's, of libkdad-kernels.so.
 */
#ifndef CLIENT_LOCAL_H
#define CLIENT_LOCAL_H

#include "client/cuda.h"

/* A connection's means: the library, and threads for tensors in host memory. */
struct local;

/* Loads the library. */
kdad_status local_open(struct local **opened);
void local_close(struct local *local); /* its streams are closed; NULL is allowed */

/* A stream's part. Tickets are counted by the stream: 1, 2, 3 … */
struct local_stream;

/* cuda: the trainer's stream, which stays the caller's; NULL: for tensors in host memory. */
kdad_status local_stream_open(struct local *local, struct cuda_stream *cuda, struct local_stream **opened);
void local_stream_close(struct local_stream *stream); /* waits for its jobs; NULL is allowed */

/* Runs a job, or puts it on the trainer's stream. problem: with addresses as offsets. The job that had the
 * ticket's slot before is done. captured: it went into a CUDA graph, and so has no ticket. */
kdad_status local_submit(struct local_stream *stream, const struct problem *problem,
                         const uint64_t extent[OPERAND_COUNT], kdad_ticket ticket, bool *captured);

/* What became of a job, one of the last 1,024; KDAD_PENDING: not done yet. last: the stream's last ticket. */
kdad_status local_look(struct local_stream *stream, kdad_ticket ticket, kdad_ticket last);

/* What a job that is known to be done found in its data, and that in words. clear: nothing, for the next. */
kdad_status local_verdict(const struct local_stream *stream, kdad_ticket ticket);
const char *local_sentence(const struct local_stream *stream, kdad_ticket ticket);
void local_clear(struct local_stream *stream, kdad_ticket ticket);

#endif
