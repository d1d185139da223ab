/*
 * machine.cpp - coroutines for the threads of a block, and their meetings. See machine.h.
 */
#undef _FORTIFY_SOURCE /* its longjmp knows one stack alone */
#include "tests/emulation/machine.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <vector>

emulated_index threadIdx, blockIdx, blockDim;

namespace {

constexpr size_t STACK = 256 * 1024;

struct meeting {
    unsigned arrived;    /* threads */
    unsigned generation; /* meetings that are over */
};

/* A context begins a thread; from then on it goes on by longjmp, which asks nothing of the kernel. */
struct thread {
    ucontext_t context;
    jmp_buf place;
    char *stack;
    bool begun, done;
};

jmp_buf scheduler;
std::vector<thread> threads;
std::vector<meeting> warps;
meeting whole;
unsigned current;
std::vector<uint64_t> words[2]; /* what each thread brings to a meeting: even and odd ones */
std::vector<float> operands[2]; /* 6 of each thread */
std::vector<uint32_t> memory;
void (*body)(const void *);
const void *parameter;

void yield_thread() {
    if (_setjmp(threads[current].place) == 0)
        _longjmp(scheduler, 1);
}

void resume_thread() {
    thread &t = threads[current];
    if (_setjmp(scheduler) != 0)
        return;
    if (t.begun)
        _longjmp(t.place, 1);
    t.begun = true;
    setcontext(&t.context);
}

/* Waits until `count` threads have come; returns the meeting's parity. */
unsigned meet(meeting &m, unsigned count) {
    const unsigned generation = m.generation;
    if (++m.arrived == count) {
        m.arrived = 0;
        m.generation++;
        return generation & 1;
    }
    while (m.generation == generation)
        yield_thread();
    return generation & 1;
}

unsigned meet_warp() {
    return meet(warps[current / 32], 32);
}

unsigned bring(uint64_t word) {
    const unsigned parity = warps[current / 32].generation & 1;
    words[parity][current] = word;
    meet_warp();
    return parity;
}

void start() {
    body(parameter);
    threads[current].done = true;
    yield_thread();
}

} // namespace

void __syncthreads() {
    meet(whole, blockDim.x);
}
void __syncwarp() {
    meet_warp();
}
float __shfl_xor_sync(unsigned, float x, int lanes) {
    const unsigned parity = bring(__float_as_uint(x));
    return __uint_as_float((uint32_t)words[parity][current ^ (unsigned)lanes]);
}
int __shfl_sync(unsigned, int x, int lane) {
    const unsigned parity = bring((uint32_t)x);
    return (int)words[parity][current / 32 * 32 + (unsigned)lane];
}
bool __any_sync(unsigned, bool x) {
    const unsigned parity = bring(x);
    for (unsigned lane = 0; lane < 32; lane++)
        if (words[parity][current / 32 * 32 + lane])
            return true;
    return false;
}

int64_t __shfl_up_sync(unsigned, int64_t x, int lanes) {
    const unsigned parity = bring((uint64_t)x);
    return current % 32 < (unsigned)lanes ? x : (int64_t)words[parity][current - (unsigned)lanes];
}
int __syncthreads_or(int x) {
    static int any[2];
    const unsigned parity = whole.generation & 1;
    any[parity] |= x;
    __syncthreads();
    const int result = any[parity];
    any[!parity] = 0;
    return result;
}

namespace kda {

float *block_shared() {
    return (float *)((uintptr_t)(memory.data() + 31) & ~(uintptr_t)127);
}

void mma(float (&c)[4], const float (&a)[4], float b0, float b1) {
    const unsigned parity = warps[current / 32].generation & 1, first = current / 32 * 32;
    std::vector<float> &all = operands[parity];
    const float own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (int i = 0; i < 6; i++)
        all[current * 6 + (unsigned)i] = __uint_as_float(__float_as_uint(own[i]) & 0xffffe000u);
    meet_warp();
    const unsigned lane = current % 32, group = lane / 4, in_group = lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = i / 2, column = in_group * 2 + i % 2; /* row: group, or 8 + group */
        double sum = c[i];
        for (unsigned k = 0; k < 8; k++)
            sum += (double)all[(first + group * 4 + k % 4) * 6 + row + k / 4 * 2] *
                   (double)all[(first + column * 4 + k % 4) * 6 + 4 + k / 4];
        c[i] = (float)sum;
    }
}

} // namespace kda

void emulate(unsigned grid, unsigned block, size_t bytes, void (*kernel)(const void *),
             const void *argument) {
    body = kernel;
    parameter = argument;
    blockDim = {block, 1, 1};
    if (block % 32) {
        fprintf(stderr, "emulate: blocks are whole warps\n");
        abort();
    }
    threads.resize(block);
    for (thread &t : threads)
        t.stack = (char *)malloc(STACK);
    for (int i = 0; i < 2; i++) {
        words[i].assign(block, 0);
        operands[i].assign((size_t)block * 6, 0);
    }
    for (unsigned b = 0; b < grid; b++) {
        blockIdx = {b, 0, 0};
        memory.assign(bytes / 4 + 64, 0x7fffdead);
        warps.assign(block / 32, meeting{0, 0});
        whole = {0, 0};
        for (thread &t : threads) {
            getcontext(&t.context);
            t.context.uc_stack.ss_sp = t.stack;
            t.context.uc_stack.ss_size = STACK;
            t.context.uc_link = nullptr;
            t.begun = t.done = false;
            makecontext(&t.context, start, 0);
        }
        for (unsigned left = block, idle = 0; left > 0;) {
            const unsigned before = left;
            for (current = 0; current < block; current++) {
                if (threads[current].done)
                    continue;
                threadIdx = {current, 0, 0};
                resume_thread();
                left -= threads[current].done;
            }
            unsigned meetings = whole.generation;
            for (const meeting &m : warps)
                meetings += m.generation;
            static unsigned last;
            idle = before == left && meetings == last ? idle + 1 : 0;
            last = meetings;
            if (idle > 2) {
                fprintf(stderr, "emulate: block %u: threads wait for each other\n", b);
                abort();
            }
        }
    }
    for (thread &t : threads)
        free(t.stack);
    threads.clear();
}
