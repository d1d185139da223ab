#include "kernels/cuda/guard.h"

/* For all architectures, embedded by fatbin.S.in. */
extern const unsigned char kdad_guard_fatbin[];

enum { BLOCKS = 16, THREADS = 256 };

CUfunction cuda_guard_load(const struct cuda_driver *driver, char why[CUDA_WHY]) {
    CUmodule module;
    CUfunction guard;
    if (!cuda_ok(driver->ModuleLoadData(&module, kdad_guard_fatbin), "cuModuleLoadData", why))
        return NULL;
    if (cuda_ok(driver->ModuleGetFunction(&guard, module, "kdad_guard"), "cuModuleGetFunction", why))
        return guard;
    driver->ModuleUnload(module);
    return NULL;
}

bool cuda_guard_launch(const struct cuda_driver *driver, CUfunction guard, CUstream stream,
                       const struct problem *p, const uint64_t address[OPERAND_COUNT],
                       const struct cuda_told *told, char why[CUDA_WHY]) {
    struct cuda_guard g = {
        .done = told->done,
        .lost = told->lost,
        .status = told->status,
        .harmless = told->harmless,
        .B = p->B,
        .T = p->T,
        .HV = p->HV,
        .K = p->K,
    };
    void *parameters[] = {&g};
    for (int i = 0; i < 4; i++) {
        g.at[i] = address[OPERAND_DQ_OUT + i];
        for (int d = 0; d < 3; d++)
            g.stride[i][d] = p->at[OPERAND_DQ_OUT + i].stride[d];
    }
    return cuda_ok(driver->LaunchKernel(guard, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL),
                   "cuLaunchKernel", why);
}
