/*
 * cuda_memory.c - the trainer's allocations on a GPU: exported, registered, forgotten.
 */
#include "client/cuda_stream.h"
#include "client/deadline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Memory of the trainer's, as a session knows it: a whole allocation, or a run of segments that were mapped
 * side by side (expandable segments). Runs may share segments. */
struct cuda_allocation {
    uint64_t base, size;
    uint64_t serial, buffer;
    int64_t used;   /* deadline_now */
    uint64_t round; /* in which its ids were last asked for */
    unsigned pins;  /* operands of jobs that are being submitted */
    bool run;       /* of segments */
    uint32_t parts; /* 1, or how many segments */
    struct cuda_part {
        uint64_t offset;
        uint64_t id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    } * part;
};

void cuda_memory_init(struct cuda_memory *memory) {
    pthread_mutex_init(&memory->lock, NULL);
}

void cuda_memory_destroy(struct cuda_memory *memory) {
    for (size_t i = 0; i < memory->count; i++)
        free(memory->allocations[i].part);
    free(memory->allocations);
    pthread_mutex_destroy(&memory->lock);
}

static bool buffer_id(const struct cuda_driver *driver, uint64_t address, uint64_t *id) {
    unsigned long long value = 0;
    if (driver->PointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) != CUDA_SUCCESS)
        return false;
    *id = value;
    return true;
}

static void forget(struct cuda_memory *memory, size_t at) {
    struct cuda_allocation *a = &memory->allocations[at];
    memory->bytes -= a->size;
    free(a->part);
    memmove(a, a + 1, (--memory->count - at) * sizeof *a);
}

/* True if each part is still the memory that was registered. */
static bool is_unchanged(const struct cuda_driver *driver, const struct cuda_allocation *a) {
    uint64_t id;
    for (uint32_t i = 0; i < a->parts; i++) {
        if (!buffer_id(driver, a->base + a->part[i].offset, &id) || id != a->part[i].id)
            return false;
    }
    return true;
}

/* What the session knows of the memory at an address; NULL: nothing. Of runs of segments, one that covers all
 * of the bytes. What is stale is forgotten. */
static struct cuda_allocation *find(struct cuda_memory *memory, const struct cuda_driver *driver,
                                    struct session *session, uint64_t address, uint64_t bytes,
                                    int64_t deadline) {
    for (size_t i = 0; i < memory->count;) {
        struct cuda_allocation *a = &memory->allocations[i];
        const uint64_t offset = address - a->base;
        if (offset >= a->size || (a->run && bytes > a->size - offset)) {
            i++;
            continue;
        }
        if (a->round == memory->round)
            return a;
        if (a->serial == session->serial && is_unchanged(driver, a)) {
            a->round = memory->round;
            return a;
        }
        if (a->serial == session->serial)
            session_release(session, a->buffer, deadline);
        forget(memory, i);
    }
    return NULL;
}

