/*
 * gpu.h - a GPU for tests: its memory, and the fixture's problems on it.
 *
 * A test program calls gpu_is_there first, and exits with 77 where there is none. CUDA is initialised in the
 * process of each test, never before check forks it.
 */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include "kernels/cuda/kernels.h"
#include "tests/unit/cpu_fixture.h"

enum { GPU_SKIPPED = 77 };

struct gpu {
    const struct cuda_driver *driver;
    CUcontext context;
    CUstream stream;
};

/* Asked in a child: this process stays free of CUDA. */
bool gpu_is_there(void);

/* The first device, its primary context current, and a stream. Fails the test if that cannot be had. */
const struct gpu *gpu_open(void);

CUdeviceptr gpu_alloc(size_t bytes);
void gpu_free(CUdeviceptr address);
void gpu_write(CUdeviceptr to, const void *from, size_t bytes); /* on the stream; waits */
/* How gpu_alloc and gpu_free do it. */
enum gpu_allocator {
    GPU_PLAIN,    /* cuMemAlloc */
    GPU_POOL,     /* cuMemAllocAsync */
    GPU_SEGMENTS, /* segments of 2 MiB, side by side, which can be exported */
};
void gpu_use_allocator(enum gpu_allocator allocator);
void gpu_read(void *to, CUdeviceptr from, size_t bytes); /* on the stream; waits */

/* A CUDA graph of what is put on the stream between begin and end. */
void gpu_graph_begin(void);
void gpu_graph_end(CUgraph *graph, CUgraphExec *exec);
void gpu_graph_launch(CUgraphExec exec);
void gpu_graph_free(CUgraph graph, CUgraphExec exec);

/* A fixture's memory on the GPU. */
struct gpu_fixture {
    struct fixture *host;
    CUdeviceptr memory[OPERAND_COUNT];
    uint64_t address[OPERAND_COUNT];
};

void gpu_fixture_open(struct gpu_fixture *g, struct fixture *f); /* copies all of it */
void gpu_fixture_close(struct gpu_fixture *g);                   /* copies it back */

/* For fixture_runner and fixture_variant: the kernels, launched in this process, in each of their designs. */
void gpu_run(struct fixture *f);
const char *gpu_variant(int variant);
struct cuda_kernels *gpu_kernels(void); /* those of gpu_run */

#define gpu_ok(call)                                                   \
    do {                                                               \
        char gpu_why[CUDA_WHY] = "";                                   \
        ck_assert_msg(cuda_ok((call), #call, gpu_why), "%s", gpu_why); \
    } while (0)

#endif
