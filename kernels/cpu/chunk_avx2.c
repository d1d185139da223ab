/* chunk_avx2.c - the chunk kernel for AVX2, FMA and F16C. Compiled with -mavx2 -mfma -mf16c. */
#if defined(__x86_64__)

#include "kernels/cpu/chunk_kernel.h"

const struct chunk_kernels chunk_avx2 = {"avx2", run, exp2_many};

#endif
