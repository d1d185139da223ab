/* The tests of tests/unit/test_cpu_law.c, on the panel kernels, emulated on the CPU: values, not speed. */
#include <stdlib.h>

#define main tests_of_cpu
#include "tests/unit/test_cpu_law.c"
#undef main

#include "tests/emulation/runner.h"

int main(void) {
    setenv("CK_FORK", "no", 0); /* so that the problems are counted */
    runner_use();
    const int status = tests_of_cpu();
    runner_print();
    return status;
}
