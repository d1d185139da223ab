/*
 * kdad.h - the client library of kdad, the kernel daemon: libkdad.
 *
 * A process connects to the daemon of its host, opens streams and submits jobs to them. Jobs of one stream
 * run in the order of their submission; different streams run side by side. A submission does not wait for
 * its job: it gives a ticket, and kdad_wait waits for it.
 *
 *     struct kdad_connection *c;
 *     struct kdad_stream *s;
 *     kdad_ticket t;
 *     if (kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &c) || kdad_stream_open(c, NULL, &s))
 *         errx(1, "%s", kdad_error());
 *     float *g = kdad_alloc(c, bytes);              // memory that the daemon can map: nothing is copied
 *     struct kdad_chunk_kda_bwd_intra_args args = {.g = kdad_tensor_4d(g, KDAD_F32, B, T, HV, K), …};
 *     if (kdad_chunk_kda_bwd_intra(s, &args, &t) || kdad_wait(s, t, KDAD_DEFAULT_TIMEOUT))
 *         errx(1, "%s", kdad_error());
 *
 * Errors. Every function that can fail returns a status, KDAD_OK being 0; kdad_error() is the sentence of the
 * calling thread's last failure. A job's own failure is the status that kdad_wait or kdad_poll gives for its
 * ticket. A refused submission has no ticket, writes nothing, and leaves the stream as it was.
 *
 * Threads. Different streams may be used by different threads at the same time, one stream by one thread at a
 * time, except that kdad_wait and kdad_poll may run beside a submission. A connection may be used by all.
 *
 * Daemon lost. If the daemon dies, all that waits returns KDAD_DAEMON_LOST for the jobs that were not done;
 * their outputs may be half written. If jobs of a stream were lost, or cancelled as the daemon stopped, and
 * no kdad_wait or kdad_poll has returned that, the stream's next submission returns it once, as it may build
 * upon them. From then on a submission connects anew, opens the stream again and registers memory again by
 * itself, or returns KDAD_NO_DAEMON. Tickets count on, and nothing is submitted twice.
 *
 * Fork. A child's calls on its parent's connections return KDAD_FORKED, or do nothing, and leave the parent's
 * alone; the child may connect for itself. kdad_alloc's memory stays mapped, and shared, in the child.
 */
#ifndef KDAD_H
#define KDAD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KDAD_VERSION_MAJOR 0
#define KDAD_VERSION_MINOR 1
#define KDAD_VERSION_PATCH 0

#if defined(__GNUC__)
#define KDAD_API __attribute__((visibility("default")))
#else
#define KDAD_API
#endif

typedef enum kdad_status {
    KDAD_OK = 0,
    KDAD_INVALID = 1,     /* an argument is wrong: the sentence names it, what it is and what it must be */
    KDAD_BAD_DATA = 2,    /* cu_seqlens was bad when the job ran; outputs equal the incoming gradients */
    KDAD_LIMIT = 3,       /* a limit of the daemon for this client is reached */
    KDAD_NO_MEMORY = 4,   /* memory is short, here or in the daemon */
    KDAD_UNSUPPORTED = 5, /* the daemon cannot do that */
    KDAD_NOT_FOUND = 6,   /* no such stream, buffer or ticket */
    KDAD_DENIED = 7,      /* the daemon does not serve this user */
    KDAD_CANCELLED = 8,   /* the job was queued when its stream closed or the daemon stopped: it never ran */
    KDAD_PROTOCOL = 9,    /* the peer broke the protocol, or speaks another version of it */
    KDAD_INTERNAL = 10,
    KDAD_NO_DAEMON = 32,   /* nobody answers on the socket */
    KDAD_DAEMON_LOST = 33, /* the daemon died or closed the connection before the job was done */
    KDAD_TIMEOUT = 34,     /* the time given ran out; nothing is lost, wait again */
    KDAD_PENDING = 35,     /* kdad_poll: not done yet */
    KDAD_FORKED = 36,      /* the connection belongs to the parent process */
} kdad_status;

typedef enum kdad_dtype {
    KDAD_BF16 = 1,
    KDAD_F16 = 2,
    KDAD_F32 = 3,
    KDAD_I32 = 4,
    KDAD_I64 = 5,
} kdad_dtype;

/* Milliseconds. Every wait of this library ends: with its time-out, or when the daemon dies. */
enum {
    KDAD_DEFAULT_TIMEOUT = -1, /* 30 s for the daemon's answers; for kdad_wait, as long as the daemon lives */
};

