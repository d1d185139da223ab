/*
 * table.h - ids of a connection's objects. An id is never used again: it holds the slot and how often the
 * slot was taken, so a stale one is not found.
 */
#ifndef DAEMON_TABLE_H
#define DAEMON_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct table {
    struct table_slot {
        void *object; /* NULL: free */
        uint64_t uses;
        uint32_t next; /* free list */
    } * slots;
    uint32_t size, capacity, limit, count;
    uint32_t free; /* first free slot, or size */
};

void table_init(struct table *table, uint32_t limit);
void table_free(struct table *table);

/* Enters an object. Returns its id, > 0; 0 if the limit is reached (errno ENOSPC) or memory is short. */
uint64_t table_add(struct table *table, void *object);
void *table_find(const struct table *table, uint64_t id); /* NULL: no such id */
void *table_remove(struct table *table, uint64_t id);     /* likewise */

/* Goes through all objects: starts with *at = 0, returns NULL behind the last. */
void *table_next(const struct table *table, uint32_t *at, uint64_t *id);

#endif
