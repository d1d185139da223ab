/*
 * kernel_job.cuh - jobs on the device for kernel_test and kernel_bench: tensors with guards around them, made
 * of random numbers on the device; launches through plan.h as the daemon's; a float64 oracle.
 */
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "kernels/cuda/plan.h"

#define RT(call)                                                                              \
    do {                                                                                      \
        cudaError_t error_ = (call);                                                          \
        if (error_ != cudaSuccess) {                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)
#define DRV(call)                                                                    \
    do {                                                                             \
        CUresult error_ = (call);                                                    \
        if (error_ != CUDA_SUCCESS) {                                                \
            printf("%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, (int)error_); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

enum { GUARD = 1024 }; /* bytes before and behind each tensor */

/* --- the device ---------------------------------------------------------------------------------------- */

struct gpu {
    cuda_plan_device device;
    CUfunction function[CUDA_KERNEL_COUNT];
};

static gpu open_gpu(const char *image_path) {
    gpu g = {};
    RT(cudaFree(0));
    cudaDeviceProp prop;
    RT(cudaGetDeviceProperties(&prop, 0));
    g.device.sm_count = prop.multiProcessorCount;
    g.device.cc = prop.major * 10 + prop.minor;
    printf("%s, %d SMs\n", prop.name, prop.multiProcessorCount);
    FILE *f = fopen(image_path, "rb");
    if (!f) {
        printf("%s: cannot open\n", image_path);
        exit(1);
    }
    std::vector<char> image;
    char buffer[65536];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
        image.insert(image.end(), buffer, buffer + n);
    fclose(f);
    image.push_back(0);
    CUmodule module;
    DRV(cuModuleLoadData(&module, image.data()));
    for (int k = 0; k < CUDA_KERNEL_COUNT; k++) {
        if (cuModuleGetFunction(&g.function[k], module, cuda_kernel_name((cuda_kernel)k)) != CUDA_SUCCESS) {
            g.function[k] = NULL; /* a development build may lack some */
            continue;
        }
        int shared = (int)cuda_kernel_shared((cuda_kernel)k, g.device.cc);
        DRV(cuFuncSetAttribute(g.function[k], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared));
        int registers, local, blocks;
        DRV(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, g.function[k]));
        DRV(cuFuncGetAttribute(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, g.function[k]));
        DRV(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, g.function[k], 128, shared));
        printf("  %-20s %3d registers, %d bytes local, %d shared, %d blocks of 128\n",
               cuda_kernel_name((cuda_kernel)k), registers, local, shared, blocks);
    }
    return g;
}

static bool has_kernel(const gpu &g, const cuda_plan &plan) {
    for (int i = 0; i < plan.launches; i++)
        if (!g.function[plan.launch[i].kernel])
            return false;
    return true;
}

static void launch(const gpu &g, cuda_plan *plan) {
    for (int i = 0; i < plan->launches; i++) {
        void *arguments[] = {&plan->params};
        const cuda_plan_launch &l = plan->launch[i];
        DRV(cuLaunchKernel(g.function[l.kernel], l.grid, 1, 1, l.block, 1, 1, l.shared, 0, arguments, NULL));
    }
}

/* --- random numbers ------------------------------------------------------------------------------------ */

__device__ inline uint32_t hash(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    x ^= x >> 33;
    return (uint32_t)x;
}
__device__ inline float uniform(uint64_t i, uint32_t seed) {
    return (hash(i * 0x9E3779B97F4A7C15ULL + seed * 0x1234567ULL + 1) >> 8) * (1.0f / 16777216) + 1e-9f;
}
__device__ inline float normal(uint64_t i, uint32_t seed) {
    return sqrtf(-2 * logf(uniform(i, seed) + 1e-7f)) * cosf(6.2831853f * uniform(i, seed + 7777));
}

struct view {
    void *at;
    int dtype;
    int64_t shape[4], stride[4];
};

__device__ inline int64_t view_offset(const view &v, uint64_t i) {
    const int64_t d = i % v.shape[3], h = i / v.shape[3] % v.shape[2],
                  t = i / v.shape[3] / v.shape[2] % v.shape[1], b = i / v.shape[3] / v.shape[2] / v.shape[1];
    return b * v.stride[0] + t * v.stride[1] + h * v.stride[2] + d * v.stride[3];
}
__device__ inline void view_set(const view &v, int64_t o, float x) {
    if (v.dtype == DTYPE_F32)
        ((float *)v.at)[o] = x;
    else if (v.dtype == DTYPE_BF16)
        ((__nv_bfloat16 *)v.at)[o] = __float2bfloat16(x);
    else
        ((__half *)v.at)[o] = __float2half(x);
}
__device__ inline double view_get(const view &v, int64_t o) {
    return v.dtype == DTYPE_F32    ? ((float *)v.at)[o]
           : v.dtype == DTYPE_BF16 ? __bfloat162float(((__nv_bfloat16 *)v.at)[o])
                                   : __half2float(((__half *)v.at)[o]);
}

__global__ void fill_normal(view v, uint32_t seed, float scale, bool is_uniform) {
    const uint64_t n = v.shape[0] * v.shape[1] * v.shape[2] * v.shape[3];
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x)
        view_set(v, view_offset(v, i), is_uniform ? uniform(i, seed) : normal(i, seed) * scale);
}

/* A row's chunk: its first row and the row behind its last; first < 0: of no sequence. */
struct chunk_of_row {
    int64_t first, end;
};

__global__ void fill_gates(view v, const chunk_of_row *chunks, uint32_t seed, float strength, bool rising) {
    const uint64_t n = v.shape[0] * v.shape[1] * v.shape[2] * v.shape[3];
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const int64_t d = i % v.shape[3], h = i / v.shape[3] % v.shape[2],
                      t = i / v.shape[3] / v.shape[2] % v.shape[1],
                      b = i / v.shape[3] / v.shape[2] / v.shape[1];
        if (chunks[t].first >= 0 && chunks[t].first != t)
            continue;
        double sum = 0;
        const int64_t end = chunks[t].first < 0 ? t + 1 : chunks[t].end;
        for (int64_t r = t; r < end; r++) {
            const int64_t o = b * v.stride[0] + r * v.stride[1] + h * v.stride[2] + d * v.stride[3];
            const float x = normal(o, seed);
            float step = log1pf(expf(-x)) * 1.4427f * strength;
            if (rising && hash(o + seed) % 4 == 0)
                step = -1.5f * step;
            sum -= step;
            ((float *)v.at)[o] = (float)sum;
        }
    }
}

