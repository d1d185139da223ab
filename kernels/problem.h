/*
 * problem.h - one job: the KDA intra-chunk backward of a set of tensors.
 *
 * A problem is the job's sizes and, for each operand, where it lies: an allocation, an offset into it and
 * strides. It holds no pointers, so client and daemon, which map the same memory at different addresses,
 * describe and check it with the same code. Kernels get a checked problem and one base address an operand.
 *
 * With G = HV / H value heads to a query/key head (value head hv uses head hv / G):
 *
 *   operand                 shape             type
 *   q, k                    [B, T, H, K]      bfloat16, float16 or float32, both the same
 *   g                       [B, T, HV, K]     float32; log2 of the decay, summed inside its chunk
 *   beta                    [B, T, HV]        float32, bfloat16 or float16
 *   dAqk, dAkk              [B, T, HV, C]     float32
 *   dq, dk, dg              [B, T, HV, K]     float32, incoming and outgoing
 *   db                      [B, T, HV]        float32, incoming and outgoing
 *   cu_seqlens (optional)   [N + 1]           int64 or int32; then B = 1
 *
 * The formula is that of chunk_kda_bwd_intra in flash-linear-attention (fla/ops/kda/chunk_intra.py).
 */
#ifndef KERNELS_PROBLEM_H
#define KERNELS_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of dtypes and operands are also those of the wire (proto/wire.md). */
enum dtype {
    DTYPE_BF16 = 1,
    DTYPE_F16 = 2,
    DTYPE_F32 = 3,
    DTYPE_I32 = 4,
    DTYPE_I64 = 5,
};

enum operand {
    OPERAND_Q,
    OPERAND_K,
    OPERAND_G,
    OPERAND_BETA,
    OPERAND_DAQK,
    OPERAND_DAKK,
    OPERAND_DQ, /* incoming gradients, in the order dq, dk, db, dg */
    OPERAND_DK,
    OPERAND_DB,
    OPERAND_DG,
    OPERAND_DQ_OUT, /* outputs, in the same order; may be the identical view of the incoming one */
    OPERAND_DK_OUT,
    OPERAND_DB_OUT,
    OPERAND_DG_OUT,
    OPERAND_CU_SEQLENS, /* present if problem.N >= 0 */
    OPERAND_COUNT
};

enum {
    PROBLEM_MAX_K = 256,
    PROBLEM_WHY = 256, /* bytes that hold any sentence of a refusal, with its end */
};

/* Where one operand lies. Strides are in elements, of the dimensions batch, row and head; the last dimension
 * is contiguous. Operands of three dimensions have the head last: their stride[2] is 1. cu_seqlens has none.
 */
struct operand_view {
    uint64_t allocation;      /* identity: two operands share memory only if this is equal */
    uint64_t allocation_size; /* bytes */
    uint64_t offset;          /* of element 0 from the allocation's start, in bytes */
    int64_t stride[3];
};

struct problem {
    int64_t B, T, H, HV, K;
    int64_t C;             /* chunk size */
    int64_t N;             /* sequences in cu_seqlens; -1 without it */
    enum dtype qk_dtype;   /* of q and k */
    enum dtype beta_dtype; /* of beta */
    enum dtype cu_dtype;   /* of cu_seqlens */
    struct operand_view at[OPERAND_COUNT];
};

/* An operand as a caller describes it: with a shape of its own. */
struct operand_tensor {
    uint64_t allocation, allocation_size, offset; /* as in operand_view */
    enum dtype dtype;
    int ndim; /* 0: the operand is absent */
    int64_t shape[4], stride[4];
};

/* Makes a problem of tensors with shapes of their own. An absent output is in place of its incoming gradient.
 * Returns false, with one sentence in why, if their ranks, shapes or types do not fit together, or if a last
 * dimension is not contiguous. Checks nothing else: problem_check does. */
