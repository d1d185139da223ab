/*
 * staging.c - the rings, and strided copies into and out of their blocks.
 */
#include "client/staging.h"

#include "client/deadline.h"
#include "client/memory.h"
#include "client/session.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64
#define RING_MIN ((size_t)1 << 20)
#define RING_MAX ((size_t)256 << 20) /* larger only for a single job that is */
#define RINGS_MAX (2 * RING_MAX)
#define LEAN_ROUNDS 64
#define RELEASE_MS 1000

/* head and tail count bytes since the start; their rest by the size is the place. */
struct staging_ring {
    struct staging_ring *next; /* older */
    struct session *session;
    struct shared_memory memory;
    uint64_t buffer;
    uint64_t head, tail;
    size_t blocks;
    size_t peak;   /* bytes in use at most, since it was last empty */
    unsigned lean; /* times that it became empty with a peak far below its size */
};

void staging_init(struct staging *s) {
    *s = (struct staging){0};
    s->end = &s->first;
}

/* --- rings --------------------------------------------------------------------------------------------- */

static void free_ring(struct staging *s, struct staging_ring *ring) {
    struct staging_ring **link = &s->rings;
    while (*link != ring)
        link = &(*link)->next;
    *link = ring->next;
    s->bytes -= ring->memory.size;
    session_release(ring->session, ring->buffer, deadline_in(RELEASE_MS));
    session_drop(ring->session);
    shared_memory_destroy(&ring->memory);
    free(ring);
}

void staging_destroy(struct staging *s) {
    while (s->first)
        staging_finish(s, false);
    while (s->rings)
        free_ring(s, s->rings);
}

size_t staging_growth(const struct staging *s, size_t bytes) {
    size_t size = s->rings ? 2 * s->rings->memory.size : RING_MIN;
    if (size < 2 * bytes)
        size = 2 * bytes;
    if (size > RING_MAX)
        size = bytes > RING_MAX ? bytes : RING_MAX;
    return s->first && s->bytes + size > RINGS_MAX ? 0 : size;
}

kdad_status staging_ring_new(struct session *session, size_t bytes, int64_t deadline,
                             struct staging_ring **ring) {
    struct staging_ring *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(KDAD_NO_MEMORY, "memory: out of memory");
    kdad_status status = shared_memory_create(&r->memory, bytes, "kdad-staging", false);
    if (status == KDAD_OK)
        status = session_register(session, r->memory.fd.fd, r->memory.size, deadline, &r->buffer);
    forked_close(&r->memory.fd); /* a ring is never registered again */
    if (status != KDAD_OK) {
        shared_memory_destroy(&r->memory);
        free(r);
        return status;
    }
    r->session = session_hold(session);
    *ring = r;
    return KDAD_OK;
}

void staging_add(struct staging *s, struct staging_ring *ring) {
    struct staging_ring *old = s->rings;
    ring->next = old;
    s->rings = ring;
    s->bytes += ring->memory.size;
    if (old && old->blocks == 0)
        free_ring(s, old);
}

/* Called when the last block was given back. */
static void rest_ring(struct staging *s, struct staging_ring *ring) {
    ring->lean = ring->peak < ring->memory.size / 8 ? ring->lean + 1 : 0;
    ring->head = ring->tail = ring->peak = 0;
    if (ring != s->rings || (ring->lean >= LEAN_ROUNDS && ring->memory.size > RING_MIN))
        free_ring(s, ring);
}

/* --- blocks -------------------------------------------------------------------------------------------- */

/* An output in place of its incoming gradient: a legal problem has no other with the same address. */
static bool is_in_place(const struct problem *p, enum operand o) {
    return operand_is_output(o) && p->at[o].offset == p->at[o - (OPERAND_DQ_OUT - OPERAND_DQ)].offset;
}

/* Places an operand at the block's end, without gaps; expanded dimensions stay expanded. */
static bool plan_operand(struct staged *j, enum operand o) {
    int64_t shape[4];
    int ndim = problem_shape(&j->problem, o, shape);
    int64_t count = shape[ndim - 1];
    size_t bytes;
    for (int i = 2; i >= 0; i--) {
        j->at[o].stride[i] = i < ndim - 1 ? 0 : 1;
        if (i >= ndim - 1 || (j->problem.at[o].stride[i] == 0 && shape[i] > 1))
            continue;
        j->at[o].stride[i] = count;
        if (__builtin_mul_overflow(count, shape[i], &count))
            return false;
    }
    j->at[o].offset = j->bytes;
    if (__builtin_mul_overflow((size_t)count, dtype_size(problem_dtype(&j->problem, o)), &bytes) ||
        __builtin_add_overflow(j->bytes, bytes, &j->bytes) || j->bytes > SIZE_MAX / 8)
        return false;
    j->bytes = (j->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return true;
}

struct staged *staging_plan(const struct problem *problem, uint32_t plain) {
    struct staged *j = calloc(1, sizeof *j);
    if (!j) {
        error_say("memory: out of memory");
        return NULL;
    }
    j->problem = *problem;
    j->plain = plain;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (!(plain & 1u << o))
            continue;
        if (is_in_place(problem, o)) {
            j->at[o] = j->at[o - (OPERAND_DQ_OUT - OPERAND_DQ)];
        } else if (!plan_operand(j, o)) {
            error_say("memory: %s is too large to be copied", operand_name(o));
            free(j);
            return NULL;
        }
    }
    return j;
}

