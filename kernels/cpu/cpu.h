/*
 * cpu.h - the KDA intra-chunk backward on a CPU.
 *
 * A job is cut into items that are independent of each other: one chunk of one value head, or a stretch of
 * rows that belong to no sequence and are copied through. Any thread may run any item, in any order; results
 * do not depend on it, bit for bit. Nothing here allocates, blocks or starts threads, but for cpu_job_begin's
 * copy of cu_seqlens.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction sets a kernel exists for. Which of them this build has depends on the architecture. */
enum cpu_isa {
    CPU_ISA_BEST, /* the fastest this processor has */
    CPU_ISA_PORTABLE,
    CPU_ISA_AVX2,
    CPU_ISA_AVX512,
    CPU_ISA_NEON,
};

struct cpu_job {
    struct problem problem;
    void *data[OPERAND_COUNT]; /* address of element 0 of each operand; NULL where absent */
    int64_t items;             /* set by cpu_job_begin */
    int64_t *chunk_ends; /* [N], owned: chunks up to the end of each sequence; NULL without cu_seqlens */
    int64_t *row_ends;   /* [N + 1], owned (same block as chunk_ends): the checked copy of cu_seqlens */
};

/* Takes a problem that problem_check has passed and its operands' addresses. Counts items; copies and checks
 * cu_seqlens, which is read exactly once and may change afterwards. Returns false with a sentence in why if
 * cu_seqlens is bad or memory is short: nothing has been written then, and cpu_job_end need not be called. */
bool cpu_job_begin(struct cpu_job *job, const struct problem *p, void *const data[OPERAND_COUNT],
                   char why[PROBLEM_WHY]);

/* Where the job ends with an error before any item ran: copies incoming gradients to outputs not in place. */
void cpu_job_copy_through(const struct problem *p, void *const data[OPERAND_COUNT]);

/* Runs items first ... first + count - 1. scratch: cpu_scratch_size() bytes aligned to 64, one for each
 * thread. */
void cpu_job_run(const struct cpu_job *job, int64_t first, int64_t count, void *scratch);

void cpu_job_end(struct cpu_job *job);

size_t cpu_scratch_size(void);

/* A rough number of nanoseconds that one item of this problem takes on one thread: what scheduling goes by.
 */
int64_t cpu_item_cost(const struct problem *p);

/* Chooses the kernels of all later jobs of the process: for tests and benchmarks. False if this build or this
 * processor lacks them. */
bool cpu_use_isa(enum cpu_isa isa);
const char *cpu_isa_name(void); /* of the kernels in use: "avx512", "avx2", "neon", "portable" */

#ifdef __cplusplus
}
#endif
#endif
