#include "client/kdactl/bench_device.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CUDA

#include "kernels/cuda/driver.h"

_Static_assert((int)BENCH_WHY == (int)CUDA_WHY, "one sentence fits the other");

struct bench_gpu {
    const struct cuda_driver *driver;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction touch;
    CUevent marks[2];
    unsigned marked;
    uint64_t *gate; /* a pinned word that hold waits for, and its address on the GPU */
    CUdeviceptr gate_address;
};

/* Compiled by the driver for whatever GPU there is. */
static const char touch_ptx[] = ".version 7.0\n"
                                ".target sm_70\n"
                                ".address_size 64\n"
                                ".visible .entry touch(.param .u64 touch_word)\n"
                                "{\n"
                                "    .reg .b64 %rd<3>;\n"
                                "    .reg .b32 %r<2>;\n"
                                "    ld.param.u64 %rd1, [touch_word];\n"
                                "    cvta.to.global.u64 %rd2, %rd1;\n"
                                "    ld.volatile.global.u32 %r1, [%rd2];\n"
                                "    st.volatile.global.u32 [%rd2], %r1;\n"
                                "    ret;\n"
                                "}\n";

#define TRY(gpu, call, ...) cuda_ok((gpu)->driver->call(__VA_ARGS__), "cu" #call, why)

/* The GPU of that name among those that this process sees. */
static bool find_gpu(const struct bench_gpu *g, const char *name, CUdevice *found, char why[BENCH_WHY]) {
    int count;
    if (!TRY(g, DeviceGetCount, &count))
        return false;
    for (int i = 0; i < count; i++) {
        char uuid[CUDA_UUID_TEXT];
        if (!TRY(g, DeviceGet, found, i) || !cuda_uuid(*found, uuid, why))
            return false;
        if (strcmp(uuid, name) == 0)
            return true;
    }
    snprintf(why, BENCH_WHY, "the daemon's GPU %s is none of the %d that this process sees", name, count);
    return false;
}

static bool open_gpu(struct bench_device *device, const char *name, char why[BENCH_WHY]) {
    CUdevice number;
    struct bench_gpu *g = calloc(1, sizeof *g);
    if (!g) {
        snprintf(why, BENCH_WHY, "out of memory");
        return false;
    }
    device->gpu = g;
    g->driver = cuda_driver(why);
    return g->driver && find_gpu(g, name, &number, why) &&
           TRY(g, DevicePrimaryCtxRetain, &g->context, number) && TRY(g, CtxSetCurrent, g->context) &&
           TRY(g, StreamCreateWithPriority, &g->stream, CU_STREAM_NON_BLOCKING, 0) &&
           TRY(g, ModuleLoadData, &g->module, touch_ptx) &&
           TRY(g, ModuleGetFunction, &g->touch, g->module, "touch") &&
           TRY(g, EventCreate, &g->marks[0], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC) &&
           TRY(g, EventCreate, &g->marks[1], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC) &&
           TRY(g, MemAllocHost, (void **)&g->gate, sizeof *g->gate) &&
           TRY(g, MemHostGetDevicePointer, &g->gate_address, g->gate, 0);
}

static void *alloc_gpu(const struct bench_gpu *g, size_t bytes, char why[BENCH_WHY]) {
    CUdeviceptr address = 0;
    return TRY(g, MemAlloc, &address, bytes) ? (void *)(uintptr_t)address : NULL;
}

static void free_gpu(const struct bench_gpu *g, void *memory) {
    g->driver->MemFree((CUdeviceptr)(uintptr_t)memory);
}

static void *stream_of(const struct bench_gpu *g) {
    return g->stream;
}

static bool write_gpu(const struct bench_gpu *g, void *to, const void *from, size_t bytes,
                      char why[BENCH_WHY]) {
    return TRY(g, MemcpyHtoDAsync, (CUdeviceptr)(uintptr_t)to, from, bytes, g->stream) &&
           TRY(g, StreamSynchronize, g->stream);
}

bool bench_device_touch(const struct bench_device *device, void *at, char why[BENCH_WHY]) {
    const struct bench_gpu *g = device->gpu;
    uint64_t address = (uintptr_t)at;
    void *parameters[] = {&address};
    return TRY(g, LaunchKernel, g->touch, 1, 1, 1, 1, 1, 1, 0, g->stream, parameters, NULL);
}

