/*
 * params.h - what a kernel gets: one struct, the same for all of them, in C and in CUDA C++.
 *
 * The unit of work is a panel: up to 64 consecutive rows of one sequence (or batch), beginning at a multiple
 * of 64 from the sequence's start. A panel holds whole chunks where C <= 64, and half a chunk where C is 128.
 * An item is a panel and a value head; items are numbered with the head fastest.
 *
 * Without cu_seqlens a panel's place is arithmetic. With it, kda_sequences, the small first kernel, makes a
 * list of panels in scratch memory, from a snapshot of cu_seqlens that it has checked: no other kernel reads
 * cu_seqlens. Where it is bad, the list has all rows as rows of no sequence, which are only copied.
 */
#ifndef KERNELS_CUDA_PARAMS_H
#define KERNELS_CUDA_PARAMS_H

#include <stdint.h>

#include "kernels/cuda/arguments.h" /* enum cuda_verdict */

enum {
    PANEL_ROWS = 64,
    /* shared memory of a block, in 4-byte words: this, PANEL_ROWS for each 16 columns, and for each warp */
    PANEL_FIXED_WORDS = 8640,
    PANEL_HALF_WORDS = 2400,  /* with q and k of 16 bits */
    PANEL_FLOAT_WORDS = 3168, /* with float32 */
    PANEL_NONE = 0,           /* an unused entry: the list is sized for the worst case */
    PANEL_COMPUTE = 1,
    PANEL_COPY = 2, /* rows of no sequence: outputs equal incoming gradients */
};

/* Written by kda_sequences. */
struct kda_panel {
    int64_t start; /* first row */
    int32_t rows;  /* 1 ... 64 */
    int32_t kind;
};

/* An operand: where it lies, and its strides in elements. */
struct kda_tensor {
    uint64_t at;
    int64_t batch, row, head;
};

/* For division of 31-bit numbers: n / d = (n * multiplier) >> (32 + shift), d >= 1. */
struct kda_divisor {
    uint32_t multiplier, shift; /* d = 1: multiplier 0 */
};

struct kda_params {
    struct kda_tensor q, k, g, beta, dAqk, dAkk;
    struct kda_tensor in[4], out[4]; /* dq, dk, db, dg */
    int64_t T;
    int64_t panels;                 /* of a batch; with cu_seqlens, entries of the list */
    int64_t items;                  /* B * panels * HV */
    uint64_t cu;                    /* cu_seqlens, 0 without; the next three are scratch then */
    uint64_t snapshot, first, list; /* int64[N + 1], int64[N + 2], struct kda_panel[panels] */
    uint64_t verdict, status;       /* int32: an enum cuda_verdict; bad_status if it is not OK. 0: nowhere */
    int64_t N;
    int64_t HV, group;                             /* group = HV / H */
    struct kda_divisor by_HV, by_group, by_panels; /* for items < 2^31 */
    int32_t K, C;
    int32_t qk_dtype, beta_dtype, cu_dtype; /* enum dtype */
    int32_t bad_status;
    uint32_t tf32_mask; /* 0xffffe000; as a literal ptxas folds it, at a cost */
};

#endif
