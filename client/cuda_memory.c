/*
 * cuda_memory.c - the trainer's allocations on a GPU: exported, registered, forgotten.
 */
#include "client/cuda_stream.h"
#include "client/deadline.h"

#include <stdlib.h>
#include <string.h>

/* An allocation of the trainer's, as a session knows it. */
struct cuda_allocation {
    uint64_t base, size;
    uint64_t id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    uint64_t serial, buffer;
    int64_t used;   /* deadline_now */
    uint64_t round; /* in which its id was last asked for */
};

void cuda_memory_init(struct cuda_memory *memory) {
    pthread_mutex_init(&memory->lock, NULL);
}

void cuda_memory_destroy(struct cuda_memory *memory) {
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
    memory->allocations[at] = memory->allocations[--memory->count];
}

/* The allocation that an address lies in, as the session knows it; NULL: none. Stale ones are forgotten. */
static struct cuda_allocation *find(struct cuda_memory *memory, const struct cuda_driver *driver,
                                    struct session *session, uint64_t address, int64_t deadline) {
    for (size_t i = 0; i < memory->count; i++) {
        struct cuda_allocation *a = &memory->allocations[i];
        uint64_t id;
        if (address - a->base >= a->size)
            continue;
        if (a->round == memory->round)
            return a;
        if (a->serial == session->serial && buffer_id(driver, address, &id) && id == a->id) {
            a->round = memory->round;
            return a;
        }
        if (a->serial == session->serial)
            session_release(session, a->buffer, deadline);
        forget(memory, i);
        return NULL;
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

/* Asks the driver for the allocation that an address lies in, exports it, and has the daemon map it. */
static kdad_status add(struct cuda_memory *memory, const struct cuda_stream *s, struct session *session,
                       uint64_t address, enum operand o, int64_t deadline) {
    char why[CUDA_WHY];
    CUdeviceptr base;
    size_t size;
    CUipcMemHandle handle;
    struct cuda_allocation *a = new_allocation(memory);
    if (!a)
        return error_set(KDAD_NO_MEMORY, "memory: out of memory");
    *a = (struct cuda_allocation){.serial = session->serial, .round = memory->round};
    if (!cuda_ok(s->driver->MemGetAddressRange(&base, &size, address), "cuMemGetAddressRange", why) ||
        !buffer_id(s->driver, address, &a->id))
        return error_set(KDAD_INVALID, "%s: does not lie in memory of the GPU: %s", operand_name(o), why);
    if (!cuda_ok(s->driver->IpcGetMemHandle(&handle, base), "cuIpcGetMemHandle", why))
        return error_set(KDAD_UNSUPPORTED, "%s: its memory cannot be shared with the daemon: %s",
                         operand_name(o), why);
    a->base = base;
    a->size = size;
    struct wire_message request = {.opcode = WIRE_REGISTER};
    struct session_reply reply;
    request.reg = (struct wire_register){
        WIRE_BUFFER_CUDA_IPC, size, wire_string(s->device), {(const char *)&handle, sizeof handle}};
    kdad_status status = session_request(session, &request, NULL, 0, deadline, &reply);
    if (status != KDAD_OK)
        return status;
    a->buffer = reply.message.reg_reply.buffer;
    session_reply_free(&reply);
    pthread_mutex_lock(&session->lock);
    session->cuda_memory = memory;
    pthread_mutex_unlock(&session->lock);
    memory->count++;
    return KDAD_OK;
}

static kdad_status place_one(struct cuda_memory *memory, const struct cuda_stream *s, struct session *session,
                             struct operand_view *v, enum operand o, uint64_t extent, int64_t deadline) {
    uint64_t address = v->offset;
    struct cuda_allocation *a = find(memory, s->driver, session, address, deadline);
    if (!a) {
        kdad_status status = add(memory, s, session, address, o, deadline);
        if (status != KDAD_OK)
            return status;
        a = &memory->allocations[memory->count - 1];
    }
    if (extent > a->size - (address - a->base))
        return error_set(KDAD_INVALID, "%s: ends behind its allocation", operand_name(o));
    a->used = deadline_now();
    v->allocation = a->buffer;
    v->offset = address - a->base;
    return KDAD_OK;
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
    for (enum operand o = 0; o < OPERAND_COUNT && status == KDAD_OK; o++) {
        if (problem_has(placed, o))
            status = place_one(memory, s, session, &placed->at[o], o, extent[o], deadline);
    }
    pthread_mutex_unlock(&memory->lock);
    cuda_leave(s);
    return status;
}

/* Takes one out that is to be released. With the lock. */
static bool take_unused(struct cuda_memory *memory, const struct session *session, int64_t before,
                        uint64_t *buffer) {
    for (size_t i = memory->count; i-- > 0;) {
        struct cuda_allocation *a = &memory->allocations[i];
        bool known = a->serial == session->serial;
        if (known && a->used >= before)
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