bool problem_from_tensors(struct problem *p, const struct operand_tensor tensors[OPERAND_COUNT],
                          int64_t chunk_size, char why[PROBLEM_WHY]);

/* Checks all that can be known without reading a tensor: sizes, types, strides, alignment, bounds, overlap.
 * Returns false with one sentence in why, which names the argument, what it is and what it must be. */
bool problem_check(const struct problem *p, char why[PROBLEM_WHY]);

/* True if both say the same of every size, type and operand. */
bool problem_equal(const struct problem *a, const struct problem *b);

/* True if there is nothing to compute or copy: B, T or HV is 0. Operands then need no memory. */
static inline bool problem_is_empty(const struct problem *p) {
    return p->B == 0 || p->T == 0 || p->HV == 0;
}

/* True if operand o is part of the problem (cu_seqlens may not be). */
static inline bool problem_has(const struct problem *p, enum operand o) {
    return o != OPERAND_CU_SEQLENS || p->N >= 0;
}

/* How many dimensions operand o has: 4, 3 or 1. */
static inline int operand_rank(enum operand o) {
    if (o == OPERAND_CU_SEQLENS)
        return 1;
    return o == OPERAND_BETA || o == OPERAND_DB || o == OPERAND_DB_OUT ? 3 : 4;
}

/* The elements of cu_seqlens: N + 1. A problem that no check has seen may have any N. */
static inline int64_t problem_ends(const struct problem *p) {
    return (int64_t)((uint64_t)p->N + 1);
}

/* The sizes of operand o's dimensions. Returns their number. */
static inline int problem_shape(const struct problem *p, enum operand o, int64_t shape[4]) {
    shape[0] = o == OPERAND_CU_SEQLENS ? problem_ends(p) : p->B;
    shape[1] = p->T;
    shape[2] = o <= OPERAND_K ? p->H : p->HV;
    shape[3] = o == OPERAND_DAQK || o == OPERAND_DAKK ? p->C : p->K;
    return operand_rank(o);
}

static inline enum dtype problem_dtype(const struct problem *p, enum operand o) {
    if (o <= OPERAND_K)
        return p->qk_dtype;
    return o == OPERAND_BETA ? p->beta_dtype : o == OPERAND_CU_SEQLENS ? p->cu_dtype : DTYPE_F32;
}

/* The strides of a contiguous operand o, as in operand_view. */
static inline void problem_contiguous(const struct problem *p, enum operand o, int64_t stride[3]) {
    int64_t shape[4];
    int ndim = problem_shape(p, o, shape);
    int64_t width = ndim == 4 ? shape[3] : 1, row;
    if (ndim == 1) {
        stride[0] = stride[1] = stride[2] = 1;
        return;
    }
    stride[2] = width;
    /* an overflow is refused later, by problem_check, where it makes the extent too large */
    if (__builtin_mul_overflow(width, shape[2], &row))
        row = INT64_MAX;
    stride[1] = row;
    if (__builtin_mul_overflow(row, shape[1], &stride[0]))
        stride[0] = INT64_MAX;
}

/* Bytes from the first to behind the last element of operand o, 0 if it has none, UINT64_MAX if beyond 2^62.
 */
uint64_t problem_extent(const struct problem *p, enum operand o);

/* Bytes that the job must read and write at least: each input and output once, of dA the triangles' tiles. */
uint64_t problem_traffic(const struct problem *p);

static inline bool operand_is_output(enum operand o) {
    return o >= OPERAND_DQ_OUT && o <= OPERAND_DG_OUT;
}

/* 0 for a number that is no type. */
static inline size_t dtype_size(enum dtype d) {
    return d == DTYPE_I64                      ? 8
           : d == DTYPE_F32 || d == DTYPE_I32  ? 4
           : d == DTYPE_BF16 || d == DTYPE_F16 ? 2
                                               : 0;
}

const char *operand_name(enum operand o);
const char *dtype_name(enum dtype d);

#ifdef __cplusplus
}
#endif
#endif
