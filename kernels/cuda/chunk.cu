/*
 * chunk.cu - the KDA intra-chunk backward on a GPU, for every shape, type, stride and sequence layout.
 *
 * Mapping. A block does one item: a chunk of one value head. A thread owns a column d of a slab of CUDA_BLOCK
 * columns; slabs follow each other. So columns meet only in db, which is reduced over the block in a fixed
 * order: results are bit-equal from run to run, and no other block adds to anything.
 *
 * Inside an item, 16-row tiles I go from the last to the first. With E = exp2(g[r] - g[s]):
 *   - off the diagonal, rows s before the tile: E = exp2(g[r] - g[m]) exp2(g[m] - g[s]), m the tile's first
 * row. Both factors are ≤ 1 where g falls; one serves the row side (dqi, dkw) and the column side (dkt).
 *   - on the diagonal block, an exponential of the one-sided difference for each pair s < r.
 *   - s = r is left out of what dg uses, and added to dq', dk', db at the end.
 * Column sums dkt of rows s live in shared memory, thread-private; as tiles descend, dkt of a tile is final
 * when its turn comes, and the tile's rows are finished at once.
 *
 * Where g rises, one factor could be 0 and the other huge while E is neither: a factor above RISE_LIMIT is
 * replaced by 0, and its pairs are added one by one. The choice for a row r looks at rows m and r, for a row
 * s at rows s and m: never at a later one, so that a change in a later row changes no bit of dq' and db.
 *
 * Shared memory: the tile's strip of dAqk and dAkk, transposed (16 rows of one s lie together: four LDS.128
 * broadcasts a matrix), dkt [C][CUDA_BLOCK], and the sums of db.
 */
#include "kernels/cuda/arguments.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int TILE = 16;
constexpr int WARPS = CUDA_BLOCK / 32;
constexpr float RISE_LIMIT = 1.0f;

/* Where an item lies. */
struct place {
    int64_t b, hv, h; /* batch, value head, its query/key head */
    int64_t row;      /* first row */
    int rows;         /* 1 … C; 0: nothing to do */
    bool copy;        /* rows that are copied through */
};

__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Where nothing is added the incoming bits stay: those of -0 and of NaNs too. */
__device__ __forceinline__ float add(float incoming, float added) {
    return added == 0.0f ? incoming : incoming + added;
}

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}

__device__ __forceinline__ float load_beta(const cuda_arguments &p, const place &at, int64_t row) {
    const int64_t *stride = p.stride[OPERAND_BETA];
    const int64_t i = at.b * stride[0] + row * stride[1] + at.hv * stride[2];
    switch (p.beta_dtype) {
    case DTYPE_BF16:
        return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(p.at[OPERAND_BETA])[i]);
    case DTYPE_F16:
        return __half2float(reinterpret_cast<const __half *>(p.at[OPERAND_BETA])[i]);
    default:
        return reinterpret_cast<const float *>(p.at[OPERAND_BETA])[i];
    }
}

/* The first element of the item's first row of an operand, and its step from row to row. */
template <typename T> struct rows_of {
    T *base;
    int64_t step;
    __device__ rows_of(const cuda_arguments &p, operand o, const place &at) {
        const int64_t head = o <= OPERAND_K ? at.h : at.hv;
        base = reinterpret_cast<T *>(p.at[o]) + at.b * p.stride[o][0] + at.row * p.stride[o][1] +
               head * p.stride[o][2];
        step = p.stride[o][1];
    }
    __device__ __forceinline__ T &operator()(int64_t row, int64_t column) const {
        return base[row * step + column];
    }
};

/* --- items --------------------------------------------------------------------------------------------- */

/* A piece of the rows first … T - 1, C at a time. */
__device__ void place_piece(const cuda_arguments &p, int64_t piece, int64_t first, place &at) {
    at.row = first + piece * p.C;
    const int64_t left = p.T - at.row;
    at.rows = left <= 0 ? 0 : left < p.C ? int(left) : int(p.C);
}

