/*
 * cuda_stream.h - what the files of a build with CUDA share: a trainer's stream, from inside.
 */
#ifndef CLIENT_CUDA_STREAM_H
#define CLIENT_CUDA_STREAM_H

#include "client/cuda.h"
#include "kernels/cuda/kernels.h"

struct cuda_stream {
    const struct cuda_driver *driver;
    CUcontext context;
    CUstream stream;
    char device[WIRE_NAME_MAX + 1];
    struct cuda_kernels *kernels;
};

/* Make the stream's context the calling thread's, and give it back. */
bool cuda_enter(const struct cuda_stream *stream, char why[CUDA_WHY]);
void cuda_leave(const struct cuda_stream *stream);

/* Sets the error of a call of the driver's that failed. */
kdad_status cuda_failed(const char *what, const char *why);

#endif
