#include "kernels/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum kernel { CHUNK_BF16, CHUNK_F16, CHUNK_F32, SEQUENCES, KERNELS };

static const char *const names[KERNELS] = {"kdad_chunk_bf16", "kdad_chunk_f16", "kdad_chunk_f32",
                                           "kdad_sequences"};

/* For all architectures, embedded by fatbin.S.in. */
extern const unsigned char kdad_chunk_fatbin[];

struct cuda_kernels {
    const struct cuda_driver *driver;
    CUmodule module;
    CUfunction function[KERNELS];
};

/* Grids of one dimension have room for this; items beyond it are taken by blocks that go on. */
#define GRID_MAX INT64_C(0x7fffffff)

#define SHARED_MAX (size_t)(cuda_shared(128))

/* As in chunk.cu: strips, dkt, db, partial sums. */
static size_t cuda_shared(int64_t C) {
    size_t block = CUDA_BLOCK, tile = 16;
    return ((size_t)C * (2 * tile + block + 1) + block / 32 * tile) * sizeof(float);
}

static bool launch(const struct cuda_kernels *k, enum kernel which, CUstream stream, int64_t blocks,
                   unsigned threads, size_t shared, void *arguments, char why[CUDA_WHY]) {
    void *parameters[] = {arguments};
    unsigned grid = (unsigned)(blocks < GRID_MAX ? blocks : GRID_MAX);
    return cuda_ok(k->driver->LaunchKernel(k->function[which], grid, 1, 1, threads, 1, 1, (unsigned)shared,
                                           stream, parameters, NULL),
                   "cuLaunchKernel", why);
}

/* Launches each kernel once with nothing to do. */
static bool warm_up(const struct cuda_kernels *k, char why[CUDA_WHY]) {
    struct cuda_arguments nothing = {.N = -1, .HV = 1, .H = 1, .C = 16};
    for (enum kernel i = CHUNK_BF16; i <= CHUNK_F32; i++) {
        if (!launch(k, i, NULL, 1, CUDA_BLOCK, cuda_shared(16), &nothing, why))
            return false;
    }
    return cuda_ok(k->driver->CtxSynchronize(), "cuCtxSynchronize", why);
}

struct cuda_kernels *cuda_kernels_load(const struct cuda_driver *driver, char why[CUDA_WHY]) {
    struct cuda_kernels *k = calloc(1, sizeof *k);
    if (!k) {
        snprintf(why, CUDA_WHY, "out of memory");
        return NULL;
    }
    k->driver = driver;
    bool good = cuda_ok(driver->ModuleLoadData(&k->module, kdad_chunk_fatbin), "cuModuleLoadData", why);
    for (enum kernel i = 0; good && i < KERNELS; i++)
        good = cuda_ok(driver->ModuleGetFunction(&k->function[i], k->module, names[i]), names[i], why);
    for (enum kernel i = CHUNK_BF16; good && i <= CHUNK_F32; i++)
        good = cuda_ok(driver->FuncSetAttribute(
                           k->function[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)SHARED_MAX),
                       "cuFuncSetAttribute", why);
    if (good && warm_up(k, why))
        return k;
    cuda_kernels_unload(k);
    return NULL;
}

void cuda_kernels_unload(struct cuda_kernels *kernels) {
    if (!kernels)
        return;
    if (kernels->module)
        kernels->driver->ModuleUnload(kernels->module);
    free(kernels);
}

uint64_t cuda_scratch_size(const struct problem *p) {
    return p->N < 0 ? 0 : CUDA_SEQUENCE_WORDS(p->N) * 8;
}

bool cuda_launch(const struct cuda_kernels *kernels, CUstream stream, const struct problem *p,
                 const uint64_t address[OPERAND_COUNT], const struct cuda_sequences *sequences,
                 char why[CUDA_WHY]) {
    struct cuda_arguments a = {
        .B = p->B,
        .T = p->T,
        .H = p->H,
        .HV = p->HV,
        .K = p->K,
        .C = p->C,
        .N = p->N,
        .beta_dtype = (int32_t)p->beta_dtype,
        .cu_dtype = (int32_t)p->cu_dtype,
        .sequences = sequences->scratch,
        .verdict = sequences->verdict,
        .status = sequences->status,
        .bad_status = sequences->bad_status,
    };
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        a.at[o] = address[o];
        for (int i = 0; i < 3; i++)
            a.stride[o][i] = p->at[o].stride[i];
    }
    /* problem_check has passed: db has B T HV elements of memory, so none of these overflows */
    int64_t chunks = (p->T + p->C - 1) / p->C;
    a.items = (p->N < 0 ? p->B * chunks : chunks + p->N + 1) * p->HV;
    if (p->N >= 0 && !launch(kernels, SEQUENCES, stream, 1, 1024, 0, &a, why))
        return false;
    enum kernel chunk = p->qk_dtype == DTYPE_BF16  ? CHUNK_BF16
                        : p->qk_dtype == DTYPE_F16 ? CHUNK_F16
                                                   : CHUNK_F32;
    return launch(kernels, chunk, stream, a.items, CUDA_BLOCK, cuda_shared(p->C), &a, why);
}

const char *cuda_verdict_sentence(int32_t verdict) {
    switch (verdict) {
    case CUDA_VERDICT_START:
        return "cu_seqlens: does not start at 0";
    case CUDA_VERDICT_FALLING:
        return "cu_seqlens: falls";
    case CUDA_VERDICT_END:
        return "cu_seqlens: ends beyond T";
    default:
        return "cu_seqlens: is bad";
    }
}
