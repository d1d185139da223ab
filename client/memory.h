/*
 * memory.h - memory that the daemon can map, and the connection's table of it.
 *
 * shared_memory is one sealed memfd and its mapping. A region is what kdad_alloc gives out: shared_memory
 * that is registered with the daemon when a job first uses it, once in each session. The table is sorted by
 * address; a submission looks up a dozen addresses in it under a read lock, which is all that it costs.
 */
#ifndef CLIENT_MEMORY_H
#define CLIENT_MEMORY_H

#include "client/error.h"
#include "client/forked.h"

#include <pthread.h>
#include <stdbool.h>

struct session;

struct shared_memory {
    char *base;
    size_t size; /* a multiple of the page size */
    struct forked_fd fd;
};

/* Makes zeroed memory, all of its pages allocated. forks: it stays mapped in forked children. */
kdad_status shared_memory_create(struct shared_memory *memory, size_t bytes, const char *name, bool forks);
void shared_memory_destroy(struct shared_memory *memory);

struct region {
    struct shared_memory memory;
    unsigned references; /* the table's, and whoever registers it; with the write lock */
    uint64_t serial;     /* of the session that knows it; 0: none */
    uint64_t buffer;     /* its id there */
};

struct memory {
    pthread_rwlock_t lock;
    pthread_mutex_t registering; /* held around REGISTER: no region is registered twice */
    struct region **regions;     /* by address */
    size_t count, capacity;
};

void memory_init(struct memory *memory);
void memory_destroy(struct memory *memory); /* frees all regions; tells nobody */

enum memory_place {
    MEMORY_PLAIN, /* none of it is kdad_alloc's */
    MEMORY_REGION,
    MEMORY_PARTLY
};

/* Where the bytes are; the region's index in *at, which is also where the search begins. With the lock. */
enum memory_place memory_find(const struct memory *memory, uintptr_t address, uint64_t bytes, size_t *at);

/* Makes the region at an address known to a session. */
kdad_status memory_register(struct memory *memory, struct session *session, uintptr_t address,
                            int64_t deadline);

#endif
