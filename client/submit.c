/*
 * submit.c - from arguments to a SUBMIT packet. Runs on the stream's submitting thread.
 *
 * The problem is checked with addresses as offsets into one allocation that is the whole address space, so
 * that overlap is found whatever the memory is; then each operand is given the buffer that it lies in, or
 * that it is copied to. With kdad_alloc's memory this takes no memory, and no system call but sendmsg.
 */
#include "client/deadline.h"
#include "client/stream.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define ATTEMPTS 3 /* of a submission that finds its session lost */

typedef struct kdad_chunk_kda_bwd_intra_args arguments;

static const size_t fields[OPERAND_COUNT] = {
    [OPERAND_Q] = offsetof(arguments, q),
    [OPERAND_K] = offsetof(arguments, k),
    [OPERAND_G] = offsetof(arguments, g),
    [OPERAND_BETA] = offsetof(arguments, beta),
    [OPERAND_DAQK] = offsetof(arguments, dAqk),
    [OPERAND_DAKK] = offsetof(arguments, dAkk),
    [OPERAND_DQ] = offsetof(arguments, dq),
    [OPERAND_DK] = offsetof(arguments, dk),
    [OPERAND_DB] = offsetof(arguments, db),
    [OPERAND_DG] = offsetof(arguments, dg),
    [OPERAND_DQ_OUT] = offsetof(arguments, dq_out),
    [OPERAND_DK_OUT] = offsetof(arguments, dk_out),
    [OPERAND_DB_OUT] = offsetof(arguments, db_out),
    [OPERAND_DG_OUT] = offsetof(arguments, dg_out),
    [OPERAND_CU_SEQLENS] = offsetof(arguments, cu_seqlens),
};

/* --- checking ------------------------------------------------------------------------------------------ */

static void describe(const struct kdad_tensor *tensor, struct operand_tensor *t) {
    t->allocation = 0;
    t->allocation_size = UINT64_MAX;
    t->offset = (uintptr_t)tensor->data;
    t->dtype = (enum dtype)tensor->dtype;
    t->ndim = tensor->ndim;
    for (int i = 0; i < 4; i++) {
        t->shape[i] = tensor->shape[i];
        t->stride[i] = tensor->stride[i];
    }
}

static kdad_status check_chunk_indices(const struct kdad_tensor *t) {
    if (t->ndim == 0)
        return KDAD_OK;
    if (t->ndim != 2)
        return error_set(KDAD_INVALID, "chunk_indices: has %d dimensions, but must have 2", t->ndim);
    if (t->shape[0] < 0 || t->shape[1] != 2)
        return error_set(KDAD_INVALID, "chunk_indices: shape is [%lld, %lld], but must be [NT, 2]",
                         (long long)t->shape[0], (long long)t->shape[1]);
    if (t->dtype != KDAD_I64)
        return error_set(KDAD_INVALID, "chunk_indices: type is not int64");
    return KDAD_OK;
}

static kdad_status make_problem(const arguments *args, struct problem *p) {
    struct operand_tensor tensors[OPERAND_COUNT];
    char why[PROBLEM_WHY];
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        describe((const struct kdad_tensor *)((const char *)args + fields[o]), &tensors[o]);
    if (!problem_from_tensors(p, tensors, args->chunk_size, why))
        return error_set(KDAD_INVALID, "%s", why);
    for (enum operand o = 0; o < OPERAND_COUNT && !problem_is_empty(p); o++) {
        if (problem_has(p, o) && p->at[o].offset == 0)
            return error_set(KDAD_INVALID, "%s: data is NULL", operand_name(o));
    }
    if (!problem_check(p, why))
        return error_set(KDAD_INVALID, "%s", why);
    return check_chunk_indices(&args->chunk_indices);
}

/* Sets the stream's problem. It follows from the arguments alone: equal ones need no second check. */
static kdad_status check_arguments(struct kdad_stream *s, const arguments *args) {
    if (!args)
        return error_set(KDAD_INVALID, "args: is NULL");
    if (s->checked && memcmp(args, &s->args, sizeof *args) == 0)
        return KDAD_OK;
    s->checked = false;
    kdad_status status = make_problem(args, &s->problem);
    if (status != KDAD_OK)
        return status;
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        s->extent[o] = problem_has(&s->problem, o) ? problem_extent(&s->problem, o) : 0;
    s->args = *args;
    s->checked = true;
    return KDAD_OK;
}

