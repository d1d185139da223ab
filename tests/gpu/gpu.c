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

static bool from_pool;

void gpu_allocate_from_pool(bool yes) {
    from_pool = yes;
}

CUdeviceptr gpu_alloc(size_t bytes) {
    const struct gpu *gpu = gpu_open();
    CUdeviceptr address;
    gpu_ok(from_pool ? gpu->driver->MemAllocAsync(&address, bytes, gpu->stream)
                     : gpu->driver->MemAlloc(&address, bytes));
    return address;
}

void gpu_free(CUdeviceptr address) {
    const struct gpu *gpu = gpu_open();
    gpu_ok(from_pool ? gpu->driver->MemFreeAsync(address, gpu->stream) : gpu->driver->MemFree(address));
}

void gpu_write(CUdeviceptr to, const void *from, size_t bytes) {
    gpu_ok(gpu_open()->driver->MemcpyHtoDAsync(to, from, bytes, gpu_open()->stream));
    gpu_ok(gpu_open()->driver->StreamSynchronize(gpu_open()->stream));
}

void gpu_read(void *to, CUdeviceptr from, size_t bytes) {
    gpu_ok(gpu_open()->driver->MemcpyDtoHAsync(to, from, bytes, gpu_open()->stream));
    gpu_ok(gpu_open()->driver->StreamSynchronize(gpu_open()->stream));
}

/* --- graphs: functions that kdad itself has no use for ------------------------------------------------- */

static void *symbol(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
         *found = library ? dlsym(library, name) : NULL;
    ck_assert_msg(found != NULL, "%s", name);
    return found;
}

#define GRAPH_CALL(function, ...) gpu_ok(((__typeof__(function) *)symbol(TEXT_OF(function)))(__VA_ARGS__))
#define TEXT_OF(name) TEXT_OF_(name)
#define TEXT_OF_(name) #name

void gpu_graph_begin(void) {
    GRAPH_CALL(cuStreamBeginCapture, gpu_open()->stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

void gpu_graph_end(CUgraph *graph, CUgraphExec *exec) {
    GRAPH_CALL(cuStreamEndCapture, gpu_open()->stream, graph);
    GRAPH_CALL(cuGraphInstantiateWithFlags, exec, *graph, 0);
}

void gpu_graph_launch(CUgraphExec exec) {
    GRAPH_CALL(cuGraphLaunch, exec, gpu_open()->stream);
}

void gpu_graph_free(CUgraph graph, CUgraphExec exec) {
    GRAPH_CALL(cuGraphExecDestroy, exec);
    GRAPH_CALL(cuGraphDestroy, graph);
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
