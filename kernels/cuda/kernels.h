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

/* Which kernel a problem gets. */
enum cuda_design {
    CUDA_DESIGN_BEST,      /* plan.c's choice of panel.cu's kernels; chunk.cu for what they do not take */
    CUDA_DESIGN_PANEL_ANY, /* panel.cu's kernels that read single elements, where 16 bytes would do too */
    CUDA_DESIGN_CHUNK,     /* chunk.cu for everything */
    CUDA_DESIGNS
};

/* Loads the kernels into the calling thread's current context, and sees to it that the first launch of each
 * is as fast as any. NULL with a sentence in why. */
struct cuda_kernels *cuda_kernels_load(const struct cuda_driver *driver, char why[CUDA_WHY]);
void cuda_kernels_unload(struct cuda_kernels *kernels); /* in the same context */

/* For tests and comparisons: what is launched from now on. It is CUDA_DESIGN_BEST, unless the environment
 * variable KDAD_CUDA_DESIGN was "chunk" when the kernels were loaded. */
void cuda_kernels_use(struct cuda_kernels *kernels, enum cuda_design design);

/* The name of the kernel that a problem gets. */
const char *cuda_kernels_name(const struct cuda_kernels *kernels, const struct problem *p,
                              const uint64_t address[OPERAND_COUNT]);

/* Bytes of device memory that a job needs beside its tensors: the copy of cu_seqlens, and where its panels
 * lie. */
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