/* The chunk with a number, over all sequences: bisection in the checked copy. */
__device__ void place_in_sequence(const cuda_arguments &p, int64_t chunk, place &at) {
    const int64_t *words = reinterpret_cast<const int64_t *>(p.sequences);
    const int64_t *cu = words + 1, *ends = words + p.N + 2;
    if (words[0] != CUDA_VERDICT_OK) {
        at.copy = true;
        place_piece(p, chunk, 0, at);
        return;
    }
    const int64_t chunks = p.N > 0 ? ends[p.N - 1] : 0;
    if (chunk >= chunks) {
        at.copy = true;
        place_piece(p, chunk - chunks, cu[p.N], at);
        return;
    }
    int64_t low = 0, high = p.N - 1; /* the first sequence whose end is beyond the chunk */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (ends[middle] > chunk)
            high = middle;
        else
            low = middle + 1;
    }
    const int64_t in_sequence = chunk - (low > 0 ? ends[low - 1] : 0);
    at.row = cu[low] + in_sequence * p.C;
    const int64_t left = cu[low + 1] - at.row;
    at.rows = left < p.C ? int(left) : int(p.C);
}

__device__ place find_place(const cuda_arguments &p, int64_t item) {
    place at = {};
    at.hv = item % p.HV;
    at.h = at.hv / (p.HV / p.H);
    int64_t chunk = item / p.HV;
    if (p.N >= 0) {
        place_in_sequence(p, chunk, at);
        return at;
    }
    const int64_t chunks = (p.T + p.C - 1) / p.C;
    at.b = chunk / chunks;
    place_piece(p, chunk % chunks, 0, at);
    return at;
}

__device__ void copy_rows(const cuda_arguments &p, const place &at) {
    for (int i = 0; i < 4; i++) {
        const operand in = operand(OPERAND_DQ + i), out = operand(OPERAND_DQ_OUT + i);
        if (p.at[in] == p.at[out])
            continue;
        const rows_of<const float> from(p, in, at);
        const rows_of<float> to(p, out, at);
        const int64_t width = in == OPERAND_DB ? 1 : p.K;
        for (int r = 0; r < at.rows; r++)
            for (int64_t d = threadIdx.x; d < width; d += CUDA_BLOCK)
                to(r, d) = from(r, d);
    }
}

/* --- the chunk ----------------------------------------------------------------------------------------- */

struct shared {
    float *strip[2]; /* dAqk, dAkk of the tile's rows: [s][16] */
    float *dkt;      /* [C][CUDA_BLOCK] */
    float *db;       /* [C] */
    float *partial;  /* [WARPS][16] */
};

__device__ shared carve(float *memory, int C) {
    shared x;
    x.strip[0] = memory;
    x.strip[1] = memory + C * TILE;
    x.dkt = memory + 2 * C * TILE;
    x.db = x.dkt + C * CUDA_BLOCK;
    x.partial = x.db + C;
    return x;
}

/* Rows first … first + 15 of both matrices, columns up to the diagonal block's end; zeros past the last row.
 */
__device__ void load_strip(const cuda_arguments &p, const place &at, const shared &x, int first) {
    const rows_of<const float> qk(p, OPERAND_DAQK, at), kk(p, OPERAND_DAKK, at);
    const int columns = first + TILE;
    for (int i = threadIdx.x; i < TILE * columns; i += CUDA_BLOCK) {
        const int r = i / columns, s = i % columns;
        const bool inside = first + r < at.rows;
        x.strip[0][s * TILE + r] = inside ? qk(first + r, s) : 0.0f;
        x.strip[1][s * TILE + r] = inside ? kk(first + r, s) : 0.0f;
    }
}

/* A column of a tile's rows, and its sums. */
struct column {
    float q[TILE], k[TILE], g[TILE], beta[TILE];
    float dqi[TILE], dkw[TILE], dkt[TILE];
};

