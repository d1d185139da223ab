/*
 * library.h - what libkdad-kernels.so holds for libkdad: the daemon's kernels, to be run in the trainer's own
 * process. libkdad loads it when it is asked to, and so stays small.
 */
#ifndef KERNELS_LIBRARY_H
#define KERNELS_LIBRARY_H

#include "kernels/cpu/runner.h"
#include "kernels/problem.h"

#ifdef HAVE_CUDA
#include "kernels/cuda/kernels.h"
#endif

struct kernels_library {
    const char *version; /* KDAD_VERSION: libkdad takes its own version's alone */

    struct cpu_runner *(*cpu_start)(void);
    void (*cpu_stop)(struct cpu_runner *runner);
    bool (*cpu_run)(struct cpu_runner *runner, const struct problem *p, void *const data[OPERAND_COUNT],
                    char why[PROBLEM_WHY]);

    /* kernels.h; NULL in a build without CUDA. */
    struct cuda_kernels *(*cuda_load)(char why[PROBLEM_WHY]);
#ifdef HAVE_CUDA
    bool (*cuda_launch)(const struct cuda_kernels *kernels, CUstream stream, const struct problem *p,
                        const uint64_t address[OPERAND_COUNT], const struct cuda_sequences *sequences,
                        char why[CUDA_WHY]);
    uint64_t (*cuda_scratch_size)(const struct problem *p);
    const char *(*cuda_verdict_sentence)(int32_t verdict);
#endif
};

#define KERNELS_LIBRARY_FILE "libkdad-kernels.so"
#define KERNELS_LIBRARY_SYMBOL "kdad_kernels_library"

#endif
