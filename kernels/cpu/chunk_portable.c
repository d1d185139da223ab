/* chunk_portable.c - the chunk kernel for any processor: vectors of 4 floats, without fused operations. */
#define VEC_PORTABLE
#include "kernels/cpu/chunk_kernel.h"

const struct chunk_kernels chunk_portable = {"portable", run, exp2_many};
