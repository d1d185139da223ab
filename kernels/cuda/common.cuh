/*
 * common.cuh - what the kernels share: access to tensors, and where an item lies.
 */
#pragma once

#ifdef KDA_EMULATION
#include "tests/emulation/machine.h"
#else
#include "machine.cuh"
#endif
#include "kernels/cuda/params.h"

namespace kda {

/* Where nothing is added the incoming bits stay: those of -0 and of NaNs too. */
__device__ __forceinline__ float add(float incoming, float added) {
    return added == 0.0f ? incoming : incoming + added;
}

/* An item: where its rows lie. */
struct item {
    int64_t batch, start; /* first row of the panel, in its batch */
    int64_t hv, h;
    int rows; /* of the panel: 1 ... 64 */
    int kind;
};

__device__ __forceinline__ uint32_t divide(uint32_t n, const kda_divisor &d) {
    return d.multiplier ? __umulhi(n, d.multiplier) >> d.shift : n;
}

/* There are fewer than 2^31 items. */
__device__ __forceinline__ item find_item(const kda_params &p, int32_t index) {
    item it;
    const int64_t panel = divide((uint32_t)index, p.by_HV);
    it.hv = (uint32_t)index - (uint32_t)panel * (uint32_t)p.HV;
    it.h = divide((uint32_t)it.hv, p.by_group);
    if (p.cu) {
        const kda_panel *entry = (const kda_panel *)p.list + panel;
        const longlong2 e = __ldg((const longlong2 *)entry);
        it.batch = 0;
        it.start = e.x;
        it.rows = (int)(uint32_t)e.y;
        it.kind = (int)(e.y >> 32);
    } else {
        it.batch = divide((uint32_t)panel, p.by_panels);
        const int64_t within = panel - it.batch * p.panels;
        it.start = within * PANEL_ROWS;
        const int64_t left = p.T - it.start;
        it.rows = left < PANEL_ROWS ? (int)left : (int)PANEL_ROWS;
        it.kind = PANEL_COMPUTE;
    }
    return it;
}

/* Element 0 of the item's head in its first row, plus `rows` rows. */
__device__ __forceinline__ int64_t offset_of(const kda_tensor &x, const item &it, int64_t head,
                                             int64_t rows) {
    return it.batch * x.batch + (it.start + rows) * x.row + head * x.head;
}

__device__ __forceinline__ float load_float(uint64_t at, int64_t i, int dtype) {
    if (dtype == DTYPE_F32)
        return ((const float *)at)[i];
    if (dtype == DTYPE_BF16)
        return float_of(((const bf16 *)at)[i]);
    return float_of(((const f16 *)at)[i]);
}

/* Rows of no sequence: outputs get the incoming gradients, unless they are the same memory. */
__device__ __forceinline__ void copy_item(const kda_params &p, const item &it) {
#pragma unroll
    for (int x = 0; x < 4; x++) {
        if (p.in[x].at == p.out[x].at)
            continue;
        const float *from = (const float *)p.in[x].at + offset_of(p.in[x], it, it.hv, 0);
        float *to = (float *)p.out[x].at + offset_of(p.out[x], it, it.hv, 0);
        const int width = x == 2 ? 1 : p.K;
#pragma unroll 1
        for (int row = 0; row < it.rows; row++)
#pragma unroll 1
            for (int column = threadIdx.x; column < width; column += blockDim.x)
                to[row * p.out[x].row + column] = from[row * p.in[x].row + column];
    }
}

} // namespace kda