struct kdad_connection;
struct kdad_stream;
typedef uint64_t kdad_ticket; /* of one stream: 1, 2, 3 … */

/* A tensor where it lies: address of element 0, sizes, and strides in elements (as in PyTorch). ndim 0:
 * absent. Any strides ≥ 0, but the last dimension is contiguous (stride 1, or any if its size is 1).
 *
 * Memory from kdad_alloc, of this connection, is used where it lies. Any other memory is copied: inputs when
 * the job is submitted, so that they may be changed at once; outputs when kdad_wait or kdad_poll finds that
 * job, or a later one that it asks for, done. Until then the memory must stay valid, and holds what it held,
 * unless a later submission of the stream needs the output or its room first. Nothing is copied out of a job
 * that was lost, cancelled or failed, but for KDAD_BAD_DATA, where it is the incoming gradients. */
struct kdad_tensor {
    void *data;
    kdad_dtype dtype;
    int ndim;
    int64_t shape[4];
    int64_t stride[4];
};

/* The arguments of fla's chunk_kda_bwd_intra. G = HV / H; C is chunk_size: 16, 32, 64 or 128; K is 1 … 256.
 *
 *   q, k            [B, T, H, K]   bf16, f16 or f32, both the same
 *   g               [B, T, HV, K]  f32: log2 of the decay, summed along its chunk
 *   beta            [B, T, HV]     f32, bf16 or f16
 *   dAqk, dAkk      [B, T, HV, C]  f32; what lies above the diagonal is not read
 *   dq, dk, dg      [B, T, HV, K]  f32: incoming gradients
 *   db              [B, T, HV]     f32
 *   dq_out …        as these, f32: incoming gradients plus this step's. Absent (ndim 0): in place.
 *   cu_seqlens      [N + 1]        i64 or i32, optional; then B is 1
 *   chunk_indices   [NT, 2]        i64, optional; a hint that is checked for its shape and not read
 *
 * Sequence i is rows cu_seqlens[i] … cu_seqlens[i + 1] - 1; chunks start anew at each.
 *
 * Outputs must not overlap themselves, each other, or an input other than their own incoming gradient, of
 * which they may be the identical view. safe_gate is the caller's promise about g; it changes no result.
 * Zero-initialise the struct: an absent optional tensor has ndim 0. */
struct kdad_chunk_kda_bwd_intra_args {
    struct kdad_tensor q, k, g, beta, dAqk, dAkk;
    struct kdad_tensor dq, dk, db, dg;
    struct kdad_tensor dq_out, dk_out, db_out, dg_out;
    struct kdad_tensor cu_seqlens, chunk_indices;
    int chunk_size;
    int safe_gate;
};

/* Connects to the daemon's socket: address if given, else $KDAD_SOCKET, else $XDG_RUNTIME_DIR/kdad/kdad.sock,
 * else /run/kdad/kdad.sock. "local:" needs no daemon: the connection's jobs run in this process, by the same
 * kernels, which are loaded from kdad/libkdad-kernels.so beside this library. timeout_ms also holds for each
 * answer of the daemon's that a later call needs. Returns KDAD_NO_DAEMON, KDAD_DENIED, KDAD_INVALID (the
 * address is too long), KDAD_TIMEOUT, KDAD_LIMIT, KDAD_PROTOCOL, KDAD_NO_MEMORY, KDAD_UNSUPPORTED (no
 * libkdad-kernels.so). The connection is the caller's, to be ended by kdad_disconnect. */
KDAD_API kdad_status kdad_connect(const char *address, int timeout_ms, struct kdad_connection **connection);

/* Ends a connection, its streams and its memory (kdad_alloc). Jobs not started are cancelled. NULL is
 * allowed. */
KDAD_API void kdad_disconnect(struct kdad_connection *connection);

/* Opens a stream on a device: "cpu", a GPU's UUID, or NULL for the daemon's default. On a connection to
 * "local:" it must be "cpu" or NULL; such a stream's jobs are done when their submission returns, and their
 * tensors are never copied. */
KDAD_API kdad_status kdad_stream_open(struct kdad_connection *connection, const char *device,
                                      struct kdad_stream **stream);

/* Opens a stream for tensors on a GPU: that of the calling thread's current CUDA context. cuda_stream: a
 * CUstream or cudaStream_t of that context; 0: its default stream. Jobs run in that stream's order: a job
 * sees what was put on cuda_stream before its submission, and what is put there afterwards sees its results.
 * No call waits for the GPU. If a job fails or the daemon dies, its outputs become NaN in that order (but for
 * KDAD_BAD_DATA), and kdad_wait and the next submission say so. Tensors must stay valid until the job is
 * done, in stream order. A job whose memory cannot be shared with another process (cudaMallocAsync) runs in
 * this one, on cuda_stream; the daemon counts it only.
 *
 * A submission while cuda_stream is captured into a CUDA graph works on a connection to "local:" alone, and
 * else returns KDAD_UNSUPPORTED. It gives ticket 0; what it found in cu_seqlens is not told. */