/* Rows of all earlier tiles. */
template <typename T>
__device__ __forceinline__ void off_diagonal(column &c, const shared &x, const rows_of<const T> &k_rows,
                                             const rows_of<const float> &g_rows, int first, int64_t d) {
    float lower[TILE], q[TILE], bk[TILE];
    bool risen = false;
    const float middle = c.g[0];
#pragma unroll
    for (int r = 0; r < TILE; r++) {
        const float rise = c.g[r] - middle;
        const bool drop = rise > RISE_LIMIT;
        risen |= drop;
        lower[r] = drop ? 0.0f : fast_exp2(rise);
        q[r] = c.q[r] * lower[r];
        bk[r] = c.beta[r] * c.k[r] * lower[r];
        c.dqi[r] = c.dkw[r] = 0.0f;
    }
#pragma unroll 2
    for (int s = 0; s < first; s++) {
        const float rise = middle - g_rows(s, d);
        const bool drop = rise > RISE_LIMIT;
        risen |= drop;
        const float upper = drop ? 0.0f : fast_exp2(rise);
        const float k = to_float(k_rows(s, d)) * upper;
        float later = 0.0f;
#pragma unroll
        for (int i = 0; i < TILE; i += 4) {
            const float4 aqk = *reinterpret_cast<const float4 *>(x.strip[0] + s * TILE + i);
            const float4 akk = *reinterpret_cast<const float4 *>(x.strip[1] + s * TILE + i);
            const float a[4] = {aqk.x, aqk.y, aqk.z, aqk.w}, b[4] = {akk.x, akk.y, akk.z, akk.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                c.dqi[i + j] = fmaf(a[j], k, c.dqi[i + j]);
                c.dkw[i + j] = fmaf(b[j], k, c.dkw[i + j]);
                later = fmaf(a[j], q[i + j], later);
                later = fmaf(b[j], bk[i + j], later);
            }
        }
        x.dkt[s * CUDA_BLOCK + threadIdx.x] += later * upper;
    }
#pragma unroll
    for (int r = 0; r < TILE; r++) {
        c.dqi[r] *= lower[r];
        c.dkw[r] *= lower[r];
    }
    if (!risen)
        return;
    for (int s = 0; s < first; s++) {
        const float g = g_rows(s, d), k = to_float(k_rows(s, d));
        float later = 0.0f;
#pragma unroll
        for (int r = 0; r < TILE; r++) {
            if (middle - g > RISE_LIMIT || c.g[r] - middle > RISE_LIMIT) {
                const float a = x.strip[0][s * TILE + r], b = x.strip[1][s * TILE + r];
                const float e = fast_exp2(c.g[r] - g);
                c.dqi[r] = fmaf(a, k * e, c.dqi[r]);
                c.dkw[r] = fmaf(b, k * e, c.dkw[r]);
                later = fmaf(fmaf(a, c.q[r], b * c.beta[r] * c.k[r]), e, later);
            }
        }
        x.dkt[s * CUDA_BLOCK + threadIdx.x] += later;
    }
}

__device__ __forceinline__ void diagonal(column &c, const shared &x, int first) {
#pragma unroll
    for (int r = 0; r < TILE; r++)
        c.dkt[r] = 0.0f;
#pragma unroll
    for (int r = 1; r < TILE; r++) {
        const float bk = c.beta[r] * c.k[r];
#pragma unroll
        for (int s = 0; s < r; s++) {
            const float a = x.strip[0][(first + s) * TILE + r], b = x.strip[1][(first + s) * TILE + r];
            const float e = fast_exp2(c.g[r] - c.g[s]);
            const float ke = c.k[s] * e;
            c.dqi[r] = fmaf(a, ke, c.dqi[r]);
            c.dkw[r] = fmaf(b, ke, c.dkw[r]);
            c.dkt[s] = fmaf(fmaf(a, c.q[r], b * bk), e, c.dkt[s]);
        }
    }
}

/* Adds to the incoming gradients; s = r comes in here. Sums db of the tile's rows over the block's columns.
 */
