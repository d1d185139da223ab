/* chunk_avx512.c - the chunk kernel for AVX-512F. Compiled with -mavx512f -mfma -mf16c. */
#if defined(__x86_64__)

#include "kernels/cpu/chunk_kernel.h"

const struct chunk_kernels chunk_avx512 = {"avx512", run, exp2_many};

#endif
