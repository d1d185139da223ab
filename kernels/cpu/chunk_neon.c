/* chunk_neon.c - the chunk kernel for arm64, where NEON is always there. */
#if defined(__aarch64__)

#include "kernels/cpu/chunk_kernel.h"

const struct chunk_kernels chunk_neon = {"neon", run, exp2_many};

#endif
