/*
 * trainer.c - gpu-trainer: a trainer process for the tests of deaths and delays, which kill or stop it.
 *
 *   gpu-trainer busy|late|long
 *
 * busy submits jobs of some milliseconds for ever. late submits some behind a wait that never ends, so that
 * their inputs are never ready. long is as late, but in front of its jobs is a kernel that runs for a minute.
 * All print a line once jobs are under way, use the first GPU and KDAD_SOCKET,
 * and end only by a signal, or with 1 and a sentence when something fails.
 */
#ifdef HAVE_CUDA

#include "client/kdad.h"
#include "kernels/cuda/driver.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 4096, HEADS = 8, WIDTH = 128, CHUNK = 64, UNDER_WAY = 20 };

static const struct cuda_driver *driver;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "gpu-trainer: %s: %s\n", what, why);
    exit(1);
}

static void cuda(CUresult result, const char *call) {
    char why[CUDA_WHY];
    if (!cuda_ok(result, call, why))
        fail("CUDA", why);
}

static void kdad(kdad_status status, const char *call) {
    if (status != KDAD_OK)
        fail(call, kdad_error());
}

static CUstream open_device(void) {
    char why[CUDA_WHY];
    CUdevice device;
    CUcontext context;
    CUstream stream;
    driver = cuda_driver(why);
    if (!driver)
        fail("driver", why);
    cuda(driver->DeviceGet(&device, 0), "cuDeviceGet");
    cuda(driver->DevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda(driver->CtxSetCurrent(context), "cuCtxSetCurrent");
    cuda(driver->StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority");
    return stream;
}

/* Zeroed memory: the values do not matter here. */
static struct kdad_tensor tensor(CUstream stream, kdad_dtype dtype, size_t element, int64_t last) {
    const size_t bytes = (size_t)T * HEADS * (size_t)last * element;
    CUdeviceptr at;
    cuda(driver->MemAlloc(&at, bytes), "cuMemAlloc");
    cuda(driver->MemsetD8Async(at, 0, bytes, stream), "cuMemsetD8Async");
    void *data = (void *)(uintptr_t)at;
    return last == 1 ? kdad_tensor_3d(data, dtype, 1, T, HEADS)
                     : kdad_tensor_4d(data, dtype, 1, T, HEADS, last);
}

static void wait_for_ever(CUstream stream) {
    CUdeviceptr word;
    cuda(driver->MemAlloc(&word, sizeof(uint64_t)), "cuMemAlloc");
    cuda(driver->MemsetD8Async(word, 0, sizeof(uint64_t), stream), "cuMemsetD8Async");
    cuda(driver->StreamWaitValue64(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue64");
}

/* A kernel that is at work for a minute, by the GPU's clock of nanoseconds. */
static const char long_kernel[] = ".version 7.0\n"
                                  ".target sm_80\n"
                                  ".address_size 64\n"
                                  ".visible .entry turn() {\n"
                                  "  .reg .u64 %start, %now;\n"
                                  "  .reg .pred %early;\n"
                                  "  mov.u64 %start, %globaltimer;\n"
                                  "again:\n"
                                  "  mov.u64 %now, %globaltimer;\n"
                                  "  sub.u64 %now, %now, %start;\n"
                                  "  setp.lt.u64 %early, %now, 60000000000;\n"
                                  "  @%early bra again;\n"
                                  "  ret;\n"
                                  "}\n";

static void work_for_long(CUstream stream) {
    CUmodule module;
    CUfunction turn;
    cuda(driver->ModuleLoadData(&module, long_kernel), "cuModuleLoadData");
    cuda(driver->ModuleGetFunction(&turn, module, "turn"), "cuModuleGetFunction");
    cuda(driver->LaunchKernel(turn, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
}

int main(int argc, char **argv) {
    const char *mode = argc == 2 ? argv[1] : "";
    const bool busy = strcmp(mode, "busy") == 0, late = strcmp(mode, "late") == 0;
    if (!busy && !late && strcmp(mode, "long") != 0) {
        fputs("usage: gpu-trainer busy|late|long\n", stderr);
        return 2;
    }
    struct kdad_connection *connection;
    struct kdad_stream *stream;
    CUstream own = open_device();
    struct kdad_chunk_kda_bwd_intra_args args = {
        .chunk_size = CHUNK,
        .q = tensor(own, KDAD_BF16, 2, WIDTH),
        .k = tensor(own, KDAD_BF16, 2, WIDTH),
        .g = tensor(own, KDAD_F32, 4, WIDTH),
        .beta = tensor(own, KDAD_F32, 4, 1),
        .dAqk = tensor(own, KDAD_F32, 4, CHUNK),
        .dAkk = tensor(own, KDAD_F32, 4, CHUNK),
        .dq = tensor(own, KDAD_F32, 4, WIDTH),
        .dk = tensor(own, KDAD_F32, 4, WIDTH),
        .db = tensor(own, KDAD_F32, 4, 1),
        .dg = tensor(own, KDAD_F32, 4, WIDTH),
    };
    kdad(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &connection), "kdad_connect");
    kdad(kdad_cuda_stream_open(connection, own, &stream), "kdad_cuda_stream_open");
    if (late)
        wait_for_ever(own);
    else if (!busy)
        work_for_long(own);
    for (int i = 1; busy || i <= UNDER_WAY; i++) {
        kdad(kdad_chunk_kda_bwd_intra(stream, &args, NULL), "kdad_chunk_kda_bwd_intra");
        if (i == UNDER_WAY && write(STDOUT_FILENO, "under way\n", 10) != 10)
            return 1;
    }
    for (;;)
        pause();
}

#else
int main(void) {
    return 77; /* skipped: a build without CUDA */
}
#endif