/* --- placing ------------------------------------------------------------------------------------------- */

/* Gives operands the buffers they lie in. plain: those that lie in none. unknown: the address of one that the
 * session has not registered, where the search stops. With the memory's lock. */
static kdad_status place_operands(struct kdad_stream *s, uint32_t *plain, uintptr_t *unknown) {
    const struct problem *p = &s->problem;
    const struct memory *memory = &s->connection->memory;
    uint64_t serial = s->track->session->serial;
    struct problem *placed = &s->message.submit.problem;
    *plain = 0;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (!problem_has(p, o))
            continue;
        uintptr_t address = p->at[o].offset;
        switch (memory_find(memory, address, s->extent[o], &s->hint)) {
        case MEMORY_PLAIN:
            *plain |= 1u << o;
            break;
        case MEMORY_PARTLY:
            return error_set(KDAD_INVALID, "%s: lies only partly in memory of kdad_alloc", operand_name(o));
        case MEMORY_REGION: {
            const struct region *region = memory->regions[s->hint];
            if (region->serial != serial) {
                *unknown = address;
                return KDAD_OK;
            }
            placed->at[o].allocation = region->buffer;
            placed->at[o].offset = address - (uintptr_t)region->memory.base;
            break;
        }
        }
    }
    return KDAD_OK;
}

/* Makes the message's problem. Registers what the daemon does not know yet, one region a round. */
static kdad_status place(struct kdad_stream *s, uint32_t *plain) {
    struct memory *memory = &s->connection->memory;
    *plain = 0;
    s->message.submit.problem = s->problem;
    if (problem_is_empty(&s->problem)) {
        for (enum operand o = 0; o < OPERAND_COUNT; o++)
            s->message.submit.problem.at[o].offset = 0;
        return KDAD_OK;
    }
    if (s->cuda) {
        pthread_mutex_unlock(&s->lock);
        kdad_status status =
            cuda_memory_place(&s->connection->cuda_memory, s->cuda, s->track->session,
                              &s->message.submit.problem, s->extent, deadline_in(s->connection->timeout_ms));
        pthread_mutex_lock(&s->lock);
        return status;
    }
    for (;;) {
        uintptr_t unknown = 0;
        pthread_rwlock_rdlock(&memory->lock);
        kdad_status status = place_operands(s, plain, &unknown);
        pthread_rwlock_unlock(&memory->lock);
        if (status != KDAD_OK || unknown == 0)
            return status;
        pthread_mutex_unlock(&s->lock);
        status = memory_register(memory, s->track->session, unknown, deadline_in(s->connection->timeout_ms));
        pthread_mutex_lock(&s->lock);
        if (status != KDAD_OK)
            return status;
    }
}

/* --- staging ------------------------------------------------------------------------------------------- */

/* Waits for a job of this stream, for as long as jobs go on ending, and copies outputs up to it. Its own
 * failure is no failure here. */
static kdad_status finish(struct kdad_stream *s, kdad_ticket ticket, kdad_status *job) {
    _Atomic uint64_t *done = &s->track->timeline->done;
    uint64_t before;
    do {
        before = atomic_load(done);
        *job = stream_await(s, ticket, deadline_in(s->connection->timeout_ms));
    } while (*job == KDAD_PENDING && atomic_load(done) != before);
    if (*job == KDAD_PENDING)
        return error_set(KDAD_TIMEOUT, "stream: job %llu, which must end first, is not done in time",
                         (unsigned long long)ticket);
    stream_settle(s, ticket);
    return KDAD_OK;
}

/* Plain memory that an earlier job has yet to write: that job first. Failed, it is an error of this
 * submission, which would work on what was never computed. If it is lost, stream_ready will say so. */
static kdad_status resolve_conflict(struct kdad_stream *s, uint32_t plain) {
    kdad_ticket ticket = staging_conflict(&s->staging, &s->problem, plain);
    kdad_status job = KDAD_OK;
    kdad_status status = ticket ? finish(s, ticket, &job) : KDAD_OK;
    if (status != KDAD_OK || job == KDAD_OK || job == KDAD_DAEMON_LOST)
        return status != KDAD_OK ? status : job;
    return stream_job_error(s, ticket, job);
}

