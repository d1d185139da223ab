/*
 * cuda_stream.h - what the files of a build with CUDA share: a trainer's stream, from inside.
 */
#ifndef CLIENT_CUDA_STREAM_H
#define CLIENT_CUDA_STREAM_H

#include "client/cuda.h"
#include "kernels/cuda/driver.h"
#include "kernels/library.h"

/* A context of the process's, and what is loaded there: once, for all streams in it. It stays as long as the
 * process: a context is never torn down by kdad, and when its owner does so, all goes with it. */
struct cuda_context {
    struct cuda_context *next;
    CUcontext context;
    CUfunction guard;             /* NULL: not loaded yet */
    struct cuda_kernels *kernels; /* likewise, of libkdad-kernels.so */
};

struct cuda_stream {
    const struct cuda_driver *driver;
    struct cuda_context *in;
    CUstream stream;
    bool words; /* it reads and writes words of memory; else functions on the host do */
    char device[WIRE_NAME_MAX + 1];
};

/* Make the stream's context the calling thread's, and give it back. */
bool cuda_enter(const struct cuda_stream *stream, char why[CUDA_WHY]);
void cuda_leave(const struct cuda_stream *stream);

/* Loads what a context needs, unless it is there. In the context. */
bool cuda_context_load_guard(struct cuda_context *context, const struct cuda_driver *driver,
                             char why[CUDA_WHY]);
bool cuda_context_load_kernels(struct cuda_context *context, const struct kernels_library *library,
                               char why[CUDA_WHY]);

/* Sets the error of a call of the driver's that failed. */
kdad_status cuda_failed(const char *what, const char *why);

#endif
