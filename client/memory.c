/*
 * memory.c - kdad_alloc and kdad_free. Runs on the caller's threads.
 *
 * All pages are allocated before a pointer is given out: shortage is an error here and never a SIGBUS later,
 * in the client or in the daemon.
 */
#include "client/memory.h"

#include "client/connection.h"
#include "client/deadline.h"
#include "client/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* --- shared memory ------------------------------------------------------------------------------------- */

/* Large memory is worth huge pages, where the system gives them to shared memory; they must be asked for
 * before the pages are allocated. Errors do not matter: fallocate has the last word. */
static void populate(const struct shared_memory *m) {
    if (m->size < HUGE_PAGE)
        return;
    madvise(m->base, m->size, MADV_HUGEPAGE);
    madvise(m->base, m->size, MADV_POPULATE_WRITE);
}

static kdad_status allocate(struct shared_memory *m, const char *name) {
    if (forked_memfd(&m->fd, name) < 0)
        return error_set(KDAD_NO_MEMORY, "memory: no memfd can be made: %m");
    if (ftruncate(m->fd.fd, (off_t)m->size) < 0)
        return error_set(KDAD_NO_MEMORY, "memory: no %zu bytes can be had: %m", m->size);
    void *base = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd.fd, 0);
    if (base == MAP_FAILED)
        return error_set(KDAD_NO_MEMORY, "memory: %zu bytes cannot be mapped: %m", m->size);
    m->base = base;
    populate(m);
    int error = posix_fallocate(m->fd.fd, 0, (off_t)m->size);
    if (error)
        return error_set(KDAD_NO_MEMORY, "memory: no %zu bytes can be had: %s", m->size, strerror(error));
    if (fcntl(m->fd.fd, F_ADD_SEALS, SEALS) < 0)
        return error_set(KDAD_INTERNAL, "memory: its memfd cannot be sealed: %m");
    return KDAD_OK;
}

kdad_status shared_memory_create(struct shared_memory *m, size_t bytes, const char *name, bool forks) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (size_t)sysconf(_SC_PHYS_PAGES);
    *m = (struct shared_memory){0};
    m->fd.fd = -1;
    if (bytes / page >= pages) /* trying would bring in the out-of-memory killer */
        return error_set(KDAD_NO_MEMORY, "memory: %zu bytes are more than the machine has", bytes);
    m->size = bytes ? (bytes + page - 1) / page * page : page;
    kdad_status status = allocate(m, name);
    if (status != KDAD_OK)
        shared_memory_destroy(m);
    else if (!forks)
        madvise(m->base, m->size, MADV_DONTFORK);
    return status;
}

void shared_memory_destroy(struct shared_memory *m) {
    if (m->base)
        munmap(m->base, m->size);
    m->base = NULL;
    forked_close(&m->fd);
}

/* --- the table ----------------------------------------------------------------------------------------- */

void memory_init(struct memory *memory) {
    pthread_rwlock_init(&memory->lock, NULL);
    pthread_mutex_init(&memory->registering, NULL);
}

static void free_region(struct region *region) {
    if (!region)
        return;
    shared_memory_destroy(&region->memory);
    free(region);
}

/* Gives up a reference, with the lock: returns the region if it was the last, to be freed without it. */
static struct region *drop_region(struct region *region) {
    return --region->references == 0 ? region : NULL;
}

void memory_destroy(struct memory *memory) {
    for (size_t i = 0; i < memory->count; i++)
        free_region(memory->regions[i]);
    free(memory->regions);
    pthread_rwlock_destroy(&memory->lock);
    pthread_mutex_destroy(&memory->registering);
}

static uintptr_t start_of(const struct region *region) {
    return (uintptr_t)region->memory.base;
}

static bool holds(const struct region *region, uintptr_t address) {
    return address - start_of(region) < region->memory.size;
}