/* Finds room for a block: in the ring, in a larger one, or behind the oldest block. */
static kdad_status reserve(struct kdad_stream *s, struct staged *j) {
    int64_t deadline = deadline_in(s->connection->timeout_ms);
    while (!staging_reserve(&s->staging, j)) {
        size_t bytes = staging_growth(&s->staging, j->bytes);
        kdad_status status = KDAD_OK, job;
        if (bytes > 0) {
            struct staging_ring *ring;
            pthread_mutex_unlock(&s->lock);
            status = staging_ring_new(s->track->session, bytes, deadline, &ring);
            pthread_mutex_lock(&s->lock);
            if (status == KDAD_OK) {
                staging_add(&s->staging, ring);
                continue;
            }
        }
        if (!s->staging.first)
            return status;
        status = finish(s, s->staging.first->ticket, &job);
        if (status != KDAD_OK)
            return status;
    }
    return KDAD_OK;
}

/* Copies plain operands to a block, and gives them its buffer. NULL and the error, or the block. */
static kdad_status stage(struct kdad_stream *s, uint32_t plain, struct staged **staged) {
    struct problem *placed = &s->message.submit.problem;
    kdad_status status = resolve_conflict(s, plain);
    if (status != KDAD_OK)
        return status;
    *staged = staging_plan(&s->problem, plain);
    if (!*staged)
        return KDAD_NO_MEMORY;
    status = reserve(s, *staged);
    if (status != KDAD_OK)
        return status;
    pthread_mutex_unlock(&s->lock);
    staging_copy_in(*staged);
    pthread_mutex_lock(&s->lock);
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (plain & 1u << o)
            staging_view(*staged, o, &placed->at[o]);
    }
    return KDAD_OK;
}

/* --- sending ------------------------------------------------------------------------------------------- */

/* Waits until the timeline has a slot for the next job. */
static kdad_status take_slot(struct kdad_stream *s) {
    kdad_status job;
    if (s->last - s->base < WIRE_STREAM_SLOTS)
        return KDAD_OK;
    kdad_ticket old = s->last + 1 - WIRE_STREAM_SLOTS;
    kdad_status status = finish(s, old, &job);
    if (status == KDAD_OK && !s->ended)
        stream_reuse_slot(s, old);
    return status;
}

static kdad_status send_job(struct kdad_stream *s) {
    struct track *t = s->track;
    kdad_status status = take_slot(s);
    if (status != KDAD_OK)
        return status;
    s->message.opcode = WIRE_SUBMIT;
    s->message.id = 0;
    s->message.submit.stream = t->wire_stream;
    s->message.submit.ticket = s->last + 1 - t->base;
    s->message.submit.operation = WIRE_CHUNK_KDA_BWD_INTRA;
    size_t size;
    const void *data = wire_encode(s->codec, &s->message, &size);
    if (!data)
        return error_set(KDAD_INTERNAL, "job: is too long for a packet");
    if (!s->cuda) /* else the trainer's stream says so */
        atomic_store_explicit(&t->timeline->ready, s->message.submit.ticket, memory_order_release);
    while (!s->ended) {
        status = session_try_send(t->session, data, size, NULL, 0);
        if (status != KDAD_PENDING)
            return status;
        pthread_mutex_unlock(&s->lock);
        status = session_wait_writable(t->session, deadline_in(s->connection->timeout_ms));
        pthread_mutex_lock(&s->lock);
        if (status != KDAD_OK)
            return status;
    }
    return session_lost_error(t->session, "job");
}

/* One attempt, in the session of the moment. With the lock. */
static kdad_status submit_from_host(struct kdad_stream *s) {
    struct staged *staged = NULL;
    uint32_t plain;
    kdad_status status = place(s, &plain);
    if (status == KDAD_OK && plain != 0)
        status = stage(s, plain, &staged);
    if (status == KDAD_OK)
        status = send_job(s);
    if (status != KDAD_OK) {
        staging_cancel(&s->staging, staged);
        return status;
    }
    s->last++;
    s->connection->jobs_daemon++;
    if (staged)
        staging_commit(&s->staging, staged, s->last);
    return KDAD_OK;
}

/* --- GPUs ---------------------------------------------------------------------------------------------- */

/* The daemon gets an empty job, which takes the ticket; the job itself is for this process. Memory that the
 * daemon cannot map was found: the error is set. */
