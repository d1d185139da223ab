/*
 * arguments.h - what a launch tells the kernels: plain data, the same for C and CUDA C++.
 */
#ifndef KERNELS_CUDA_ARGUMENTS_H
#define KERNELS_CUDA_ARGUMENTS_H

#include "kernels/problem.h"

/* Threads of a block: one for each column of a slab. */
enum { CUDA_BLOCK = 128 };

/* Addresses are device addresses. Strides are in elements, as in struct operand_view. */
struct cuda_arguments {
    uint64_t at[OPERAND_COUNT];
    int64_t stride[OPERAND_COUNT][3];
    int64_t B, T, H, HV, K, C, N; /* N: sequences, -1 without cu_seqlens */
    int64_t items;                /* of the grid: chunks and heads; with cu_seqlens an upper bound */
    int32_t beta_dtype, cu_dtype; /* enum dtype */
    /* With cu_seqlens: memory of the launcher's, CUDA_SEQUENCE_WORDS(N) words of 64 bits, written by the
     * sequences kernel and read by the chunk kernel behind it:
     *   [0] the verdict: 0, or the number of what is wrong (enum cuda_verdict)
     *   [1 … N + 1] the checked copy of cu_seqlens;  [N + 2 … 2 N + 1] chunks up to the end of each sequence
     */
    uint64_t sequences;
    /* Where, as int32, the verdict is told, and where bad_status if it is not OK; 0: nowhere. */
    uint64_t verdict, status;
    int32_t bad_status;
};

/* Of the guard (guard.cu). */
struct cuda_guard {
    uint64_t done, status; /* addresses: the timeline's done (u64), the job's status (i32) */
    uint64_t lost;         /* done, if the daemon is lost */
    int32_t harmless;      /* a status, other than 0, that leaves outputs as they ought to be */
    int64_t B, T, HV, K;
    uint64_t at[4]; /* the outputs: dq, dk, db, dg */
    int64_t stride[4][3];
};

#define CUDA_SEQUENCE_WORDS(N) (2 * (uint64_t)(N) + 2)

enum cuda_verdict {
    CUDA_VERDICT_OK,
    CUDA_VERDICT_START,   /* cu_seqlens[0] is not 0 */
    CUDA_VERDICT_FALLING, /* cu_seqlens falls */
    CUDA_VERDICT_END,     /* cu_seqlens ends beyond T */
};

#endif
