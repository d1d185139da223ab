/*
 * guard.h - the kernel behind a trainer's wait for a job (guard.cu): loading and launching it. It is small,
 * and so part of libkdad itself.
 */
#ifndef KERNELS_CUDA_GUARD_H
#define KERNELS_CUDA_GUARD_H

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads the guard into the calling thread's current context. NULL with a sentence in why. */
CUfunction cuda_guard_load(const struct cuda_driver *driver, char why[CUDA_WHY]);

/* Where a job's word is, as the device sees it. */
struct cuda_told {
    CUdeviceptr done;   /* u64 */
    uint64_t lost;      /* done, if the daemon is lost */
    CUdeviceptr status; /* i32; 0: done */
    int32_t harmless;   /* a status that leaves outputs as they ought to be */
};

/* Puts on a stream, behind the wait for a job: outputs become NaN if the job was not done. */
bool cuda_guard_launch(const struct cuda_driver *driver, CUfunction guard, CUstream stream,
                       const struct problem *p, const uint64_t address[OPERAND_COUNT],
                       const struct cuda_told *told, char why[CUDA_WHY]);

#ifdef __cplusplus
}
#endif
#endif
