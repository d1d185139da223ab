/*
 * runner.h - jobs on this process's own threads, one after the other for each caller.
 */
#ifndef KERNELS_CPU_RUNNER_H
#define KERNELS_CPU_RUNNER_H

#include "kernels/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cpu_runner;

/* Starts a thread for each processor that this process may use. NULL with errno. */
struct cpu_runner *cpu_runner_start(void);
void cpu_runner_stop(struct cpu_runner *runner); /* nobody runs a job; NULL is allowed */

/* Runs a job, as cpu_job_begin takes it, and returns when it is done. False with a sentence in why if
 * cu_seqlens was bad or memory short: the outputs equal the incoming gradients then. By any thread. */
bool cpu_runner_run(struct cpu_runner *runner, const struct problem *p, void *const data[OPERAND_COUNT],
                    char why[PROBLEM_WHY]);

#ifdef __cplusplus
}
#endif
#endif
