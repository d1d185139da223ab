/*
 * panels.h - jobs on the panel kernels of kernels/cuda, emulated on the CPU.
 */
#ifndef TESTS_EMULATION_PANELS_H
#define TESTS_EMULATION_PANELS_H

#include <stdbool.h>

#include "kernels/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs a job with one of the kernels: `any` for those that read single elements. False if none takes it. */
bool panels_run(const struct problem *p, void *const data[OPERAND_COUNT], bool any);

#ifdef __cplusplus
}
#endif
#endif
