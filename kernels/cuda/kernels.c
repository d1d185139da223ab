#include "kernels/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/plan.h"

/* Those of chunk.cu; panel.cu's are plan.h's. */
enum chunk_kernel { CHUNK_BF16, CHUNK_F16, CHUNK_F32, CHUNK_SEQUENCES, CHUNK_KERNELS };

static const char *const chunk_names[CHUNK_KERNELS] = {"kdad_chunk_bf16", "kdad_chunk_f16", "kdad_chunk_f32",
                                                       "kdad_sequences"};

/* For all architectures, embedded by fatbin.S.in. */
extern const unsigned char kdad_chunk_fatbin[], kdad_panel_fatbin[];

struct cuda_kernels {
    const struct cuda_driver *driver;
    CUmodule chunk_module, panel_module;
    CUfunction chunk[CHUNK_KERNELS], panel[CUDA_KERNEL_COUNT];
    struct cuda_plan_device device;
    enum cuda_design design;
};

/* Grids of one dimension have room for this; chunk.cu's items beyond it are taken by blocks that go on. */
#define GRID_MAX INT64_C(0x7fffffff)

#define CHUNK_SHARED_MAX (size_t)(chunk_shared(128))

/* As in chunk.cu: strips, dkt, db, partial sums. */
static size_t chunk_shared(int64_t C) {
    size_t block = CUDA_BLOCK, tile = 16;
    return ((size_t)C * (2 * tile + block + 1) + block / 32 * tile) * sizeof(float);
}

static enum chunk_kernel chunk_kernel_of(enum dtype qk) {
    return qk == DTYPE_BF16 ? CHUNK_BF16 : qk == DTYPE_F16 ? CHUNK_F16 : CHUNK_F32;
}

static bool launch(const struct cuda_kernels *k, CUfunction function, CUstream stream, unsigned grid,
                   unsigned block, unsigned shared, void *arguments, char why[CUDA_WHY]) {
    void *parameters[] = {arguments};
    return cuda_ok(
        k->driver->LaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, parameters, NULL),
        "cuLaunchKernel", why);
}

/* --- loading ------------------------------------------------------------------------------------------- */

static bool load_function(const struct cuda_driver *driver, CUmodule module, const char *name, size_t shared,
                          CUfunction *function, char why[CUDA_WHY]) {
    return cuda_ok(driver->ModuleGetFunction(function, module, name), name, why) &&
           (shared == 0 ||
            cuda_ok(driver->FuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             (int)shared),
                    "cuFuncSetAttribute", why));
}

static bool load_modules(struct cuda_kernels *k, char why[CUDA_WHY]) {
    const struct cuda_driver *driver = k->driver;
    bool good =
        cuda_ok(driver->ModuleLoadData(&k->chunk_module, kdad_chunk_fatbin), "cuModuleLoadData", why) &&
        cuda_ok(driver->ModuleLoadData(&k->panel_module, kdad_panel_fatbin), "cuModuleLoadData", why);
    for (int i = 0; good && i < CHUNK_KERNELS; i++)
        good = load_function(driver, k->chunk_module, chunk_names[i],
                             i == CHUNK_SEQUENCES ? 0 : CHUNK_SHARED_MAX, &k->chunk[i], why);
    for (int i = 0; good && i < CUDA_KERNEL_COUNT; i++)
        good = load_function(driver, k->panel_module, cuda_kernel_name((enum cuda_kernel)i),
                             cuda_kernel_shared((enum cuda_kernel)i, &k->device), &k->panel[i], why);
    return good;
}