__device__ __forceinline__ void finish_tile(const cuda_arguments &p, const place &at, column &c,
                                            const shared &x, int first, int64_t d, bool active) {
    const int count = min(TILE, at.rows - first);
    const rows_of<const float> dq(p, OPERAND_DQ, at), dk(p, OPERAND_DK, at), dg(p, OPERAND_DG, at);
    const rows_of<float> dq_out(p, OPERAND_DQ_OUT, at), dk_out(p, OPERAND_DK_OUT, at),
        dg_out(p, OPERAND_DG_OUT, at);
#pragma unroll
    for (int group = 0; group < TILE; group += 4) {
        float in[4][3];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t row =
                first + min(group + i, count - 1); /* loads before stores: in place is allowed */
            in[i][0] = active ? dq(row, d) : 0.0f;
            in[i][1] = active ? dk(row, d) : 0.0f;
            in[i][2] = active ? dg(row, d) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = group + i;
            const float a = x.strip[0][(first + r) * TILE + r], b = x.strip[1][(first + r) * TILE + r];
            const float q = c.q[r], k = c.k[r], beta = c.beta[r];
            const float dkt = c.dkt[r] + x.dkt[(first + min(r, count - 1)) * CUDA_BLOCK + threadIdx.x];
            const float dkw = fmaf(b, k, c.dkw[r]);
            const float dg_added = fmaf(q, c.dqi[r], (beta * c.dkw[r] - dkt) * k);
            if (active && r < count) {
                dq_out(first + r, d) = add(in[i][0], fmaf(a, k, c.dqi[r]));
                dk_out(first + r, d) = add(in[i][1], beta * dkw + (dkt + fmaf(a, q, b * beta * k)));
                dg_out(first + r, d) = add(in[i][2], dg_added);
            }
            c.dkw[r] = active ? dkw * k : 0.0f; /* now the column's part of db */
        }
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < TILE; r++) {
        float sum = c.dkw[r];
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, offset);
        if (lane == 0)
            x.partial[warp * TILE + r] = sum;
    }
}

template <typename T>
__device__ __forceinline__ void do_slab(const cuda_arguments &p, const place &at, const shared &x,
                                        int64_t d0) {
    const bool active = d0 + threadIdx.x < p.K;
    const int64_t d =
        active ? d0 + threadIdx.x : p.K - 1; /* a padding column reads a real one, counts as 0 */
    const rows_of<const T> q_rows(p, OPERAND_Q, at), k_rows(p, OPERAND_K, at);
    const rows_of<const float> g_rows(p, OPERAND_G, at);
    for (int s = 0; s < at.rows; s++)
        x.dkt[s * CUDA_BLOCK + threadIdx.x] = 0.0f;
    for (int first = (at.rows - 1) / TILE * TILE; first >= 0; first -= TILE) {
        column c;
        __syncthreads(); /* the strip and the partial sums of the tile before are read */
        load_strip(p, at, x, first);
#pragma unroll
        for (int r = 0; r < TILE; r++) {
            const bool inside = first + r < at.rows;
            const int64_t row = inside ? first + r : at.rows - 1; /* past the end: a finite g, all else 0 */
            c.g[r] = g_rows(row, d);
            c.q[r] = inside ? to_float(q_rows(row, d)) : 0.0f;
            c.k[r] = inside ? to_float(k_rows(row, d)) : 0.0f;
            c.beta[r] = inside ? load_beta(p, at, at.row + row) : 0.0f;
        }
        __syncthreads();
        off_diagonal<T>(c, x, k_rows, g_rows, first, d);
        diagonal(c, x, first);
        finish_tile(p, at, c, x, first, d, active);
        __syncthreads();
        if (threadIdx.x < TILE && first + threadIdx.x < at.rows) {
            float sum = 0.0f;
            for (int w = 0; w < WARPS; w++)
                sum += x.partial[w * TILE + threadIdx.x];
            x.db[first + threadIdx.x] = d0 == 0 ? sum : x.db[first + threadIdx.x] + sum;
        }
    }
}