/* NaN above the diagonal, as it is never to be used. */
__global__ void fill_dA(view v, const chunk_of_row *chunks, uint32_t seed, float scale) {
    const uint64_t n = v.shape[0] * v.shape[1] * v.shape[2] * v.shape[3];
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const int64_t s = i % v.shape[3], t = i / v.shape[3] / v.shape[2] % v.shape[1];
        const bool above = chunks[t].first < 0 || s > t - chunks[t].first;
        view_set(v, view_offset(v, i), above ? __int_as_float(0x7fc00000) : normal(i, seed) * scale);
    }
}

/* --- the oracle ---------------------------------------------------------------------------------------- */

struct oracle_args {
    view x[OPERAND_COUNT];
    const chunk_of_row *chunks;
    double *dq, *dk, *db, *dg; /* what is added; contiguous */
    int64_t rows, HV, group, K;
};

/* A block has a row and a value head, a thread a column. */
__global__ void oracle(oracle_args a) {
    for (int64_t w = blockIdx.x; w < a.rows * a.HV; w += gridDim.x) {
        const int64_t hv = w % a.HV, bt = w / a.HV, T = a.x[OPERAND_G].shape[1], t = bt % T, b = bt / T,
                      h = hv / a.group;
        auto get = [&](int o, int64_t row, int64_t head, int64_t d) {
            const view &v = a.x[o];
            return view_get(v, b * v.stride[0] + row * v.stride[1] + head * v.stride[2] + d * v.stride[3]);
        };
        const int64_t first = a.chunks[t].first, end = a.chunks[t].end;
        double part = 0;
        for (int64_t d = threadIdx.x; d < a.K; d += blockDim.x) {
            double dqi = 0, dkw = 0, dkt = 0, all_dqi = 0, all_dkw = 0, all_dkt = 0;
            if (first >= 0) {
                const double g = get(OPERAND_G, t, hv, d);
                for (int64_t s = first; s <= t; s++) {
                    const double E = s == t ? 1 : exp2(g - get(OPERAND_G, s, hv, d));
                    const double k = get(OPERAND_K, s, h, d);
                    const double x = get(OPERAND_DAQK, t, hv, s - first) * k * E,
                                 y = get(OPERAND_DAKK, t, hv, s - first) * k * E;
                    all_dqi += x, all_dkw += y;
                    if (s < t)
                        dqi += x, dkw += y;
                }
                for (int64_t r = t; r < end; r++) {
                    const double E = r == t ? 1 : exp2(get(OPERAND_G, r, hv, d) - g);
                    const double x = (get(OPERAND_DAQK, r, hv, t - first) * get(OPERAND_Q, r, h, d) +
                                      get(OPERAND_DAKK, r, hv, t - first) * get(OPERAND_BETA, r, hv, 0) *
                                          get(OPERAND_K, r, h, d)) *
                                     E;
                    all_dkt += x;
                    if (r > t)
                        dkt += x;
                }
                const double beta = get(OPERAND_BETA, t, hv, 0), q = get(OPERAND_Q, t, h, d),
                             k = get(OPERAND_K, t, h, d);
                part += all_dkw * k;
                a.dq[w * a.K + d] = all_dqi;
                a.dk[w * a.K + d] = beta * all_dkw + all_dkt;
                a.dg[w * a.K + d] = q * dqi + (beta * dkw - dkt) * k;
            } else {
                a.dq[w * a.K + d] = a.dk[w * a.K + d] = a.dg[w * a.K + d] = 0;
            }
        }
        __shared__ double sums[256];
        sums[threadIdx.x] = part;
        __syncthreads();
        if (threadIdx.x == 0) {
            double sum = 0;
            for (int i = 0; i < (int)blockDim.x; i++)
                sum += sums[i];
            a.db[w] = sum;
        }
        __syncthreads();
    }
}

