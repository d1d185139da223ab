/*
 * panels.cpp - see panels.h. The plan is that of a device with one SM: few items, or many.
 */
#define KDA_EMULATION
#include "tests/emulation/panels.h"

#include <stdlib.h>

#include "kernels/cuda/panel.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/sequences.cuh"

namespace {

template <typename T, bool VECTOR> void panel(const void *p) {
    kda::panel<T, VECTOR>(*(const kda_params *)p);
}
void sequences(const void *p) {
    kda::list_sequences(*(const kda_params *)p);
}

void (*const kernels[CUDA_KERNEL_COUNT])(const void *) = {
    sequences,           panel<kda::bf16, true>,  panel<kda::f16, true>,
    panel<float, true>,  panel<kda::bf16, false>, panel<kda::f16, false>,
    panel<float, false>,
};

} // namespace

bool panels_run(const struct problem *p, void *const data[OPERAND_COUNT], bool any) {
    const struct cuda_plan_device device = {1, 90, 227 * 1024};
    uint64_t addresses[OPERAND_COUNT];
    for (int o = 0; o < OPERAND_COUNT; o++)
        addresses[o] = (uint64_t)data[o];
    int32_t verdict = 0;
    struct cuda_plan_memory words = {};
    const size_t scratch = cuda_plan_scratch(p);
    words.scratch = (uint64_t)aligned_alloc(64, (scratch + 127) & ~(size_t)63);
    words.verdict = (uint64_t)&verdict;
    struct cuda_plan plan;
    const enum cuda_kernel kernel = (enum cuda_kernel)(
        (any ? CUDA_KERNEL_PANEL_BF16_ANY : CUDA_KERNEL_PANEL_BF16) + (p->qk_dtype - DTYPE_BF16));
    bool done = cuda_plan_make_with(&plan, kernel, p, addresses, &words, &device);
    if (done)
        for (int i = 0; i < plan.launches; i++)
            emulate(plan.launch[i].grid, plan.launch[i].block, plan.launch[i].shared,
                    kernels[plan.launch[i].kernel], &plan.params);
    free((void *)words.scratch);
    return done;
}