KDAD_API kdad_status kdad_cuda_stream_open(struct kdad_connection *connection, void *cuda_stream,
                                           struct kdad_stream **stream);

/* Gives back what the daemon has mapped of this process's GPU memory, so that memory that was freed goes back
 * to the GPU at once. What is still in use is mapped again by the next job. */
KDAD_API kdad_status kdad_trim(struct kdad_connection *connection);

/* Waits for the stream's running job, cancels those behind it, and frees the stream, whatever it returns.
 * Outputs of plain memory that no wait has copied are not copied. NULL is allowed. Returns KDAD_DAEMON_LOST
 * if jobs were lost and no call has returned that, KDAD_TIMEOUT if the daemon does not answer. */
KDAD_API kdad_status kdad_stream_close(struct kdad_stream *stream);

/* Allocates zeroed shared memory, aligned to a page, that the daemon works on without a copy. All of it is
 * taken from the system at once. NULL on failure. */
KDAD_API void *kdad_alloc(struct kdad_connection *connection, size_t bytes);

/* Frees what kdad_alloc returned. Jobs that use it must be done. NULL is allowed. */
KDAD_API void kdad_free(struct kdad_connection *connection, void *memory);

/* A connection's jobs so far. */
struct kdad_stats {
    uint64_t jobs_daemon;     /* run by the daemon */
    uint64_t jobs_in_process; /* launched in this process */
    uint64_t jobs_captured;   /* put into a CUDA graph: once, however often it is launched */
};
KDAD_API void kdad_get_stats(const struct kdad_connection *connection, struct kdad_stats *stats);

/* Submits a job; ticket may be NULL. Returns once it is sent. Waits only while 1,024 jobs of the stream are
 * in flight or the socket is full, and, with plain memory, while a tensor lies where an earlier job's output
 * is not copied back yet, or while copies of 512 MB are in flight: KDAD_TIMEOUT if none of the stream's jobs
 * ends in the connection's time. If that earlier job failed, its status is returned: this one would work on
 * what was never computed. */
KDAD_API kdad_status kdad_chunk_kda_bwd_intra(struct kdad_stream *stream,
                                              const struct kdad_chunk_kda_bwd_intra_args *args,
                                              kdad_ticket *ticket);

/* Waits until a job is done and returns its status; KDAD_TIMEOUT after timeout_ms. The last 1,024 tickets of
 * a stream can be asked for, again and again. */
KDAD_API kdad_status kdad_wait(struct kdad_stream *stream, kdad_ticket ticket, int timeout_ms);

/* Like kdad_wait, but returns KDAD_PENDING at once if the job is not done. */
KDAD_API kdad_status kdad_poll(struct kdad_stream *stream, kdad_ticket ticket);

/* The sentence of the calling thread's last failure; "" if none. Valid until its next call of this library.
 */
KDAD_API const char *kdad_error(void);

/* A status in words of the field: "invalid argument", "daemon lost" … Never NULL. */
KDAD_API const char *kdad_status_string(kdad_status status);

/* The library's version, "0.1.0". */
KDAD_API const char *kdad_version(void);

/* Contiguous tensors. */
static inline struct kdad_tensor kdad_tensor_4d(const void *data, kdad_dtype dtype, int64_t a, int64_t b,
                                                int64_t c, int64_t d) {
    struct kdad_tensor t = {(void *)(uintptr_t)data, dtype, 4, {a, b, c, d}, {b * c * d, c * d, d, 1}};
    return t;
}

static inline struct kdad_tensor kdad_tensor_3d(const void *data, kdad_dtype dtype, int64_t a, int64_t b,
                                                int64_t c) {
    struct kdad_tensor t = {(void *)(uintptr_t)data, dtype, 3, {a, b, c, 0}, {b * c, c, 1, 0}};
    return t;
}

static inline struct kdad_tensor kdad_tensor_1d(const void *data, kdad_dtype dtype, int64_t a) {
    struct kdad_tensor t = {(void *)(uintptr_t)data, dtype, 1, {a, 0, 0, 0}, {1, 0, 0, 0}};
    return t;
}

#ifdef __cplusplus
}
#endif
#endif
