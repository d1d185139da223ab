/*
 * chunk.h - private to the CPU kernels: one chunk of one value head, and the kernels for it.
 *
 * A chunk carries addresses and steps in bytes, so kernels know neither batches, heads nor sequences: cpu.c
 * has resolved these. Kernels trust what they get (problem_check and cpu_job_begin have checked it).
 */
#ifndef KERNELS_CPU_CHUNK_H
#define KERNELS_CPU_CHUNK_H

#include "kernels/problem.h"

enum {
    CHUNK_MAX_ROWS = 128,
    CHUNK_BLOCK = 16,           /* rows of a diagonal block, in which nothing is factored */
    CHUNK_SCRATCH = 704 * 1024, /* bytes that are enough for any chunk in any instruction set */
    CHUNK_SCRATCH_ALIGNMENT = 64,
};

struct chunk {
    int rows;   /* 1 ... size */
    int size;   /* C */
    int width;  /* K */
    bool large; /* the job's outputs are larger than caches: it is of no use to leave them there */
    enum dtype qk_dtype, beta_dtype;
    char *at[OPERAND_COUNT];       /* element 0 of the chunk's first row */
    ptrdiff_t step[OPERAND_COUNT]; /* bytes from a row to the next */
};

/* The kernels of one instruction set. Results of different sets differ in rounding. */
struct chunk_kernels {
    const char *name;

    /* Reads the chunk's inputs and writes its outputs. next: a chunk that is likely to run next in this
     * thread, to bring its inputs nearer, or NULL. */
    void (*run)(const struct chunk *chunk, const struct chunk *next, void *scratch);

    /* to[i] = 2 ** from[i], as the kernel computes it: for tests. */
    void (*exp2)(float *to, const float *from, size_t count);
};

extern const struct chunk_kernels chunk_portable;
#if defined(__x86_64__)
extern const struct chunk_kernels chunk_avx2, chunk_avx512;
#elif defined(__aarch64__)
extern const struct chunk_kernels chunk_neon;
#endif

#endif
