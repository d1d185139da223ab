/*
 * cuda_stream.c - a trainer's CUDA stream: its context, the kernels there, and what a job of the daemon's
 * puts on it.
 */
#include "client/cuda_stream.h"

#include "kernels/cuda/guard.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER; /* also for what contexts hold */
static struct cuda_context *contexts;

kdad_status cuda_failed(const char *what, const char *why) {
    return error_set(KDAD_INTERNAL, "%s: %s", what, why);
}

bool cuda_enter(const struct cuda_stream *s, char why[CUDA_WHY]) {
    return cuda_ok(s->driver->CtxPushCurrent(s->in->context), "cuCtxPushCurrent", why);
}

void cuda_leave(const struct cuda_stream *s) {
    s->driver->CtxPopCurrent(NULL);
}

/* --- contexts ------------------------------------------------------------------------------------------ */

/* NULL: out of memory. */
static struct cuda_context *find_context(CUcontext context) {
    pthread_mutex_lock(&contexts_lock);
    struct cuda_context *c = contexts;
    while (c && c->context != context)
        c = c->next;
    if (!c && (c = calloc(1, sizeof *c))) {
        c->context = context;
        c->next = contexts;
        contexts = c;
    }
    pthread_mutex_unlock(&contexts_lock);
    return c;
}

bool cuda_context_load_guard(struct cuda_context *context, const struct cuda_driver *driver,
                             char why[CUDA_WHY]) {
    pthread_mutex_lock(&contexts_lock);
    if (!context->guard)
        context->guard = cuda_guard_load(driver, why);
    bool loaded = context->guard != NULL;
    pthread_mutex_unlock(&contexts_lock);
    return loaded;
}

bool cuda_context_load_kernels(struct cuda_context *context, const struct kernels_library *library,
                               char why[CUDA_WHY]) {
    pthread_mutex_lock(&contexts_lock);
    if (!context->kernels)
        context->kernels = library->cuda_load(why);
    bool loaded = context->kernels != NULL;
    pthread_mutex_unlock(&contexts_lock);
    return loaded;
}

/* --- streams ------------------------------------------------------------------------------------------- */

kdad_status cuda_stream_open(void *stream, struct cuda_stream **opened, char device[WIRE_NAME_MAX + 1]) {
    char why[CUDA_WHY], uuid[CUDA_UUID_TEXT];
    CUcontext context = NULL;
    CUdevice number;
    const struct cuda_driver *driver = cuda_driver(why);
    if (!driver)
        return error_set(KDAD_UNSUPPORTED, "stream: %s", why);
    if (!cuda_ok(driver->CtxGetCurrent(&context), "cuCtxGetCurrent", why))
        return cuda_failed("stream", why);
    if (!context)
        return error_set(KDAD_INVALID, "stream: the calling thread has no current CUDA context");
    if (!cuda_ok(driver->CtxGetDevice(&number), "cuCtxGetDevice", why) || !cuda_uuid(number, uuid, why))
        return cuda_failed("stream", why);
    struct cuda_context *in = find_context(context);
    struct cuda_stream *s = in ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return error_set(KDAD_NO_MEMORY, "stream: out of memory");
    *s = (struct cuda_stream){
        .driver = driver, .in = in, .stream = stream, .words = cuda_streams_words(number)};
    strcpy(s->device, uuid);
    strcpy(device, uuid);
    *opened = s;
    return KDAD_OK;
}

void cuda_stream_close(struct cuda_stream *s) {
    free(s);
}

kdad_status cuda_stream_check(struct cuda_stream *s) {
    char why[CUDA_WHY];
    CUstreamCaptureStatus capture;
    if (!cuda_enter(s, why))
        return cuda_failed("job", why);
    bool good = cuda_ok(s->driver->StreamIsCapturing(s->stream, &capture), "cuStreamIsCapturing", why);
    cuda_leave(s);
    if (!good)
        return cuda_failed("job", why);
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return error_set(
            KDAD_UNSUPPORTED,
            "stream: is being captured into a CUDA graph, where no other process can work: open it "
            "on a connection to \"local:\"");
    return KDAD_OK;
}