/* The first region that starts behind an address. */
static size_t find_behind(const struct memory *memory, uintptr_t address) {
    size_t low = 0, high = memory->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (start_of(memory->regions[middle]) > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

enum memory_place memory_find(const struct memory *memory, uintptr_t address, uint64_t bytes, size_t *at) {
    if (*at >= memory->count || !holds(memory->regions[*at], address)) {
        size_t behind = find_behind(memory, address);
        if (behind == 0 || !holds(memory->regions[behind - 1], address)) {
            bool reaches = behind < memory->count && start_of(memory->regions[behind]) - address < bytes;
            return reaches ? MEMORY_PARTLY : MEMORY_PLAIN;
        }
        *at = behind - 1;
    }
    const struct region *region = memory->regions[*at];
    return bytes <= region->memory.size - (address - start_of(region)) ? MEMORY_REGION : MEMORY_PARTLY;
}

static bool insert(struct memory *memory, struct region *region) {
    if (memory->count == memory->capacity) {
        size_t capacity = memory->capacity ? 2 * memory->capacity : 16;
        struct region **grown = realloc(memory->regions, capacity * sizeof(struct region *));
        if (!grown)
            return false;
        memory->regions = grown;
        memory->capacity = capacity;
    }
    size_t at = find_behind(memory, start_of(region));
    memmove(&memory->regions[at + 1], &memory->regions[at], (memory->count - at) * sizeof(struct region *));
    memory->regions[at] = region;
    memory->count++;
    return true;
}

/* --- registration -------------------------------------------------------------------------------------- */

/* Holds the region at an address, unless the session knows it. */
static struct region *hold_unknown(struct memory *memory, uintptr_t address, uint64_t serial) {
    struct region *region = NULL;
    size_t at = 0;
    pthread_rwlock_wrlock(&memory->lock);
    if (memory_find(memory, address, 1, &at) == MEMORY_REGION && memory->regions[at]->serial != serial) {
        region = memory->regions[at];
        region->references++;
    }
    pthread_rwlock_unlock(&memory->lock);
    return region;
}

kdad_status memory_register(struct memory *memory, struct session *session, uintptr_t address,
                            int64_t deadline) {
    kdad_status status = KDAD_OK;
    uint64_t buffer;
    pthread_mutex_lock(&memory->registering);
    struct region *region = hold_unknown(memory, address, session->serial);
    if (region) {
        status = session_register(session, region->memory.fd.fd, region->memory.size, deadline, &buffer);
        pthread_rwlock_wrlock(&memory->lock);
        if (status == KDAD_OK) {
            region->serial = session->serial;
            region->buffer = buffer;
        }
        region = drop_region(region);
        pthread_rwlock_unlock(&memory->lock);
        if (status == KDAD_OK && region)
            session_release(session, buffer, deadline);
        free_region(region);
    }
    pthread_mutex_unlock(&memory->registering);
    return status;
}

/* --- public -------------------------------------------------------------------------------------------- */

KDAD_API void *kdad_alloc(struct kdad_connection *connection, size_t bytes) {
    if (connection_check(connection) != KDAD_OK)
        return NULL;
    struct region *region = calloc(1, sizeof *region);
    if (!region) {
        error_say("memory: out of memory");
        return NULL;
    }
    region->references = 1;
    if (shared_memory_create(&region->memory, bytes, "kdad-memory", true) != KDAD_OK) {
        free(region);
        return NULL;
    }
    struct memory *memory = &connection->memory;
    void *base = region->memory.base;
    pthread_rwlock_wrlock(&memory->lock);
    bool inserted = insert(memory, region);
    pthread_rwlock_unlock(&memory->lock);
    if (inserted)
        return base;
    error_say("memory: out of memory");
    free_region(region);
    return NULL;
}

KDAD_API void kdad_free(struct kdad_connection *connection, void *address) {
    if (!address || connection_check(connection) != KDAD_OK)
        return;
    struct memory *memory = &connection->memory;
    struct region *last = NULL;
    uint64_t serial = 0, buffer = 0;
    size_t at = 0;
    pthread_rwlock_wrlock(&memory->lock);
    if (memory_find(memory, (uintptr_t)address, 1, &at) == MEMORY_REGION &&
        start_of(memory->regions[at]) == (uintptr_t)address) {
        struct region *region = memory->regions[at];
        serial = region->serial;
        buffer = region->buffer;
        memory->count--;
        memmove(&memory->regions[at], &memory->regions[at + 1],
                (memory->count - at) * sizeof(struct region *));
        last = drop_region(region);
    }
    pthread_rwlock_unlock(&memory->lock);
    free_region(last);
    struct session *session = serial ? connection_current(connection) : NULL;
    if (session && session->serial == serial)
        session_release(session, buffer, deadline_in(connection->timeout_ms));
    session_drop(session);
}
