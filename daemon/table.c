#include "daemon/table.h"

#include <errno.h>
#include <stdlib.h>

/* An id is uses << SLOT_BITS | slot + 1: small, and so short on the wire, while no slot was taken twice. */
#define SLOT_BITS 16

static uint64_t slot_id(const struct table *table, const struct table_slot *slot) {
    return (slot->uses - 1) << SLOT_BITS | (uint64_t)(slot - table->slots + 1);
}

void table_init(struct table *table, uint32_t limit) {
    *table = (struct table){.limit = limit};
}

void table_free(struct table *table) {
    free(table->slots);
    *table = (struct table){0};
}

static bool grow(struct table *table) {
    uint32_t capacity = table->capacity ? 2 * table->capacity : 16;
    struct table_slot *slots = realloc(table->slots, capacity * sizeof *slots);
    if (!slots)
        return false;
    table->slots = slots;
    table->capacity = capacity;
    return true;
}

uint64_t table_add(struct table *table, void *object) {
    if (table->count == table->limit) {
        errno = ENOSPC;
        return 0;
    }
    uint32_t at = table->free;
    if (at == table->size) {
        if (table->size == table->capacity && !grow(table))
            return 0;
        table->slots[at] = (struct table_slot){.next = at + 1};
        table->size++;
    }
    struct table_slot *slot = &table->slots[at];
    table->free = slot->next;
    slot->object = object;
    slot->uses++;
    table->count++;
    return slot_id(table, slot);
}

static struct table_slot *find(const struct table *table, uint64_t id) {
    uint64_t at = id & ((1U << SLOT_BITS) - 1);
    if (at == 0 || at > table->size)
        return NULL;
    struct table_slot *slot = &table->slots[at - 1];
    return slot->object && slot_id(table, slot) == id ? slot : NULL;
}

void *table_find(const struct table *table, uint64_t id) {
    struct table_slot *slot = find(table, id);
    return slot ? slot->object : NULL;
}

void *table_remove(struct table *table, uint64_t id) {
    struct table_slot *slot = find(table, id);
    if (!slot)
        return NULL;
    void *object = slot->object;
    slot->object = NULL;
    slot->next = table->free;
    table->free = (uint32_t)(slot - table->slots);
    table->count--;
    return object;
}

void *table_next(const struct table *table, uint32_t *at, uint64_t *id) {
    while (*at < table->size) {
        struct table_slot *slot = &table->slots[(*at)++];
        if (slot->object) {
            if (id)
                *id = slot_id(table, slot);
            return slot->object;
        }
    }
    return NULL;
}