static struct cuda_allocation *new_allocation(struct cuda_memory *memory) {
    if (memory->count == memory->capacity) {
        size_t capacity = memory->capacity ? 2 * memory->capacity : 16;
        struct cuda_allocation *grown = realloc(memory->allocations, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        memory->allocations = grown;
        memory->capacity = capacity;
    }
    return &memory->allocations[memory->count];
}

/* Has the daemon map what was exported. The allocation gets its buffer's id. */
static kdad_status announce(struct session *session, struct wire_message *request, const int *fds,
                            int fd_count, int64_t deadline, struct cuda_allocation *a) {
    struct session_reply reply;
    request->opcode = WIRE_REGISTER;
    request->reg.size = a->size;
    kdad_status status = session_request(session, request, fds, fd_count, deadline, &reply);
    if (status != KDAD_OK)
        return status;
    a->buffer = reply.message.reg_reply.buffer;
    session_reply_free(&reply);
    return KDAD_OK;
}

/* The segment that an address lies in. */
static bool find_segment(const struct cuda_driver *driver, uint64_t address, uint64_t *base, uint64_t *size) {
    CUdeviceptr start;
    size_t bytes;
    if (driver->MemGetAddressRange(&start, &bytes, address) != CUDA_SUCCESS || bytes == 0)
        return false;
    *base = start;
    *size = bytes;
    return true;
}

/* Exports the segments from the address's on that the bytes lie in, side by side. *count of the descriptors
 * are the caller's to close, also on failure. */
static kdad_status export_segments(const struct cuda_driver *driver, struct cuda_allocation *a,
                                   struct wire_register *request, uint64_t address, uint64_t bytes,
                                   enum operand o, int fds[WIRE_FDS_MAX], int *count) {
    char why[CUDA_WHY];
    uint64_t base, size;
    *count = 0;
    for (uint64_t at = address; at == address || at < address + bytes; at = base + size) {
        CUmemGenericAllocationHandle handle;
        if (*count == WIRE_FDS_MAX)
            return error_set(KDAD_UNSUPPORTED, "%s: lies in more than %d segments", operand_name(o),
                             WIRE_FDS_MAX);
        if (!find_segment(driver, at, &base, &size) || (*count > 0 && base != at))
            return error_set(KDAD_INVALID, "%s: ends behind its allocation", operand_name(o));
        if (*count == 0)
            a->base = base;
        if (!cuda_ok(driver->MemRetainAllocationHandle(&handle, (void *)(uintptr_t)base),
                     "cuMemRetainAllocationHandle", why))
            return error_set(KDAD_UNSUPPORTED, "%s: its memory cannot be shared with the daemon: %s",
                             operand_name(o), why);
        bool good = cuda_ok(driver->MemExportToShareableHandle(&fds[*count], handle,
                                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                            "cuMemExportToShareableHandle", why);
        driver->MemRelease(handle);
        if (!good)
            return error_set(KDAD_UNSUPPORTED, "%s: its memory cannot be shared with the daemon: %s",
                             operand_name(o), why);
        request->segment[(*count)++] = size;
        a->size += size;
    }
    request->segments = (uint32_t)*count;
    return KDAD_OK;
}

/* Notes what the parts are, to know them again. */
static kdad_status identify(const struct cuda_driver *driver, struct cuda_allocation *a,
                            const struct wire_register *request, enum operand o) {
    uint64_t offset = 0;
    a->parts = request->segments ? request->segments : 1;
    a->part = malloc(a->parts * sizeof *a->part);
    if (!a->part)
        return error_set(KDAD_NO_MEMORY, "memory: out of memory");
    for (uint32_t i = 0; i < a->parts; i++) {
        a->part[i].offset = offset;
        if (!buffer_id(driver, a->base + offset, &a->part[i].id))
            return error_set(KDAD_INVALID, "%s: does not lie in memory of the GPU", operand_name(o));
        offset += request->segment[i];
    }
    return KDAD_OK;
}

/* By its IPC handle, or, where it has none, segment by segment. */
static kdad_status export_and_announce(const struct cuda_stream *s, struct session *session,
                                       struct cuda_allocation *a, uint64_t address, uint64_t bytes,
                                       enum operand o, int64_t deadline) {
    CUipcMemHandle handle;
    struct wire_message request = {.reg.device = wire_string(s->device)};
    int fds[WIRE_FDS_MAX], count = 0;
    kdad_status status = KDAD_OK;
    if (!find_segment(s->driver, address, &a->base, &a->size))
        return error_set(KDAD_INVALID, "%s: does not lie in memory of the GPU", operand_name(o));
    if (s->driver->IpcGetMemHandle(&handle, a->base) == CUDA_SUCCESS) {
        request.reg.kind = WIRE_BUFFER_CUDA_IPC;
        request.reg.handle = (struct wire_string){(const char *)&handle, sizeof handle};
    } else {
        request.reg.kind = WIRE_BUFFER_CUDA_VMM;
        a->run = true;
        a->size = 0;
        status = export_segments(s->driver, a, &request.reg, address, bytes, o, fds, &count);
    }
    if (status == KDAD_OK)
        status = identify(s->driver, a, &request.reg, o);
    if (status == KDAD_OK)
        status = announce(session, &request, fds, count, deadline, a);
    for (int i = 0; i < count; i++)
        close(fds[i]);
    return status;
}

/* $KDAD_MAPPED_BYTES, else half of the GPU's memory. */
static uint64_t mapped_limit(const struct cuda_stream *s) {
    const char *text = getenv("KDAD_MAPPED_BYTES");
    char *end;
    CUdevice device;
    size_t total;
    errno = 0;
    const unsigned long long limit = text ? strtoull(text, &end, 10) : 0;
    if (text && *text && !*end && !errno)
        return limit;
    if (s->driver->CtxGetDevice(&device) == CUDA_SUCCESS &&
        s->driver->DeviceTotalMem(&total, device) == CUDA_SUCCESS)
        return total / 2;
    return UINT64_MAX;
}

/* Makes the memory at an address known to the session: the last of the table. */
static kdad_status add(struct cuda_memory *memory, const struct cuda_stream *s, struct session *session,
                       uint64_t address, uint64_t bytes, enum operand o, int64_t deadline) {
    struct cuda_allocation *a = new_allocation(memory);
    if (!a)
        return error_set(KDAD_NO_MEMORY, "memory: out of memory");
    *a = (struct cuda_allocation){.serial = session->serial, .round = memory->round};
    kdad_status status = export_and_announce(s, session, a, address, bytes, o, deadline);
    if (status != KDAD_OK) {
        free(a->part);
        return status;
    }
    pthread_mutex_lock(&session->lock);
    session->cuda_memory = memory;
    pthread_mutex_unlock(&session->lock);
    if (memory->limit == 0)
        memory->limit = mapped_limit(s);
    memory->count++;
    memory->bytes += a->size;
    return KDAD_OK;
}

static kdad_status place_one(struct cuda_memory *memory, const struct cuda_stream *s, struct session *session,
                             struct operand_view *v, enum operand o, uint64_t extent, int64_t deadline) {
    uint64_t address = v->offset;
    struct cuda_allocation *a = find(memory, s->driver, session, address, extent, deadline);
    if (!a) {
        kdad_status status = add(memory, s, session, address, extent, o, deadline);
        if (status != KDAD_OK)
            return status;
        a = &memory->allocations[memory->count - 1];
    }
    if (extent > a->size - (address - a->base))
        return error_set(KDAD_INVALID, "%s: ends behind its allocation", operand_name(o));
    a->used = deadline_now();
    a->pins++;
    v->allocation = a->buffer;
    v->offset = address - a->base;
    return KDAD_OK;
}

/* Of the operands before `end`. With the lock. */
static void unpin(struct cuda_memory *memory, const struct session *session, const struct problem *placed,
                  enum operand end) {
    for (enum operand o = 0; o < end; o++) {
        for (size_t i = 0; problem_has(placed, o) && i < memory->count; i++) {
            struct cuda_allocation *a = &memory->allocations[i];
            if (a->serial == session->serial && a->buffer == placed->at[o].allocation) {
                a->pins--;
                break;
            }
        }
    }
}

kdad_status cuda_memory_place(struct cuda_memory *memory, struct cuda_stream *s, struct session *session,
                              struct problem *placed, const uint64_t extent[OPERAND_COUNT],
                              int64_t deadline) {
    char why[CUDA_WHY];
    kdad_status status = KDAD_OK;
    if (!cuda_enter(s, why))
        return cuda_failed("job", why);
    pthread_mutex_lock(&memory->lock);
    memory->round++;
    enum operand o = 0;
    for (; o < OPERAND_COUNT && status == KDAD_OK; o++) {
        if (problem_has(placed, o))
            status = place_one(memory, s, session, &placed->at[o], o, extent[o], deadline);
    }
    if (status != KDAD_OK)
        unpin(memory, session, placed, o - 1);
    pthread_mutex_unlock(&memory->lock);
    cuda_leave(s);
    return status;
}

/* The index of the one that was used the longest ago, and is in no submission; count: none. With the lock. */
static size_t find_oldest(const struct cuda_memory *memory, const struct session *session) {
    size_t oldest = memory->count;
    for (size_t i = 0; i < memory->count; i++) {
        const struct cuda_allocation *a = &memory->allocations[i];
        if (a->serial == session->serial && a->pins == 0 &&
            (oldest == memory->count || a->used < memory->allocations[oldest].used))
            oldest = i;
    }
    return oldest;
}

void cuda_memory_placed(struct cuda_memory *memory, struct session *session, const struct problem *placed,
                        int64_t deadline) {
    size_t oldest;
    pthread_mutex_lock(&memory->lock);
    unpin(memory, session, placed, OPERAND_COUNT);
    while (memory->bytes > memory->limit && (oldest = find_oldest(memory, session)) < memory->count) {
        session_release(session, memory->allocations[oldest].buffer, deadline);
        forget(memory, oldest);
    }
    pthread_mutex_unlock(&memory->lock);
}

/* Takes one out that is to be released. With the lock. */
static bool take_unused(struct cuda_memory *memory, const struct session *session, int64_t before,
                        uint64_t *buffer) {
    for (size_t i = memory->count; i-- > 0;) {
        struct cuda_allocation *a = &memory->allocations[i];
        bool known = a->serial == session->serial;
        if (known && (a->used >= before || a->pins > 0))
            continue;
        *buffer = a->buffer;
        forget(memory, i);
        if (known)
            return true;
    }
    return false;
}

bool cuda_memory_release(struct cuda_memory *memory, struct session *session, int64_t before) {
    uint64_t buffer;
    if (pthread_mutex_trylock(&memory->lock) != 0)
        return true; /* in use, perhaps by one who waits for this thread to receive a reply */
    while (take_unused(memory, session, before, &buffer))
        session_release(session, buffer, deadline_in(0));
    bool left = memory->count > 0;
    pthread_mutex_unlock(&memory->lock);
    return left;
}

kdad_status cuda_memory_trim(struct cuda_memory *memory, struct session *session, int64_t deadline) {
    kdad_status status = KDAD_OK;
    for (;;) {
        struct wire_message request = {.opcode = WIRE_RELEASE};
        struct session_reply reply;
        pthread_mutex_lock(&memory->lock);
        bool found = take_unused(memory, session, INT64_MAX, &request.release.buffer);
        pthread_mutex_unlock(&memory->lock);
        if (!found || status != KDAD_OK)
            return status;
        status = session_request(session, &request, NULL, 0, deadline, &reply);
        if (status == KDAD_OK)
            session_reply_free(&reply);
    }
}
