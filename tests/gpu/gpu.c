#ifdef HAVE_CUDA

#include "tests/gpu/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

bool gpu_is_there(void) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        char why[CUDA_WHY];
        bool there = cuda_driver(why) != NULL;
        if (!there)
            fprintf(stderr, "skipped: %s\n", why);
        _exit(there ? 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

const struct gpu *gpu_open(void) {
    static struct gpu gpu;
    char why[CUDA_WHY];
    CUdevice device;
    if (gpu.driver)
        return &gpu;
    const struct cuda_driver *driver = cuda_driver(why);
    ck_assert_msg(driver != NULL, "%s", why);
    gpu_ok(driver->DeviceGet(&device, 0));
    gpu_ok(driver->DevicePrimaryCtxRetain(&gpu.context, device));
    gpu_ok(driver->CtxSetCurrent(gpu.context));
    gpu_ok(driver->StreamCreateWithPriority(&gpu.stream, CU_STREAM_NON_BLOCKING, 0));
    gpu.driver = driver;
    return &gpu;
}

static enum gpu_allocator allocator;

/* What GPU_SEGMENTS has made. */
enum { RUNS = 64 };
static const size_t segment = (size_t)2 << 20;
static struct run {
    CUdeviceptr base;
    size_t segments;
} runs[RUNS];

void gpu_use_allocator(enum gpu_allocator which) {
    allocator = which;
}

/* Functions that kdad itself has no use for. */
static void *symbol(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
         *found = library ? dlsym(library, name) : NULL;
    ck_assert_msg(found != NULL, "%s", name);
    return found;
}

#define DRIVER_CALL(function, ...) gpu_ok(((__typeof__(function) *)symbol(TEXT_OF(function)))(__VA_ARGS__))
#define TEXT_OF(name) TEXT_OF_(name)
#define TEXT_OF_(name) #name

/* The bytes end at the end of the last segment, so that most operands lie across a border. */
static CUdeviceptr alloc_segments(size_t bytes) {
    const struct cuda_driver *driver = gpu_open()->driver;
    const CUmemAllocationProp kind = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
    };
    const CUmemAccessDesc access = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t count = bytes / segment + 2, padded = (bytes + 511) / 512 * 512;
    struct run *run = runs;
    while (run->base)
        ck_assert(++run < runs + RUNS);
    gpu_ok(driver->MemAddressReserve(&run->base, count * segment, 0, 0, 0));
    run->segments = count;
    for (size_t i = 0; i < count; i++) {
        CUmemGenericAllocationHandle handle;
        DRIVER_CALL(cuMemCreate, &handle, segment, &kind, 0);
        gpu_ok(driver->MemMap(run->base + i * segment, segment, 0, handle, 0));
        gpu_ok(driver->MemRelease(handle));
    }
    gpu_ok(driver->MemSetAccess(run->base, count * segment, &access, 1));
    return padded > segment ? run->base + count * segment - padded
                            : run->base + segment - padded / 2 / 512 * 512;
}

static void free_segments(CUdeviceptr address) {
    const struct cuda_driver *driver = gpu_open()->driver;
    struct run *run = runs;
    while (address - run->base >= run->segments * segment)
        ck_assert(++run < runs + RUNS);
    gpu_ok(driver->StreamSynchronize(gpu_open()->stream));
    for (size_t i = 0; i < run->segments; i++)
        gpu_ok(driver->MemUnmap(run->base + i * segment, segment));
    gpu_ok(driver->MemAddressFree(run->base, run->segments * segment));
    *run = (struct run){0};
}

CUdeviceptr gpu_alloc(size_t bytes) {
    const struct gpu *gpu = gpu_open();
    CUdeviceptr address;
    if (allocator == GPU_SEGMENTS)
        return alloc_segments(bytes);
    gpu_ok(allocator == GPU_POOL ? gpu->driver->MemAllocAsync(&address, bytes, gpu->stream)
                                 : gpu->driver->MemAlloc(&address, bytes));
    return address;
}

void gpu_free(CUdeviceptr address) {
    const struct gpu *gpu = gpu_open();
    if (allocator == GPU_SEGMENTS)
        free_segments(address);
    else
        gpu_ok(allocator == GPU_POOL ? gpu->driver->MemFreeAsync(address, gpu->stream)
                                     : gpu->driver->MemFree(address));
}

void gpu_write(CUdeviceptr to, const void *from, size_t bytes) {
    gpu_ok(gpu_open()->driver->MemcpyHtoDAsync(to, from, bytes, gpu_open()->stream));
    gpu_ok(gpu_open()->driver->StreamSynchronize(gpu_open()->stream));
}

