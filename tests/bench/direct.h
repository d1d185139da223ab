/* direct.h - the operation as one writes it down: what the kernel's speed is measured against. */
#ifndef TESTS_BENCH_DIRECT_H
#define TESTS_BENCH_DIRECT_H

#include "kernels/problem.h"

/* Runs a problem of contiguous tensors without cu_seqlens, q and k in bfloat16, beta in float32, K <= 256. */
void direct_run(const struct problem *p, void *const data[OPERAND_COUNT]);

#endif
