/* The tests of tests/unit/test_cpu.c, on a GPU, of each design of the kernels. */
#define main tests_of_cpu
#include "tests/unit/test_cpu.c"
#undef main

#ifdef HAVE_CUDA
#include "tests/gpu/gpu.h"

int main(void) {
    if (!gpu_is_there())
        return GPU_SKIPPED;
    fixture_runner = gpu_run;
    fixture_variant = gpu_variant;
    return tests_of_cpu();
}
#else
int main(void) {
    (void)tests_of_cpu;
    return 77; /* skipped: a build without CUDA */
}
#endif
