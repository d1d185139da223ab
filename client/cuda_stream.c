/*
 * cuda_stream.c - a trainer's CUDA stream: its context, the kernels there, and what a job puts on it.
 */
#include "client/cuda_stream.h"

#include <stdlib.h>
#include <string.h>

/* The kernels of a context: loaded once, for all of the process's streams in it. */
struct context_kernels {
    struct context_kernels *next;
    CUcontext context;
    struct cuda_kernels *kernels;
};

static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context_kernels *all_kernels;

kdad_status cuda_failed(const char *what, const char *why) {
    return error_set(KDAD_INTERNAL, "%s: %s", what, why);
}

bool cuda_enter(const struct cuda_stream *s, char why[CUDA_WHY]) {
    return cuda_ok(s->driver->CtxPushCurrent(s->context), "cuCtxPushCurrent", why);
}

void cuda_leave(const struct cuda_stream *s) {
    s->driver->CtxPopCurrent(NULL);
}

/* The kernels of the current context. They stay as long as the process: a context is never torn down by kdad,
 * and when its owner does so, they go with it. */
static struct cuda_kernels *find_kernels(const struct cuda_driver *driver, CUcontext context,
                                         char why[CUDA_WHY]) {
    struct cuda_kernels *kernels = NULL;
    pthread_mutex_lock(&kernels_lock);
    for (struct context_kernels *k = all_kernels; k && !kernels; k = k->next) {
        if (k->context == context)
            kernels = k->kernels;
    }
    struct context_kernels *fresh = kernels ? NULL : calloc(1, sizeof *fresh);
    if (fresh && (kernels = cuda_kernels_load(driver, why))) {
        *fresh = (struct context_kernels){all_kernels, context, kernels};
        all_kernels = fresh;
    } else if (!kernels && !fresh) {
        strcpy(why, "out of memory");
    }
    if (fresh && !kernels)
        free(fresh);
    pthread_mutex_unlock(&kernels_lock);
    return kernels;
}

kdad_status cuda_stream_open(void *stream, struct cuda_stream **opened, char device[WIRE_NAME_MAX + 1]) {
    char why[CUDA_WHY], uuid[CUDA_UUID_TEXT];
    CUdevice number;
    const struct cuda_driver *driver = cuda_driver(why);
    if (!driver)
        return error_set(KDAD_UNSUPPORTED, "stream: %s", why);
    struct cuda_stream *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(KDAD_NO_MEMORY, "stream: out of memory");
    s->driver = driver;
    s->stream = stream;
    bool good = cuda_ok(driver->CtxGetCurrent(&s->context), "cuCtxGetCurrent", why);
    if (good && !s->context) {
        free(s);
        return error_set(KDAD_INVALID, "stream: the calling thread has no current CUDA context");
    }
    good = good && cuda_ok(driver->CtxGetDevice(&number), "cuCtxGetDevice", why) &&
           cuda_uuid(number, uuid, why) && (s->kernels = find_kernels(driver, s->context, why));
    if (!good) {
        free(s);
        return cuda_failed("stream", why);
    }
    strcpy(s->device, uuid);
    strcpy(device, uuid);
    *opened = s;
    return KDAD_OK;
}

void cuda_stream_close(struct cuda_stream *s) {
    free(s);
}

kdad_status cuda_timeline_register(struct cuda_stream *s, struct timeline *timeline, uint64_t *address) {
    char why[CUDA_WHY];
    CUdeviceptr pointer = 0;
    if (!cuda_enter(s, why))
        return cuda_failed("stream", why);
    bool good =
        cuda_ok(s->driver->MemHostRegister(timeline, sizeof *timeline, CU_MEMHOSTREGISTER_DEVICEMAP),
                "cuMemHostRegister", why) &&
        cuda_ok(s->driver->MemHostGetDevicePointer(&pointer, timeline, 0), "cuMemHostGetDevicePointer", why);
    cuda_leave(s);
    *address = pointer;
    return good ? KDAD_OK : cuda_failed("stream: its timeline", why);
}

void cuda_timeline_unregister(struct cuda_stream *s, struct timeline *timeline) {
    char why[CUDA_WHY];
    if (!cuda_enter(s, why))
        return;
    s->driver->StreamSynchronize(s->stream); /* it may still look at the page */
    s->driver->MemHostUnregister(timeline);
    cuda_leave(s);
}

kdad_status cuda_stream_follow(struct cuda_stream *s, uint64_t timeline_address, uint64_t ticket,
                               const struct problem *problem) {
    char why[CUDA_WHY];
    uint64_t address[OPERAND_COUNT];
    CUdeviceptr ready = timeline_address + offsetof(struct timeline, ready);
    struct cuda_told told = {
        .done = timeline_address + offsetof(struct timeline, done),
        .lost = TIMELINE_LOST,
        .status = timeline_address + offsetof(struct timeline, status) +
                  ticket % WIRE_STREAM_SLOTS * sizeof(int32_t),
        .harmless = KDAD_BAD_DATA,
    };
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        address[o] = problem->at[o].offset;
    if (!cuda_enter(s, why))
        return cuda_failed("job", why);
    bool good =
        cuda_ok(s->driver->StreamWriteValue64(s->stream, ready, ticket, 0), "cuStreamWriteValue64", why) &&
        cuda_ok(s->driver->StreamWaitValue64(s->stream, told.done, ticket, CU_STREAM_WAIT_VALUE_GEQ),
                "cuStreamWaitValue64", why) &&
        (problem_is_empty(problem) || cuda_launch_guard(s->kernels, s->stream, problem, address, &told, why));
    cuda_leave(s);
    return good ? KDAD_OK : cuda_failed("job", why);
}