static kdad_status take_over(struct kdad_stream *s) {
    struct problem *empty = &s->message.submit.problem;
    char why[PROBLEM_WHY];
    snprintf(why, sizeof why, "%s", kdad_error());
    kdad_status status = stream_open_local(s);
    if (status != KDAD_OK) {
        char other[PROBLEM_WHY];
        snprintf(other, sizeof other, "%s", kdad_error());
        return error_set(status, "%s; and this process cannot do it: %s", why, other);
    }
    *empty = s->problem;
    empty->T = 0;
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        empty->at[o].offset = 0;
    return KDAD_OK;
}

/* Puts the job that was sent on the trainer's stream. */
static kdad_status follow(struct kdad_stream *s, bool here) {
    const struct track *t = s->track;
    kdad_ticket ticket = s->last + 1;
    bool captured;
    if (!here) {
        if (s->local)
            local_clear(s->local, ticket);
        return cuda_stream_follow(s->cuda, t->timeline, t->cuda_address, ticket - t->base, &s->problem);
    }
    kdad_status status = local_submit(s->local, &s->problem, s->extent, ticket, &captured);
    return status == KDAD_OK ? cuda_stream_tell(s->cuda, t->timeline, t->cuda_address, ticket - t->base)
                             : status;
}

/* One attempt. A job that was sent, but that the trainer's stream did not take, can neither be run nor taken
 * back: the session is given up, and what the stream did take is released with it. */
static kdad_status submit_from_gpu(struct kdad_stream *s) {
    uint32_t plain;
    kdad_status status = cuda_stream_check(s->cuda);
    if (status != KDAD_OK)
        return status;
    status = place(s, &plain);
    bool here = status == KDAD_UNSUPPORTED;
    bool placed = status == KDAD_OK && !problem_is_empty(&s->problem);
    if (here)
        status = take_over(s);
    if (status == KDAD_OK)
        status = send_job(s);
    if (placed)
        cuda_memory_placed(&s->connection->cuda_memory, s->track->session, &s->message.submit.problem,
                           deadline_in(s->connection->timeout_ms));
    if (status != KDAD_OK)
        return status;
    status = follow(s, here);
    if (status != KDAD_OK) {
        session_end(s->track->session);
        return status;
    }
    s->last++;
    if (here)
        s->connection->jobs_in_process++;
    else
        s->connection->jobs_daemon++;
    return KDAD_OK;
}

/* --- in this process ----------------------------------------------------------------------------------- */

static kdad_status submit_locally(struct kdad_stream *s, kdad_ticket *ticket) {
    kdad_status status = KDAD_OK;
    bool captured;
    if (s->last >= WIRE_STREAM_SLOTS)
        status = stream_await(s, s->last + 1 - WIRE_STREAM_SLOTS, deadline_in(s->connection->timeout_ms));
    if (status == KDAD_PENDING)
        return error_set(KDAD_TIMEOUT, "stream: none of its %d jobs is done in time", WIRE_STREAM_SLOTS);
    pthread_mutex_unlock(&s->lock);
    status = local_submit(s->local, &s->problem, s->extent, s->last + 1, &captured);
    pthread_mutex_lock(&s->lock);
    if (status != KDAD_OK)
        return status;
    if (captured) {
        s->connection->jobs_captured++;
        *ticket = 0;
    } else {
        s->connection->jobs_in_process++;
        *ticket = ++s->last;
    }
    return KDAD_OK;
}

/* --- public -------------------------------------------------------------------------------------------- */

/* Until the session holds. */
static kdad_status submit_to_daemon(struct kdad_stream *s, kdad_ticket *ticket) {
    kdad_status status = KDAD_OK;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        status = stream_ready(s);
        if (status != KDAD_OK)
            return status;
        status = s->cuda ? submit_from_gpu(s) : submit_from_host(s);
        if (status != KDAD_DAEMON_LOST)
            break;
    }
    *ticket = s->last;
    return status;
}

KDAD_API kdad_status kdad_chunk_kda_bwd_intra(struct kdad_stream *stream,
                                              const struct kdad_chunk_kda_bwd_intra_args *args,
                                              kdad_ticket *ticket) {
    kdad_status status = stream_check(stream);
    if (status == KDAD_OK)
        status = check_arguments(stream, args);
    if (status != KDAD_OK)
        return status;
    kdad_ticket given;
    pthread_mutex_lock(&stream->lock);
    status =
        stream->connection->in_process ? submit_locally(stream, &given) : submit_to_daemon(stream, &given);
    if (status == KDAD_OK && ticket)
        *ticket = given;
    pthread_mutex_unlock(&stream->lock);
    return status;
}
