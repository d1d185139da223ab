#include "kernels/library.h"

extern const struct kernels_library kdad_kernels_library;

#ifdef HAVE_CUDA
/* This library has a driver table of its own, for the words of errors. */
static struct cuda_kernels *cuda_load(char why[CUDA_WHY]) {
    const struct cuda_driver *driver = cuda_driver(why);
    return driver ? cuda_kernels_load(driver, why) : NULL;
}
#endif

__attribute__((visibility("default"))) const struct kernels_library kdad_kernels_library = {
    .version = KDAD_VERSION,
    .cpu_start = cpu_runner_start,
    .cpu_stop = cpu_runner_stop,
    .cpu_run = cpu_runner_run,
#ifdef HAVE_CUDA
    .cuda_load = cuda_load,
    .cuda_launch = cuda_launch,
    .cuda_scratch_size = cuda_scratch_size,
    .cuda_verdict_sentence = cuda_verdict_sentence,
#endif
};
