/*
 * machine.h - an emulation of a block of CUDA threads, as far as kernels/cuda/panel.cuh goes: the values it
 * computes can be tested where there is no GPU. It says nothing about speed, memory ordering or races: the
 * threads of a block run one after the other, from one meeting (a barrier, a shuffle, a vote, a product of
 * matrices) to the next.
 *
 * Each thread is a coroutine. A meeting of a warp ends when all its 32 threads have come to it.
 */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) longlong2 {
    long long x, y;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

struct emulated_index {
    unsigned x, y, z;
};
extern emulated_index threadIdx, blockIdx, blockDim;

inline int min(int a, int b) {
    return a < b ? a : b;
}
inline int64_t min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
    return (uint32_t)((uint64_t)a * b >> 32);
}
inline longlong2 __ldg(const longlong2 *at) {
    return *at;
}
inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

extern "C" {
uint16_t oracle_to_f16(float value); /* tests/oracle.h */
double oracle_from_f16(uint16_t half);
}

/* Meetings. */
void __syncthreads();
void __syncwarp();
float __shfl_xor_sync(unsigned mask, float x, int lanes);
int __shfl_sync(unsigned mask, int x, int lane);
bool __any_sync(unsigned mask, bool x);
int64_t __shfl_up_sync(unsigned mask, int64_t x, int lanes);
int __syncthreads_or(int x);

/* Of sequences.cuh alone; its blocks run one after the other. */
#define __shared__ static

namespace kda {

struct bf16 {
    uint16_t bits;
    bf16() = default;
    explicit bf16(float x) : bits((uint16_t)(__float_as_uint(x) >> 16)) {
    }
};
struct f16 {
    uint16_t bits;
    f16() = default;
    explicit f16(float x) : bits(oracle_to_f16(x)) {
    }
};

/* As ex2.approx.ftz: 0 below 2 ** -126. */
inline float exp2_fast(float x) {
    return x < -126 ? 0.0f : exp2f(x);
}

inline float float_of(bf16 x) {
    return __uint_as_float((uint32_t)x.bits << 16);
}
inline float float_of(f16 x) {
    return (float)oracle_from_f16(x.bits);
}
inline float float_of(float x) {
    return x;
}

template <typename T> struct packed { uint32_t bits; };
template <> struct packed<float> { float2 bits; };
template <typename T> inline float2 unpack(packed<T> x) {
    T two[2];
    memcpy(two, &x.bits, sizeof two);
    return {float_of(two[0]), float_of(two[1])};
}

inline int block_again() {
    return (int)blockIdx.x;
}
inline int thread_again() {
    return (int)threadIdx.x;
}
float *block_shared();

inline uint64_t row_at(uint64_t base, int row, int stride) {
    return base + (uint64_t)((int64_t)row * stride);
}
inline void copy16(float *to, uint64_t from, bool wanted) {
    if (wanted)
        memcpy(to, (const void *)from, 16);
    else
        memset(to, 0, 16);
}
inline void copies_wait() {
}
inline void ask(uint64_t) {
}
inline float2 load2(uint64_t at) {
    return *(const float2 *)at;
}
inline float4 load4(uint64_t at) {
    return *(const float4 *)at;
}
inline void store2(uint64_t at, float2 x, bool wanted) {
    if (wanted)
        *(float2 *)at = x;
}
inline void finish_memory() {
}
inline void finish(float2 &) {
}
void mma(float (&c)[4], const float (&a)[4], float b0, float b1);

} // namespace kda

/* Runs a kernel's blocks, one after the other, each with `bytes` of shared memory that hold NaNs first. */
void emulate(unsigned grid, unsigned block, size_t bytes, void (*kernel)(const void *), const void *argument);