void gpu_read(void *to, CUdeviceptr from, size_t bytes) {
    gpu_ok(gpu_open()->driver->MemcpyDtoHAsync(to, from, bytes, gpu_open()->stream));
    gpu_ok(gpu_open()->driver->StreamSynchronize(gpu_open()->stream));
}

/* --- graphs ------------------------------------------------------------------------------------------- */

void gpu_graph_begin(void) {
    DRIVER_CALL(cuStreamBeginCapture, gpu_open()->stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

void gpu_graph_end(CUgraph *graph, CUgraphExec *exec) {
    DRIVER_CALL(cuStreamEndCapture, gpu_open()->stream, graph);
    DRIVER_CALL(cuGraphInstantiateWithFlags, exec, *graph, 0);
}

void gpu_graph_launch(CUgraphExec exec) {
    DRIVER_CALL(cuGraphLaunch, exec, gpu_open()->stream);
}

void gpu_graph_free(CUgraph graph, CUgraphExec exec) {
    DRIVER_CALL(cuGraphExecDestroy, exec);
    DRIVER_CALL(cuGraphDestroy, graph);
}

/* --- fixtures ------------------------------------------------------------------------------------------ */

/* The operand whose memory an operand lies in: outputs in place have none of their own. */
static enum operand owner(const struct fixture *f, enum operand o) {
    return f->memory[o] ? o : (enum operand)(o - (OPERAND_DQ_OUT - OPERAND_DQ));
}

void gpu_fixture_open(struct gpu_fixture *g, struct fixture *f) {
    void *const *data = operands(f);
    *g = (struct gpu_fixture){.host = f};
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        if (!f->memory[o])
            continue;
        g->memory[o] = gpu_alloc(f->bytes[o] + 1);
        gpu_write(g->memory[o], f->memory[o], f->bytes[o]);
    }
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        enum operand in = owner(f, o);
        if (g->memory[in])
            g->address[o] = g->memory[in] + (uint64_t)((char *)data[o] - (char *)f->memory[in]);
    }
    if (f->p.N >= 0) {
        size_t bytes = problem_extent(&f->p, OPERAND_CU_SEQLENS);
        g->address[OPERAND_CU_SEQLENS] = g->memory[OPERAND_CU_SEQLENS] = gpu_alloc(bytes);
        gpu_write(g->memory[OPERAND_CU_SEQLENS], data[OPERAND_CU_SEQLENS], bytes);
    }
}

void gpu_fixture_close(struct gpu_fixture *g) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (!g->memory[o])
            continue;
        if (o != OPERAND_CU_SEQLENS)
            gpu_read(g->host->memory[o], g->memory[o], g->host->bytes[o]);
        gpu_free(g->memory[o]);
    }
}

struct cuda_kernels *gpu_kernels(void) {
    static struct cuda_kernels *kernels;
    char why[CUDA_WHY] = "";
    if (!kernels)
        kernels = cuda_kernels_load(gpu_open()->driver, why);
    ck_assert_msg(kernels != NULL, "%s", why);
    return kernels;
}

const char *gpu_variant(int variant) {
    static const char *const designs[CUDA_DESIGNS] = {
        [CUDA_DESIGN_BEST] = "best", [CUDA_DESIGN_PANEL_ANY] = "panel_any", [CUDA_DESIGN_CHUNK] = "chunk"};
    if (variant >= CUDA_DESIGNS)
        return NULL;
    cuda_kernels_use(gpu_kernels(), (enum cuda_design)variant);
    return designs[variant];
}

void gpu_run(struct fixture *f) {
    struct cuda_kernels *kernels = gpu_kernels();
    char why[CUDA_WHY] = "";
    int32_t verdict = -1;
    struct gpu_fixture g;
    const struct gpu *gpu = gpu_open();
    if (problem_is_empty(&f->p))
        return;
    gpu_fixture_open(&g, f);
    struct cuda_sequences sequences = {.verdict = gpu_alloc(4)};
    if (f->p.N >= 0)
        sequences.scratch = gpu_alloc(cuda_scratch_size(&f->p));
    ck_assert_msg(cuda_launch(kernels, gpu->stream, &f->p, g.address, &sequences, why), "%s", why);
    if (f->p.N >= 0) {
        gpu_read(&verdict, sequences.verdict, 4);
        ck_assert_int_eq(verdict, CUDA_VERDICT_OK);
        gpu_free(sequences.scratch);
    }
    gpu_free(sequences.verdict);
    gpu_fixture_close(&g);
}

#endif
