/*
 * cuda_local.c - jobs launched in the trainer's own process, on its own stream.
 *
 * A launch is all that a submission costs: nothing is recorded for a wait that may never come. The first look
 * at a job that is not known to be done records the one event, behind all that the stream holds by then.
 */
#include "client/cuda_stream.h"

#include <stdlib.h>
#include <string.h>

struct cuda_local {
    const struct cuda_stream *on;
    const struct kernels_library *library;
    CUevent event;
    bool recorded;       /* the event is under way, behind job marked */
    kdad_ticket marked;  /* … */
    kdad_ticket done;    /* all jobs up to here are */
    int32_t *verdict;    /* enum cuda_verdict of each of the last 1,024 jobs, pinned */
    CUdeviceptr words;   /* its address on the GPU */
    struct problem seen; /* the last whose addresses were looked up */
};

/* Calls that allocate are refused while any thread captures a graph, unless this thread says otherwise. */
static void relax(const struct cuda_driver *driver, CUstreamCaptureMode *mode) {
    driver->ThreadExchangeStreamCaptureMode(mode);
}

static bool open_parts(struct cuda_local *l, char why[CUDA_WHY]) {
    const struct cuda_driver *driver = l->on->driver;
    void *words = NULL;
    if (!cuda_context_load_kernels(l->on->in, l->library, why) ||
        !cuda_ok(driver->EventCreate(&l->event, CU_EVENT_DISABLE_TIMING), "cuEventCreate", why) ||
        !cuda_ok(driver->MemAllocHost(&words, WIRE_STREAM_SLOTS * sizeof *l->verdict), "cuMemAllocHost", why))
        return false;
    l->verdict = words;
    memset(words, 0, WIRE_STREAM_SLOTS * sizeof *l->verdict);
    return cuda_ok(driver->MemHostGetDevicePointer(&l->words, words, 0), "cuMemHostGetDevicePointer", why);
}

/* In the context. */
static void free_parts(struct cuda_local *l) {
    const struct cuda_driver *driver = l->on->driver;
    if (l->event)
        driver->EventDestroy(l->event);
    if (l->verdict)
        driver->MemFreeHost(l->verdict);
    free(l);
}

kdad_status cuda_local_open(struct cuda_stream *stream, const struct kernels_library *library,
                            struct cuda_local **opened) {
    char why[CUDA_WHY];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!library->cuda_load)
        return error_set(KDAD_UNSUPPORTED, "stream: " KERNELS_LIBRARY_FILE " was built without CUDA");
    struct cuda_local *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(KDAD_NO_MEMORY, "stream: out of memory");
    l->on = stream;
    l->library = library;
    if (!cuda_enter(stream, why)) {
        free(l);
        return cuda_failed("stream", why);
    }
    relax(stream->driver, &mode);
    bool good = open_parts(l, why);
    if (!good)
        free_parts(l);
    relax(stream->driver, &mode);
    cuda_leave(stream);
    if (!good)
        return cuda_failed("stream", why);
    *opened = l;
    return KDAD_OK;
}

void cuda_local_close(struct cuda_local *l) {
    char why[CUDA_WHY];
    const struct cuda_stream *on = l->on;
    if (!cuda_enter(on, why)) { /* the context is gone, and with it all but this */
        free(l);
        return;
    }
    on->driver->StreamSynchronize(on->stream); /* its jobs write verdicts */
    free_parts(l);
    cuda_leave(on);
}

/* A wrong address would cost the trainer its context. */
static kdad_status check_addresses(struct cuda_local *l, const struct problem *p,
                                   const uint64_t extent[OPERAND_COUNT]) {
    if (problem_equal(&l->seen, p))
        return KDAD_OK;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        CUmemorytype type;
        if (!problem_has(p, o) || extent[o] == 0)
            continue;
        const CUdeviceptr first = p->at[o].offset, last = first + extent[o] - 1;
        if (l->on->driver->PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first) !=
            CUDA_SUCCESS)
            return error_set(KDAD_INVALID, "%s: does not lie in memory of the GPU", operand_name(o));
        if (l->on->driver->PointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, last) != CUDA_SUCCESS)
            return error_set(KDAD_INVALID, "%s: ends behind its allocation", operand_name(o));
    }
    l->seen = *p;
    return KDAD_OK;
}