bool bench_device_finish(const struct bench_device *device, char why[BENCH_WHY]) {
    const struct bench_gpu *g = device->gpu;
    return TRY(g, StreamSynchronize, g->stream);
}

bool bench_device_mark(const struct bench_device *device, char why[BENCH_WHY]) {
    struct bench_gpu *g = device->gpu;
    const unsigned n = g->marked++;
    return TRY(g, EventRecord, g->marks[n % 2], g->stream) &&
           (n == 0 || TRY(g, EventSynchronize, g->marks[(n - 1) % 2]));
}

bool bench_device_hold(const struct bench_device *device, char why[BENCH_WHY]) {
    const struct bench_gpu *g = device->gpu;
    __atomic_store_n(g->gate, 0, __ATOMIC_SEQ_CST);
    return TRY(g, StreamWaitValue64, g->stream, g->gate_address, 1, CU_STREAM_WAIT_VALUE_GEQ);
}

bool bench_device_release(const struct bench_device *device, char why[BENCH_WHY]) {
    const struct bench_gpu *g = device->gpu;
    __atomic_store_n(g->gate, 1, __ATOMIC_SEQ_CST);
    return bench_device_finish(device, why);
}

#else

static bool open_gpu(struct bench_device *device, const char *name, char why[BENCH_WHY]) {
    (void)device;
    snprintf(why, BENCH_WHY, "%s: this kdactl is built without CUDA", name);
    return false;
}

/* Nothing of the rest is called where no GPU can be opened. */
static void *alloc_gpu(const struct bench_gpu *g, size_t bytes, char why[BENCH_WHY]) {
    (void)g, (void)bytes, (void)why;
    return NULL;
}

static void free_gpu(const struct bench_gpu *g, void *memory) {
    (void)g, (void)memory;
}

static void *stream_of(const struct bench_gpu *g) {
    (void)g;
    return NULL;
}

static bool write_gpu(const struct bench_gpu *g, void *to, const void *from, size_t bytes,
                      char why[BENCH_WHY]) {
    (void)g, (void)to, (void)from, (void)bytes, (void)why;
    return false;
}

bool bench_device_touch(const struct bench_device *device, void *at, char why[BENCH_WHY]) {
    (void)device, (void)at, (void)why;
    return false;
}

bool bench_device_finish(const struct bench_device *device, char why[BENCH_WHY]) {
    (void)device, (void)why;
    return false;
}

bool bench_device_mark(const struct bench_device *device, char why[BENCH_WHY]) {
    (void)device, (void)why;
    return false;
}

bool bench_device_hold(const struct bench_device *device, char why[BENCH_WHY]) {
    (void)device, (void)why;
    return false;
}

bool bench_device_release(const struct bench_device *device, char why[BENCH_WHY]) {
    (void)device, (void)why;
    return false;
}

#endif

bool bench_device_open(struct bench_device *device, const char *gpu, char why[BENCH_WHY]) {
    device->gpu = NULL;
    return !*gpu || open_gpu(device, gpu, why);
}

kdad_status bench_device_stream(const struct bench_device *device, struct kdad_connection *connection,
                                struct kdad_stream **stream) {
    return device->gpu ? kdad_cuda_stream_open(connection, stream_of(device->gpu), stream)
                       : kdad_stream_open(connection, "cpu", stream);
}

void *bench_device_alloc(const struct bench_device *device, struct kdad_connection *connection, size_t bytes,
                         char why[BENCH_WHY]) {
    if (device->gpu)
        return alloc_gpu(device->gpu, bytes, why);
    void *memory = kdad_alloc(connection, bytes);
    if (!memory)
        snprintf(why, BENCH_WHY, "%s", kdad_error());
    return memory;
}

void bench_device_free(const struct bench_device *device, struct kdad_connection *connection, void *memory) {
    if (!memory)
        return;
    if (device->gpu)
        free_gpu(device->gpu, memory);
    else
        kdad_free(connection, memory);
}

bool bench_device_write(const struct bench_device *device, void *to, const void *from, size_t bytes,
                        char why[BENCH_WHY]) {
    if (device->gpu)
        return write_gpu(device->gpu, to, from, bytes, why);
    memcpy(to, from, bytes);
    return true;
}
