/* bench_kernel.h - measures the CPU kernel against the direct formula, a memory copy and its own arithmetic.
 */
#ifndef TESTS_BENCH_BENCH_KERNEL_H
#define TESTS_BENCH_BENCH_KERNEL_H

#include <stdbool.h>

/* Prints a table, or one JSON object, to standard output. Returns an exit status. */
int bench_kernel(bool json);

#endif
