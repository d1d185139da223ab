/*
 * guard.cu - what a trainer's stream runs behind the wait for a job: if the job did not finish, its outputs
 * become NaN, so that nobody takes them for results.
 *
 * Few blocks, since each reads two words over the bus; with nothing to do that is all they do.
 */
#include "kernels/cuda/arguments.h"

namespace {

__device__ void fill(const cuda_guard &p, operand o) {
    float *base = reinterpret_cast<float *>(p.at[o - OPERAND_DQ_OUT]);
    const int64_t *stride = p.stride[o - OPERAND_DQ_OUT];
    const bool narrow = o == OPERAND_DB_OUT;
    const int64_t width = narrow ? p.HV : p.HV * p.K, count = p.B * p.T * width;
    const float nan = __int_as_float(0x7fffffff);
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += int64_t(gridDim.x) * blockDim.x) {
        const int64_t row = i / width, in = i % width;
        const int64_t at = row / p.T * stride[0] + row % p.T * stride[1];
        base[at + (narrow ? in : in / p.K * stride[2] + in % p.K)] = nan;
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(256) kdad_guard(const __grid_constant__ cuda_guard p) {
    __shared__ bool lost;
    if (threadIdx.x == 0) {
        const uint64_t done = *reinterpret_cast<const volatile uint64_t *>(p.done);
        const int32_t status = *reinterpret_cast<const volatile int32_t *>(p.status);
        lost = done == p.lost || (status != 0 && status != p.harmless);
    }
    __syncthreads();
    if (!lost)
        return;
    for (int o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
        fill(p, operand(o));
}