static bool describe_device(const struct cuda_driver *driver, struct cuda_plan_device *d,
                            char why[CUDA_WHY]) {
    CUdevice device;
    int major, minor, shared;
    if (!cuda_ok(driver->CtxGetDevice(&device), "cuCtxGetDevice", why))
        return false;
    struct {
        int *value;
        CUdevice_attribute attribute;
    } wanted[] = {
        {&d->sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
        {&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
        {&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (!cuda_ok(driver->DeviceGetAttribute(wanted[i].value, wanted[i].attribute, device),
                     "cuDeviceGetAttribute", why))
            return false;
    }
    d->cc = 10 * major + minor;
    d->shared = (unsigned)shared;
    return true;
}

/* A job of one row that is of no sequence and in place: every kernel of a type runs, and nothing changes. */
static bool warm_up_type(struct cuda_kernels *k, enum dtype qk, CUdeviceptr zeros, CUdeviceptr scratch,
                         char why[CUDA_WHY]) {
    struct problem p = {.B = 1,
                        .T = 1,
                        .H = 1,
                        .HV = 1,
                        .K = 16,
                        .C = 16,
                        .N = 0,
                        .qk_dtype = qk,
                        .beta_dtype = DTYPE_F32,
                        .cu_dtype = DTYPE_I64};
    struct cuda_sequences sequences = {.scratch = scratch};
    uint64_t address[OPERAND_COUNT];
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        problem_contiguous(&p, o, p.at[o].stride);
        address[o] = zeros;
    }
    for (enum cuda_design design = 0; design < CUDA_DESIGNS; design++) {
        k->design = design;
        if (!cuda_launch(k, NULL, &p, address, &sequences, why))
            return false;
    }
    return true;
}

static bool warm_up(struct cuda_kernels *k, char why[CUDA_WHY]) {
    enum { BYTES = 4096 };
    CUdeviceptr memory;
    if (!cuda_ok(k->driver->MemAlloc(&memory, BYTES), "cuMemAlloc", why))
        return false;
    bool good = cuda_ok(k->driver->MemsetD8Async(memory, 0, BYTES, NULL), "cuMemsetD8Async", why);
    for (enum dtype qk = DTYPE_BF16; good && qk <= DTYPE_F32; qk++)
        good = warm_up_type(k, qk, memory, memory + BYTES / 2, why);
    good = good && cuda_ok(k->driver->CtxSynchronize(), "cuCtxSynchronize", why);
    k->driver->MemFree(memory);
    return good;
}

struct cuda_kernels *cuda_kernels_load(const struct cuda_driver *driver, char why[CUDA_WHY]) {
    const char *design = getenv("KDAD_CUDA_DESIGN");
    struct cuda_kernels *k = calloc(1, sizeof *k);
    if (!k) {
        snprintf(why, CUDA_WHY, "out of memory");
        return NULL;
    }
    k->driver = driver;
    if (describe_device(driver, &k->device, why) && load_modules(k, why) && warm_up(k, why)) {
        k->design = design && strcmp(design, "chunk") == 0 ? CUDA_DESIGN_CHUNK : CUDA_DESIGN_BEST;
        return k;
    }
    cuda_kernels_unload(k);
    return NULL;
}

void cuda_kernels_unload(struct cuda_kernels *kernels) {
    if (!kernels)
        return;
    if (kernels->panel_module)
        kernels->driver->ModuleUnload(kernels->panel_module);
    if (kernels->chunk_module)
        kernels->driver->ModuleUnload(kernels->chunk_module);
    free(kernels);
}

void cuda_kernels_use(struct cuda_kernels *kernels, enum cuda_design design) {
    kernels->design = design;
}

/* --- launching ----------------------------------------------------------------------------------------- */

/* Enough for either design: which one it is depends on addresses too. */
uint64_t cuda_scratch_size(const struct problem *p) {
    if (p->N < 0)
        return 0;
    uint64_t words = CUDA_SEQUENCE_WORDS(p->N) * 8, panels = cuda_plan_scratch(p);
    return words > panels ? words : panels;
}

static bool plan_panels(const struct cuda_kernels *k, struct cuda_plan *plan, const struct problem *p,
                        const uint64_t address[OPERAND_COUNT], const struct cuda_sequences *sequences) {
    struct cuda_plan_memory memory = {sequences->scratch, sequences->verdict, sequences->status,
                                      sequences->bad_status};
    switch (k->design) {
    case CUDA_DESIGN_BEST:
        return cuda_plan_make(plan, p, address, &memory, &k->device);
    case CUDA_DESIGN_PANEL_ANY: {
        enum cuda_kernel kernel = CUDA_KERNEL_PANEL_BF16_ANY + (p->qk_dtype - DTYPE_BF16);
        return cuda_plan_make_with(plan, kernel, p, address, &memory, &k->device);
    }
    default:
        return false;
    }
}

static bool launch_panels(const struct cuda_kernels *k, CUstream stream, struct cuda_plan *plan,
                          char why[CUDA_WHY]) {
    for (int i = 0; i < plan->launches; i++) {
        const struct cuda_plan_launch *l = &plan->launch[i];
        if (!launch(k, k->panel[l->kernel], stream, l->grid, l->block, l->shared, &plan->params, why))
            return false;
    }
    return true;
}

static bool launch_chunks(const struct cuda_kernels *k, CUstream stream, const struct problem *p,
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
    if (p->N >= 0 && !launch(k, k->chunk[CHUNK_SEQUENCES], stream, 1, 1024, 0, &a, why))
        return false;
    unsigned grid = (unsigned)(a.items < GRID_MAX ? a.items : GRID_MAX);
    return launch(k, k->chunk[chunk_kernel_of(p->qk_dtype)], stream, grid, CUDA_BLOCK,
                  (unsigned)chunk_shared(p->C), &a, why);
}

bool cuda_launch(const struct cuda_kernels *kernels, CUstream stream, const struct problem *p,
                 const uint64_t address[OPERAND_COUNT], const struct cuda_sequences *sequences,
                 char why[CUDA_WHY]) {
    struct cuda_plan plan;
    return plan_panels(kernels, &plan, p, address, sequences)
               ? launch_panels(kernels, stream, &plan, why)
               : launch_chunks(kernels, stream, p, address, sequences, why);
}

const char *cuda_kernels_name(const struct cuda_kernels *kernels, const struct problem *p,
                              const uint64_t address[OPERAND_COUNT]) {
    struct cuda_plan plan;
    const struct cuda_sequences nowhere = {0};
    return plan_panels(kernels, &plan, p, address, &nowhere) && plan.launches > 0
               ? cuda_kernel_name(plan.launch[plan.launches - 1].kernel)
               : chunk_names[chunk_kernel_of(p->qk_dtype)];
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