kdad_status cuda_timeline_register(struct cuda_stream *s, struct timeline *timeline, uint64_t *address) {
    char why[CUDA_WHY];
    CUdeviceptr pointer = 0;
    if (!cuda_enter(s, why))
        return cuda_failed("stream", why);
    bool good =
        cuda_context_load_guard(s->in, s->driver, why) &&
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

/* The words of a timeline that a job is about, as the GPU sees them. */
static CUdeviceptr ready_word(uint64_t timeline_address) {
    return timeline_address + offsetof(struct timeline, ready);
}

static struct cuda_told told_words(uint64_t timeline_address, uint64_t ticket) {
    return (struct cuda_told){
        .done = timeline_address + offsetof(struct timeline, done),
        .lost = TIMELINE_LOST,
        .status = timeline_address + offsetof(struct timeline, status) +
                  ticket % WIRE_STREAM_SLOTS * sizeof(int32_t),
        .harmless = KDAD_BAD_DATA,
    };
}

/* ready = ticket, then a wait for done ≥ ticket: one call of the driver's for both. */
static bool write_and_wait(const struct cuda_stream *s, CUdeviceptr ready, CUdeviceptr done, uint64_t ticket,
                           char why[CUDA_WHY]) {
    CUstreamBatchMemOpParams op[2] = {0};
    op[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op[0].writeValue.address = ready;
    op[0].writeValue.value64 = ticket;
    op[0].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    op[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    op[1].waitValue.address = done;
    op[1].waitValue.value64 = ticket;
    op[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return cuda_ok(s->driver->StreamBatchMemOp(s->stream, 2, op, 0), "cuStreamBatchMemOp", why);
}

/* The same by functions that the driver calls on a thread of its own, for a device that cannot. That thread
 * waits for the daemon, which waits for nobody; and if the daemon is lost, done says so. */
struct host_wait {
    struct timeline *timeline;
    uint64_t ticket;
    bool waits;
};

static void CUDA_CB tell_and_wait(void *argument) {
    struct host_wait *w = argument;
    uint64_t done;
    atomic_store_explicit(&w->timeline->ready, w->ticket, memory_order_release);
    while (w->waits && (int64_t)((done = atomic_load(&w->timeline->done)) - w->ticket) < 0)
        timeline_sleep(w->timeline, done, 1000000000);
    free(w);
}

static bool tell_on_host(const struct cuda_stream *s, struct timeline *timeline, uint64_t ticket, bool waits,
                         char why[CUDA_WHY]) {
    struct host_wait *w = malloc(sizeof *w);
    if (!w) {
        strcpy(why, "out of memory");
        return false;
    }
    *w = (struct host_wait){timeline, ticket, waits};
    if (cuda_ok(s->driver->LaunchHostFunc(s->stream, tell_and_wait, w), "cuLaunchHostFunc", why))
        return true;
    free(w);
    return false;
}

kdad_status cuda_stream_follow(struct cuda_stream *s, struct timeline *timeline, uint64_t timeline_address,
                               uint64_t ticket, const struct problem *problem) {
    char why[CUDA_WHY];
    uint64_t address[OPERAND_COUNT];
    struct cuda_told told = told_words(timeline_address, ticket);
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        address[o] = problem->at[o].offset;
    if (!cuda_enter(s, why))
        return cuda_failed("job", why);
    bool good = (s->words ? write_and_wait(s, ready_word(timeline_address), told.done, ticket, why)
                          : tell_on_host(s, timeline, ticket, true, why)) &&
                (problem_is_empty(problem) ||
                 cuda_guard_launch(s->driver, s->in->guard, s->stream, problem, address, &told, why));
    cuda_leave(s);
    return good ? KDAD_OK : cuda_failed("job", why);
}

kdad_status cuda_stream_tell(struct cuda_stream *s, struct timeline *timeline, uint64_t timeline_address,
                             uint64_t ticket) {
    char why[CUDA_WHY];
    if (!cuda_enter(s, why))
        return cuda_failed("job", why);
    bool good =
        s->words ? cuda_ok(s->driver->StreamWriteValue64(s->stream, ready_word(timeline_address), ticket, 0),
                           "cuStreamWriteValue64", why)
                 : tell_on_host(s, timeline, ticket, false, why);
    cuda_leave(s);
    return good ? KDAD_OK : cuda_failed("job", why);
}
