/*
 * sequences.cuh - the small first kernel of a job with cu_seqlens.
 *
 * One block. Reads each value of cu_seqlens once, into a snapshot, and checks the snapshot: whoever changes
 * cu_seqlens meanwhile changes nothing. Then it numbers the sequences' panels (first: a prefix sum) and
 * writes the list of panels. The rows behind the last sequence are listed as panels to copy; where the
 * snapshot is bad, all rows are.
 */
#pragma once

#include "common.cuh"

namespace kda {

constexpr int SEQUENCES_THREADS = 1024;

__device__ __forceinline__ int64_t panels_of(int64_t rows) {
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

__device__ void list_sequences(const kda_params &p) {
    __shared__ int64_t sums[32];
    __shared__ int64_t carry;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    int64_t *snapshot = (int64_t *)p.snapshot, *first = (int64_t *)p.first;
    kda_panel *list = (kda_panel *)p.list;

    for (int64_t i = tid; i <= p.N; i += SEQUENCES_THREADS)
        snapshot[i] = p.cu_dtype == DTYPE_I32 ? (int64_t)((const volatile int32_t *)p.cu)[i]
                                              : (int64_t)((const volatile int64_t *)p.cu)[i];
    __syncthreads();
    int falls = 0;
    for (int64_t i = tid; i < p.N; i += SEQUENCES_THREADS)
        falls |= snapshot[i + 1] < snapshot[i];
    falls = __syncthreads_or(falls);
    const int verdict = snapshot[0] != 0      ? CUDA_VERDICT_START
                        : falls               ? CUDA_VERDICT_FALLING
                        : snapshot[p.N] > p.T ? CUDA_VERDICT_END
                                              : CUDA_VERDICT_OK;
    const bool wrong = verdict != CUDA_VERDICT_OK;
    if (tid == 0) {
        if (p.verdict)
            *(volatile int32_t *)p.verdict = verdict;
        if (p.status && wrong)
            *(volatile int32_t *)p.status = p.bad_status;
        carry = 0;
    }
    __syncthreads();

    /* first[i]: panels before sequence i; the rows behind the last are sequence N */
    if (!wrong) {
        for (int64_t base = 0; base < p.N; base += SEQUENCES_THREADS) {
            const int64_t i = base + tid;
            int64_t x = i < p.N ? panels_of(snapshot[i + 1] - snapshot[i]) : 0;
            const int64_t own = x;
            for (int d = 1; d < 32; d *= 2) {
                const int64_t y = __shfl_up_sync(~0u, x, d);
                if (lane >= d)
                    x += y;
            }
            if (lane == 31)
                sums[warp] = x;
            __syncthreads();
            if (warp == 0) {
                int64_t s = sums[lane];
                for (int d = 1; d < 32; d *= 2) {
                    const int64_t y = __shfl_up_sync(~0u, s, d);
                    if (lane >= d)
                        s += y;
                }
                sums[lane] = s;
            }
            __syncthreads();
            const int64_t before = carry + (warp ? sums[warp - 1] : 0) + x - own;
            if (i < p.N)
                first[i] = before;
            __syncthreads();
            if (tid == SEQUENCES_THREADS - 1)
                carry = before + own;
            __syncthreads();
        }
    }
    const int64_t sequences = wrong ? 0 : p.N, tail = wrong ? 0 : snapshot[p.N], listed = carry;
    for (int64_t j = tid; j < p.panels; j += SEQUENCES_THREADS) {
        kda_panel e = {0, 0, PANEL_NONE};
        int64_t end = p.T;
        if (j >= listed) {
            e.start = tail + (j - listed) * PANEL_ROWS;
            if (e.start < p.T)
                e.kind = PANEL_COPY;
        } else {
            int64_t low = 0, high = sequences - 1; /* the last sequence with first[i] <= j */
            while (low < high) {
                const int64_t middle = (low + high + 1) / 2;
                if (first[middle] <= j)
                    low = middle;
                else
                    high = middle - 1;
            }
            const int64_t within = j - first[low];
            e.start = snapshot[low] + within * PANEL_ROWS;
            e.kind = PANEL_COMPUTE;
            end = snapshot[low + 1];
        }
        if (e.kind != PANEL_NONE)
            e.rows = end - e.start < PANEL_ROWS ? (int32_t)(end - e.start) : (int32_t)PANEL_ROWS;
        list[j] = e;
    }
}

} // namespace kda
