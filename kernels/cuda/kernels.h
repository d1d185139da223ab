/*
 * kernels.h - the GPU kernels of one context: loading and launching them. The one launch code of the daemon
 * and of jobs that run in the trainer's process.
 */
#ifndef KERNELS_CUDA_KERNELS_H
#define KERNELS_CUDA_KERNELS_H

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_kernels;

/* Loads the kernels into the calling thread's current context, and sees to it that the first launch of each
 * is as fast as any. NULL with a sentence in why. */
struct cuda_kernels *cuda_kernels_load(const struct cuda_driver *driver, char why[CUDA_WHY]);
void cuda_kernels_unload(struct cuda_kernels *kernels); /* in the same context */

/* Bytes of device memory that a job needs beside its tensors: the copy of cu_seqlens. */
uint64_t cuda_scratch_size(const struct problem *p);

/* What a job with cu_seqlens needs and tells. Addresses as the device sees them. */
struct cuda_sequences {
    CUdeviceptr scratch; /* cuda_scratch_size bytes that the stream may write from here on, aligned to 8 */
    CUdeviceptr verdict; /* an int32 that gets an enum cuda_verdict when the job has run; 0: nowhere */
    CUdeviceptr status;  /* an int32 that gets bad_status if the verdict is not OK; 0: nowhere */
    int32_t bad_status;
};

/* Puts a job on a stream. The problem is checked and not empty; address: device addresses of element 0.
 * Nothing is waited for. False with a sentence in why. */
bool cuda_launch(const struct cuda_kernels *kernels, CUstream stream, const struct problem *p,
                 const uint64_t address[OPERAND_COUNT], const struct cuda_sequences *sequences,
                 char why[CUDA_WHY]);

/* The sentence of a verdict other than CUDA_VERDICT_OK. */
const char *cuda_verdict_sentence(int32_t verdict);

#ifdef __cplusplus
}
#endif
#endif