bool staging_reserve(struct staging *s, struct staged *j) {
    struct staging_ring *ring = s->rings;
    if (!ring || j->bytes > ring->memory.size)
        return false;
    uint64_t place = ring->head % ring->memory.size;
    uint64_t start =
        place + j->bytes > ring->memory.size ? ring->head + ring->memory.size - place : ring->head;
    if (start + j->bytes - ring->tail > ring->memory.size)
        return false;
    j->ring = ring;
    j->start = start;
    j->end = ring->head = start + j->bytes;
    if (ring->head - ring->tail > ring->peak)
        ring->peak = ring->head - ring->tail;
    ring->blocks++;
    return true;
}

void staging_commit(struct staging *s, struct staged *j, kdad_ticket ticket) {
    j->ticket = ticket;
    *s->end = j;
    s->end = &j->next;
}

/* The block is the newest: the ring's head goes back. */
void staging_cancel(struct staging *s, struct staged *j) {
    if (!j)
        return;
    if (j->ring) {
        j->ring->head = j->start;
        if (--j->ring->blocks == 0)
            rest_ring(s, j->ring);
    }
    free(j);
}

static char *block_of(const struct staged *j) {
    return j->ring->memory.base + j->start % j->ring->memory.size;
}

void staging_view(const struct staged *j, enum operand o, struct operand_view *view) {
    view->allocation = j->ring->buffer;
    view->offset = j->start % j->ring->memory.size + j->at[o].offset;
    memcpy(view->stride, j->at[o].stride, sizeof view->stride);
}

/* --- copies -------------------------------------------------------------------------------------------- */

/* Copies an operand's elements from one set of strides to another, in runs as long as both allow. */
static void copy_strided(const struct problem *p, enum operand o, char *to, const int64_t to_stride[3],
                         const char *from, const int64_t from_stride[3]) {
    int64_t shape[4], count[3] = {1, 1, 1}, to_step[3] = {0}, from_step[3] = {0};
    int ndim = problem_shape(p, o, shape), dims = 0;
    int64_t size = (int64_t)dtype_size(problem_dtype(p, o)), run = shape[ndim - 1] * size;
    for (int i = ndim - 2; i >= 0; i--) {
        int64_t t = to_stride[i] * size, f = from_stride[i] * size;
        if (shape[i] == 1 || (t == 0 && f == 0))
            continue;
        if (dims == 0 && t == run && f == run) {
            run *= shape[i];
            continue;
        }
        count[dims] = shape[i];
        to_step[dims] = t;
        from_step[dims++] = f;
    }
    for (int64_t c = 0; c < count[2]; c++) {
        for (int64_t b = 0; b < count[1]; b++) {
            char *t = to + c * to_step[2] + b * to_step[1];
            const char *f = from + c * from_step[2] + b * from_step[1];
            for (int64_t a = 0; a < count[0]; a++, t += to_step[0], f += from_step[0])
                memcpy(t, f, (size_t)run);
        }
    }
}

void staging_copy_in(const struct staged *j) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        const struct operand_view *v = &j->problem.at[o];
        if ((j->plain & 1u << o) && !operand_is_output(o))
            copy_strided(&j->problem, o, block_of(j) + j->at[o].offset, j->at[o].stride,
                         (const char *)(uintptr_t)v->offset, v->stride);
    }
}

static void copy_out(const struct staged *j) {
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++) {
        const struct operand_view *v = &j->problem.at[o];
        if (j->plain & 1u << o)
            copy_strided(&j->problem, o, (char *)(uintptr_t)v->offset, v->stride,
                         block_of(j) + j->at[o].offset, j->at[o].stride);
    }
}

void staging_finish(struct staging *s, bool copy) {
    struct staged *j = s->first;
    if (copy)
        copy_out(j);
    s->first = j->next;
    if (!s->first)
        s->end = &s->first;
    j->ring->tail = j->end;
    if (--j->ring->blocks == 0)
        rest_ring(s, j->ring);
    free(j);
}

/* --- conflicts ----------------------------------------------------------------------------------------- */

static bool touches(const struct problem *p, uint32_t plain, uint64_t start, uint64_t end) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if ((plain & 1u << o) && p->at[o].offset < end && start < p->at[o].offset + problem_extent(p, o))
            return true;
    }
    return false;
}

kdad_ticket staging_conflict(const struct staging *s, const struct problem *p, uint32_t plain) {
    kdad_ticket last = 0;
    for (const struct staged *j = s->first; j; j = j->next) {
        for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++) {
            uint64_t start = j->problem.at[o].offset;
            if ((j->plain & 1u << o) && touches(p, plain, start, start + problem_extent(&j->problem, o)))
                last = j->ticket;
        }
    }
    return last;
}