/* The copy of cu_seqlens lives in stream order, which a graph takes over. */
static bool put_on_stream(const struct cuda_local *l, const struct problem *p, CUdeviceptr verdict,
                          char why[CUDA_WHY]) {
    const struct cuda_stream *on = l->on;
    struct cuda_sequences sequences = {.verdict = verdict};
    uint64_t address[OPERAND_COUNT], bytes = l->library->cuda_scratch_size(p);
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        address[o] = p->at[o].offset;
    if (bytes > 0 &&
        !cuda_ok(on->driver->MemAllocAsync(&sequences.scratch, bytes, on->stream), "cuMemAllocAsync", why))
        return false;
    bool good = l->library->cuda_launch(on->in->kernels, on->stream, p, address, &sequences, why);
    if (bytes > 0)
        good =
            cuda_ok(on->driver->MemFreeAsync(sequences.scratch, on->stream), "cuMemFreeAsync", why) && good;
    return good;
}

kdad_status cuda_local_launch(struct cuda_local *l, const struct problem *p,
                              const uint64_t extent[OPERAND_COUNT], kdad_ticket ticket, bool *captured) {
    const struct cuda_stream *on = l->on;
    char why[CUDA_WHY];
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    size_t slot = ticket % WIRE_STREAM_SLOTS;
    if (!cuda_enter(on, why))
        return cuda_failed("job", why);
    kdad_status status = check_addresses(l, p, extent);
    if (status == KDAD_OK &&
        !cuda_ok(on->driver->StreamIsCapturing(on->stream, &capture), "cuStreamIsCapturing", why))
        status = cuda_failed("job", why);
    *captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    if (status == KDAD_OK && !problem_is_empty(p)) {
        if (!*captured)
            l->verdict[slot] = CUDA_VERDICT_OK;
        /* A graph's launches are of no ticket: nobody would look at their verdict. */
        if (!put_on_stream(l, p, *captured ? 0 : l->words + slot * sizeof *l->verdict, why))
            status = cuda_failed("job", why);
    }
    cuda_leave(on);
    return status;
}

/* One look at the event, which is recorded first if it is not under way. */
static kdad_status look(struct cuda_local *l, kdad_ticket last) {
    const struct cuda_stream *on = l->on;
    char why[CUDA_WHY];
    if (!l->recorded) {
        if (!cuda_ok(on->driver->EventRecord(l->event, on->stream), "cuEventRecord", why))
            return cuda_failed("job", why);
        l->recorded = true;
        l->marked = last;
    }
    CUresult result = on->driver->EventQuery(l->event);
    if (result == CUDA_ERROR_NOT_READY)
        return KDAD_PENDING;
    l->recorded = false;
    if (!cuda_ok(result, "cuEventQuery", why))
        return cuda_failed("job", why);
    l->done = l->marked;
    return KDAD_OK;
}

kdad_status cuda_local_look(struct cuda_local *l, kdad_ticket ticket, kdad_ticket last) {
    char why[CUDA_WHY];
    kdad_status status = KDAD_OK;
    if (ticket <= l->done)
        return KDAD_OK;
    if (!cuda_enter(l->on, why))
        return cuda_failed("job", why);
    while (status == KDAD_OK && ticket > l->done) /* twice, if the event was under way for jobs before */
        status = look(l, last);
    cuda_leave(l->on);
    return status;
}

const char *cuda_local_sentence(const struct cuda_local *l, kdad_ticket ticket) {
    int32_t verdict = __atomic_load_n(&l->verdict[ticket % WIRE_STREAM_SLOTS], __ATOMIC_ACQUIRE);
    return verdict == CUDA_VERDICT_OK ? NULL : l->library->cuda_verdict_sentence(verdict);
}

void cuda_local_clear(struct cuda_local *l, kdad_ticket ticket) {
    l->verdict[ticket % WIRE_STREAM_SLOTS] = CUDA_VERDICT_OK;
}