/* sums: squares of out - ref, of ref, of ref - incoming; counts: wrong finite or not finite; bits that differ
 * from ref (rounded to float) */
struct error_sums {
    double error, reference, added;
    unsigned long long bad, inexact;
};

__global__ void compare(view out, view in, const double *added, error_sums *sums) {
    const uint64_t n = out.shape[0] * out.shape[1] * out.shape[2] * out.shape[3];
    double e = 0, r = 0, a = 0;
    unsigned long long bad = 0, inexact = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        const float got = ((const float *)out.at)[view_offset(out, i)];
        const double incoming = ((const float *)in.at)[view_offset(in, i)], ref = incoming + added[i];
        if (isfinite(ref) && isfinite(got)) {
            e += (got - ref) * (got - ref);
            r += ref * ref;
            a += added[i] * added[i];
            inexact += got != (float)ref;
        } else {
            bad += isfinite(ref) || (isfinite(got) && fabs(ref) < 3e38);
        }
    }
    atomicAdd(&sums->error, e);
    atomicAdd(&sums->reference, r);
    atomicAdd(&sums->added, a);
    atomicAdd(&sums->bad, bad);
    atomicAdd(&sums->inexact, inexact);
}

__global__ void count_guards(const unsigned char *at, size_t n, unsigned long long *wrong) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        if (at[i] != 0xA5)
            atomicAdd(wrong, 1ull);
}

/* --- a job --------------------------------------------------------------------------------------------- */

struct shape {
    int64_t B, T, H, HV, K, C;
};

struct options {
    dtype qk = DTYPE_BF16, beta = DTYPE_F32, cu_type = DTYPE_I64;
    float strength = 1, incoming = 1;
    bool rising = false, in_place = false;
    int layout =
        0; /* 0: contiguous; 1: [B, HV, T, K]; 2: padded rows, odd element offsets; 3: padded, aligned */
    std::vector<int64_t> cu; /* empty: fixed length */
    uint32_t seed = 1;
};

struct job {
    struct problem problem;
    view x[OPERAND_COUNT];
    uint64_t addresses[OPERAND_COUNT];
    char *memory[OPERAND_COUNT]; /* with guards; NULL where another's */
    size_t bytes[OPERAND_COUNT];
    std::vector<chunk_of_row> chunks;
    chunk_of_row *device_chunks;
    char *scratch;
    int32_t *told; /* verdict, status */
    cuda_plan_memory words;
};

static void job_free(job *j) {
    for (int o = 0; o < OPERAND_COUNT; o++)
        RT(cudaFree(j->memory[o]));
    RT(cudaFree(j->device_chunks));
    RT(cudaFree(j->scratch));
    RT(cudaFree(j->told));
}

static view make_view(const struct problem &p, int o, void *at) {
    view v = {};
    int64_t s[4];
    int n = problem_shape(&p, (operand)o, s);
    v.at = at;
    v.dtype = problem_dtype(&p, (operand)o);
    for (int i = 0; i < 4; i++)
        v.shape[i] = i < n ? s[i] : 1;
    for (int i = 0; i < 3; i++)
        v.stride[i] = p.at[o].stride[i];
    v.stride[3] = 1;
    if (n == 3)
        v.stride[2] = 1;
    return v;
}

