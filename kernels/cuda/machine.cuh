/*
 * machine.cuh - what panel.cuh asks of the machine beyond C++: PTX of one instruction each, and types of 16
 * bits. tests/emulation has the same for a CPU.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace kda {

using bf16 = __nv_bfloat16;
using f16 = __half;

/* 2 ** x, exactly so for whole x, 0 below 2 ** -126. */
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float float_of(bf16 x) {
    return __uint_as_float((uint32_t)__bfloat16_as_ushort(x) << 16);
}
__device__ __forceinline__ float float_of(f16 x) {
    return __half2float(x);
}
__device__ __forceinline__ float float_of(float x) {
    return x;
}

/* Two elements side by side. */
template <typename T> struct packed { uint32_t bits; };
template <> struct packed<float> { float2 bits; };

__device__ __forceinline__ float2 unpack(packed<bf16> x) {
    return make_float2(__uint_as_float(x.bits << 16), __uint_as_float(x.bits & 0xffff0000u));
}
__device__ __forceinline__ float2 unpack(packed<f16> x) {
    return __half22float2(*(const __half2 *)&x.bits);
}
__device__ __forceinline__ float2 unpack(packed<float> x) {
    return x.bits;
}

/* The block's and the thread's number, read where this stands: not kept in a register. */
__device__ __forceinline__ int block_again() {
    int x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}
__device__ __forceinline__ int thread_again() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

__device__ __forceinline__ float *block_shared() {
    extern __shared__ __align__(128) float shared[];
    return shared;
}

/* base + row * stride, in bytes: one instruction. */
__device__ __forceinline__ uint64_t row_at(uint64_t base, int row, int stride) {
    uint64_t at;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(stride), "l"(base));
    return at;
}

/* 16 bytes into shared memory, or 16 bytes of 0: then nothing is read. */
__device__ __forceinline__ void copy16(float *to, uint64_t from, bool wanted) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "r"(wanted ? 16 : 0)
        : "memory");
}

/* Until the thread's own copies have arrived. */
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Into L2. */
__device__ __forceinline__ void ask(uint64_t at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* Volatile: what is read may lie where outputs are written. */
__device__ __forceinline__ float2 load2(uint64_t at) {
    float2 x;
    asm volatile("ld.global.L1::no_allocate.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(at));
    return x;
}
__device__ __forceinline__ float4 load4(uint64_t at) {
    float4 x;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(at));
    return x;
}

__device__ __forceinline__ void store2(uint64_t at, float2 x, bool wanted) {
    asm volatile("{ .reg .pred w; setp.ne.u32 w, %3, 0; @w st.global.cs.v2.f32 [%0], {%1, %2}; }" ::"l"(at),
                 "f"(x.x), "f"(x.y), "r"((uint32_t)wanted));
}

/* What the compiler may not move: memory accesses, and the computation of a value. */
__device__ __forceinline__ void finish_memory() {
    asm volatile("" ::: "memory");
}
__device__ __forceinline__ void finish(float2 &x) {
    asm volatile("" : "+f"(x.x), "+f"(x.y));
}

/* c += a * b of m16n8k8 in TF32: the low 13 bits of an operand are ignored. */
__device__ __forceinline__ void mma(float (&c)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

} // namespace kda