template <typename T> __device__ __forceinline__ void do_items(const cuda_arguments &p, float *memory) {
    const shared x = carve(memory, int(p.C));
    for (int64_t item = blockIdx.x; item < p.items; item += gridDim.x) {
        const place at = find_place(p, item);
        if (at.rows == 0)
            continue;
        if (at.copy) {
            copy_rows(p, at);
            continue;
        }
        for (int64_t d0 = 0; d0 < p.K; d0 += CUDA_BLOCK)
            do_slab<T>(p, at, x, d0);
        __syncthreads();
        const rows_of<const float> db(p, OPERAND_DB, at);
        const rows_of<float> db_out(p, OPERAND_DB_OUT, at);
        for (int r = threadIdx.x; r < at.rows; r += CUDA_BLOCK)
            db_out(r, 0) = add(db(r, 0), x.db[r]);
        __syncthreads();
    }
}

extern __shared__ float4 dynamic_memory[];

} // namespace

extern "C" {

__global__ void __launch_bounds__(CUDA_BLOCK, 3) kdad_chunk_bf16(const __grid_constant__ cuda_arguments p) {
    do_items<__nv_bfloat16>(p, reinterpret_cast<float *>(dynamic_memory));
}

__global__ void __launch_bounds__(CUDA_BLOCK, 3) kdad_chunk_f16(const __grid_constant__ cuda_arguments p) {
    do_items<__half>(p, reinterpret_cast<float *>(dynamic_memory));
}

__global__ void __launch_bounds__(CUDA_BLOCK, 3) kdad_chunk_f32(const __grid_constant__ cuda_arguments p) {
    do_items<float>(p, reinterpret_cast<float *>(dynamic_memory));
}

/* One block: copies cu_seqlens, checks the copy, and counts chunks. What is copied is what the chunk kernel
 * uses, whatever becomes of the original. */
__global__ void __launch_bounds__(1024) kdad_sequences(const __grid_constant__ cuda_arguments p) {
    __shared__ int64_t sums[1024];
    __shared__ int verdict;
    int64_t *words = reinterpret_cast<int64_t *>(p.sequences);
    int64_t *cu = words + 1, *ends = words + p.N + 2;
    if (threadIdx.x == 0)
        verdict = CUDA_VERDICT_OK;
    for (int64_t i = threadIdx.x; i <= p.N; i += blockDim.x)
        cu[i] = p.cu_dtype == DTYPE_I64
                    ? reinterpret_cast<const volatile int64_t *>(p.at[OPERAND_CU_SEQLENS])[i]
                    : reinterpret_cast<const volatile int32_t *>(p.at[OPERAND_CU_SEQLENS])[i];
    __syncthreads();
    if (threadIdx.x == 0 && cu[0] != 0)
        verdict = CUDA_VERDICT_START;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < p.N; i += blockDim.x) {
        if (cu[i + 1] < cu[i])
            atomicCAS(&verdict, CUDA_VERDICT_OK, CUDA_VERDICT_FALLING);
    }
    __syncthreads();
    if (threadIdx.x == 0 && verdict == CUDA_VERDICT_OK && cu[p.N] > p.T)
        verdict = CUDA_VERDICT_END;
    __syncthreads();
    /* each thread counts the chunks of a stretch, then adds those of the stretches before */
    const int64_t stretch = (p.N + blockDim.x - 1) / blockDim.x;
    const int64_t first = min(p.N, int64_t(threadIdx.x) * stretch), last = min(p.N, first + stretch);
    int64_t count = 0;
    if (verdict == CUDA_VERDICT_OK) {
        for (int64_t i = first; i < last; i++)
            ends[i] = count += (cu[i + 1] - cu[i] + p.C - 1) / p.C;
    }
    sums[threadIdx.x] = count;
    __syncthreads();
    for (int offset = 1; offset < blockDim.x; offset *= 2) {
        const int64_t before = threadIdx.x >= offset ? sums[threadIdx.x - offset] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    if (verdict == CUDA_VERDICT_OK && threadIdx.x > 0) {
        for (int64_t i = first; i < last; i++)
            ends[i] += sums[threadIdx.x - 1];
    }
    if (threadIdx.x == 0) {
        words[0] = verdict;
        if (p.verdict)
            *reinterpret_cast<volatile int32_t *>(p.verdict) = verdict;
        if (p.status && verdict != CUDA_VERDICT_OK)
            *reinterpret_cast<volatile int32_t *>(p.status) = p.bad_status;
    }
}
}
