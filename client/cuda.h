/*
 * cuda.h - tensors on a GPU: the trainer's allocations, exported to the daemon, and its CUDA stream, tied to
 * a timeline.
 *
 * An allocation is registered when a job first uses it, under its base address and its buffer id, which the
 * driver never gives twice: an address that was freed and allocated again is never served from what was
 * registered before. What was not used for CUDA_IDLE_NS is released, since a mapping keeps the memory from
 * going back to the GPU.
 *
 * A job's packet is sent first; then the trainer's stream gets: ready = n, wait for done ≥ n, guard. The
 * guard (kernels/cuda/guard.cu) turns outputs into NaN if the job was not done: a lost job never looks like a
 * result.
 *
 * In a build without CUDA, opening fails and the rest is never called.
 */
#ifndef CLIENT_CUDA_H
#define CLIENT_CUDA_H

#include "client/error.h"
#include "client/session.h"
#include "kernels/problem.h"

#define CUDA_IDLE_NS INT64_C(2000000000)

struct cuda_stream; /* a trainer's stream, and its context's kernels */

/* Takes a CUstream of the calling thread's current context. device: gets the name of its GPU. */
kdad_status cuda_stream_open(void *stream, struct cuda_stream **opened, char device[WIRE_NAME_MAX + 1]);
void cuda_stream_close(struct cuda_stream *stream); /* NULL is allowed */

/* KDAD_UNSUPPORTED while the stream is captured into a graph: the daemon can do nothing for it. */
kdad_status cuda_stream_check(struct cuda_stream *stream);

/* Ties a timeline to the stream's context, where it loads what jobs need, and unties it, once nothing on the
 * GPU looks at it any more. */
kdad_status cuda_timeline_register(struct cuda_stream *stream, struct timeline *timeline, uint64_t *address);
void cuda_timeline_unregister(struct cuda_stream *stream, struct timeline *timeline);

/* The connection's table of registered allocations. */
struct cuda_memory {
    pthread_mutex_t lock;
    struct cuda_allocation *allocations;
    size_t count, capacity;
    uint64_t round; /* of placing: an allocation's buffer id is asked for once in each */
    uint64_t bytes; /* that the daemon has mapped */
    uint64_t limit; /* beyond which what was used the longest ago is released; 0: not known yet */
};

void cuda_memory_init(struct cuda_memory *memory);
void cuda_memory_destroy(struct cuda_memory *memory);

/* Gives each operand of placed, whose offsets are addresses, the buffer that it lies in, and its offset
 * there. Registers what the session does not know. On success, cuda_memory_placed must follow. */
kdad_status cuda_memory_place(struct cuda_memory *memory, struct cuda_stream *stream, struct session *session,
                              struct problem *placed, const uint64_t extent[OPERAND_COUNT], int64_t deadline);

/* The job was sent, or will not be: what it lies in may be released, and is, beyond the limit. */
void cuda_memory_placed(struct cuda_memory *memory, struct session *session, const struct problem *placed,
                        int64_t deadline);

/* Releases allocations that were last used before a time (deadline_now), and those of other sessions. Does
 * not wait for the daemon. True if some are left. */
bool cuda_memory_release(struct cuda_memory *memory, struct session *session, int64_t before);

/* Releases all, and waits until the daemon has unmapped them: it does so when their jobs are done. */
kdad_status cuda_memory_trim(struct cuda_memory *memory, struct session *session, int64_t deadline);

/* Puts a job that was submitted on the trainer's stream. problem: with addresses. */
kdad_status cuda_stream_follow(struct cuda_stream *stream, struct timeline *timeline,
                               uint64_t timeline_address, uint64_t ticket, const struct problem *problem);

/* Likewise a job that ran in this process, and that the daemon only counts. */
kdad_status cuda_stream_tell(struct cuda_stream *stream, struct timeline *timeline, uint64_t timeline_address,
                             uint64_t ticket);

/* Jobs in this process: local.h, for a stream on a GPU. sentence: NULL if the data was good. */
struct cuda_local;
struct kernels_library;
kdad_status cuda_local_open(struct cuda_stream *stream, const struct kernels_library *library,
                            struct cuda_local **opened);
void cuda_local_close(struct cuda_local *local);
kdad_status cuda_local_launch(struct cuda_local *local, const struct problem *problem,
                              const uint64_t extent[OPERAND_COUNT], kdad_ticket ticket, bool *captured);
kdad_status cuda_local_look(struct cuda_local *local, kdad_ticket ticket, kdad_ticket last);
const char *cuda_local_sentence(const struct cuda_local *local, kdad_ticket ticket);
void cuda_local_clear(struct cuda_local *local, kdad_ticket ticket);

#endif
