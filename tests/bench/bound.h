/* bound.h - the arithmetic that the kernel cannot do without, alone: exponentials and multiply-adds. */
#ifndef TESTS_BENCH_BOUND_H
#define TESTS_BENCH_BOUND_H

#include <stdint.h>

/* Both work in registers, with the vectors of the best instruction set that this file was compiled for. Each
 * returns a number that depends on all results, so that none can be left out. */
float bound_exp2(int64_t count);
float bound_multiply_add(int64_t count);

#endif