static job job_make(const shape &s, const options &opt) {
    job j = {};
    struct problem &p = j.problem;
    p.B = s.B, p.T = s.T, p.H = s.H, p.HV = s.HV, p.K = s.K, p.C = s.C;
    p.N = opt.cu.empty() ? -1 : (int64_t)opt.cu.size() - 1;
    p.qk_dtype = opt.qk, p.beta_dtype = opt.beta, p.cu_dtype = opt.cu_type;
    for (int o = 0; o < OPERAND_COUNT; o++) {
        if (!problem_has(&p, (operand)o))
            continue;
        const bool out = operand_is_output((operand)o);
        problem_contiguous(&p, (operand)o, p.at[o].stride);
        int64_t shape4[4], first = 0;
        const int rank = problem_shape(&p, (operand)o, shape4);
        int64_t *stride = p.at[o].stride;
        if (rank == 4 && opt.layout == 1) {
            stride[1] = shape4[3], stride[2] = shape4[1] * shape4[3], stride[0] = stride[2] * shape4[2];
        } else if (rank >= 3 && opt.layout >= 2) {
            const int pad = opt.layout == 2 ? 3 : 8;
            if (rank == 4)
                stride[2] = shape4[3] + pad;
            stride[1] = stride[2] * shape4[2] + pad;
            stride[0] = stride[1] * shape4[1] + pad;
            first = opt.layout == 2 ? 1 : 8;
        }
        if (out && opt.in_place) {
            memcpy(stride, p.at[o - 4].stride, sizeof p.at[o].stride);
            p.at[o] = p.at[o - 4];
            j.addresses[o] = j.addresses[o - 4];
            j.x[o] = j.x[o - 4];
            continue;
        }
        const size_t size = dtype_size(problem_dtype(&p, (operand)o));
        j.bytes[o] = problem_extent(&p, (operand)o) + (size_t)first * size;
        RT(cudaMalloc(&j.memory[o], j.bytes[o] + 2 * GUARD));
        RT(cudaMemset(j.memory[o], 0xA5, j.bytes[o] + 2 * GUARD));
        j.addresses[o] = (uint64_t)j.memory[o] + GUARD + (uint64_t)first * size;
        p.at[o].allocation = (uint64_t)j.memory[o];
        p.at[o].allocation_size = j.bytes[o] + 2 * GUARD;
        p.at[o].offset = GUARD + (uint64_t)first * size;
        j.x[o] = make_view(p, o, (void *)j.addresses[o]);
    }
    char why[PROBLEM_WHY];
    if (!problem_check(&p, why)) {
        printf("problem: %s\n", why);
        exit(1);
    }
    j.chunks.assign((size_t)s.T, chunk_of_row{-1, -1});
    std::vector<int64_t> cu = opt.cu;
    if (cu.empty())
        cu = {0, s.T};
    for (size_t i = 0; i + 1 < cu.size(); i++)
        for (int64_t t = cu[i]; t >= 0 && t < cu[i + 1] && t < s.T; t++) {
            const int64_t first = cu[i] + (t - cu[i]) / s.C * s.C;
            j.chunks[(size_t)t] = {first, first + s.C < cu[i + 1] ? first + s.C : cu[i + 1]};
        }
    RT(cudaMalloc(&j.device_chunks, (size_t)(s.T + 1) * sizeof(chunk_of_row)));
    RT(cudaMemcpy(j.device_chunks, j.chunks.data(), (size_t)s.T * sizeof(chunk_of_row),
                  cudaMemcpyHostToDevice));
    if (!opt.cu.empty()) {
        std::vector<int32_t> narrow(opt.cu.begin(), opt.cu.end());
        RT(cudaMemcpy((void *)j.addresses[OPERAND_CU_SEQLENS],
                      opt.cu_type == DTYPE_I64 ? (const void *)opt.cu.data() : (const void *)narrow.data(),
                      opt.cu.size() * (opt.cu_type == DTYPE_I64 ? 8 : 4), cudaMemcpyHostToDevice));
    }
    RT(cudaMalloc(&j.scratch, cuda_plan_scratch(&p) + 16));
    RT(cudaMalloc(&j.told, 8));
    RT(cudaMemset(j.told, 0xff, 8));
    j.words = {(uint64_t)j.scratch, (uint64_t)j.told, (uint64_t)(j.told + 1), 77};
    return j;
}

static void job_fill(job *j, const options &opt) {
    const uint32_t s = opt.seed * 100;
    const int G = 2048;
    fill_normal<<<G, 256>>>(j->x[OPERAND_Q], s + 1, 0.088f, false);
    fill_normal<<<G, 256>>>(j->x[OPERAND_K], s + 2, 0.088f, false);
    fill_gates<<<G, 256>>>(j->x[OPERAND_G], j->device_chunks, s + 3, opt.strength, opt.rising);
    fill_normal<<<G, 256>>>(j->x[OPERAND_BETA], s + 4, 1, true);
    fill_dA<<<G, 256>>>(j->x[OPERAND_DAQK], j->device_chunks, s + 5, 1);
    fill_dA<<<G, 256>>>(j->x[OPERAND_DAKK], j->device_chunks, s + 6, 1);
    for (int i = 0; i < 4; i++)
        fill_normal<<<G, 256>>>(j->x[OPERAND_DQ + i], s + 7 + i, opt.incoming, false);
    RT(cudaGetLastError());
    RT(cudaDeviceSynchronize());
}
