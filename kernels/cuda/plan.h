/*
 * plan.h - from a checked problem to launches of the panel kernels. Calls no driver function: whoever
 * launches does.
 *
 *     struct cuda_plan plan;
 *     if (!cuda_plan_make(&plan, &problem, addresses, &memory, &device))
 *         ... a problem for chunk.cu
 *     for (int i = 0; i < plan.launches; i++) {
 *         const struct cuda_plan_launch *l = &plan.launch[i];
 *         void *arguments[] = {&plan.params};
 *         cuLaunchKernel(function[l->kernel], l->grid, 1, 1, l->block, 1, 1, l->shared, stream, arguments,
 * NULL);
 *     }
 *
 * in stream order. Before its first launch each function needs
 * CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES set to cuda_kernel_shared(kernel, device). The image to
 * load is that of panel.cu.
 */
#ifndef KERNELS_CUDA_PLAN_H
#define KERNELS_CUDA_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/params.h"
#include "kernels/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

enum cuda_kernel {
    CUDA_KERNEL_SEQUENCES,  /* checks cu_seqlens, lists the panels */
    CUDA_KERNEL_PANEL_BF16, /* 16-byte accesses */
    CUDA_KERNEL_PANEL_F16,
    CUDA_KERNEL_PANEL_F32,
    CUDA_KERNEL_PANEL_BF16_ANY, /* the same with accesses of single elements: any K, any alignment */
    CUDA_KERNEL_PANEL_F16_ANY,
    CUDA_KERNEL_PANEL_F32_ANY,
    CUDA_KERNEL_COUNT
};

struct cuda_plan_device {
    int sm_count;
    int cc;          /* compute capability: 90 for 9.0 */
    unsigned shared; /* bytes of shared memory that a block may have, opt-in included */
};

/* What a job with cu_seqlens needs and tells: addresses as the device sees them. Unused without. */
struct cuda_plan_memory {
    uint64_t scratch; /* cuda_plan_scratch bytes, aligned to 8, for this job alone until it has run */
    uint64_t verdict; /* an int32 that gets an enum cuda_verdict; 0: nowhere */
    uint64_t status;  /* an int32 that gets bad_status if the verdict is not OK; 0: nowhere */
    int32_t bad_status;
};

struct cuda_plan_launch {
    enum cuda_kernel kernel;
    unsigned grid, block, shared; /* blocks, threads, bytes of dynamic shared memory */
};

struct cuda_plan {
    int launches; /* 0 for an empty problem */
    struct cuda_plan_launch launch[2];
    struct kda_params params;
};

/* The function's name in the image. */
const char *cuda_kernel_name(enum cuda_kernel kernel);

/* The most dynamic shared memory that a launch of it asks for on this device. */
unsigned cuda_kernel_shared(enum cuda_kernel kernel, const struct cuda_plan_device *device);

/* Bytes of scratch memory that a problem needs while it runs: 0 without cu_seqlens. */
size_t cuda_plan_scratch(const struct problem *p);

/* Plans p, which has passed problem_check; addresses: of each operand's element 0 on the device. False if no
 * panel kernel takes it: chunks of 128, 2^31 items and more, or a device with too little shared memory. */
bool cuda_plan_make(struct cuda_plan *plan, const struct problem *p, const uint64_t addresses[OPERAND_COUNT],
                    const struct cuda_plan_memory *memory, const struct cuda_plan_device *device);

/* The same with one kernel, for tests. */
bool cuda_plan_make_with(struct cuda_plan *plan, enum cuda_kernel kernel, const struct problem *p,
                         const uint64_t addresses[OPERAND_COUNT], const struct cuda_plan_memory *memory,
                         const struct cuda_plan_device *device);

#ifdef __cplusplus
}
#endif
#endif
