/*
 * stream.c - opening and closing streams, waiting for jobs, and what a loss leaves behind.
 */
#include "client/stream.h"

#include "client/deadline.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPIN_MAX_NS 30000
#define SPIN_MIN_NS 1000
#define SLEEP_NS INT64_C(500000000) /* a wait looks up at least that often */
#define NAP_MIN_NS 60000            /* shorter naps are not worth their wake-up */
#define NAP_MAX_NS 5000000
#define LOCAL_NAP_MIN_NS 10000 /* a wait for a job in this process */
#define LOCAL_NAP_MAX_NS 500000
#define OPEN_ATTEMPTS 3

static inline void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

kdad_status stream_check(const struct kdad_stream *s) {
    return s ? connection_check(s->connection) : error_set(KDAD_INVALID, "stream: is NULL");
}

/* --- tracks -------------------------------------------------------------------------------------------- */

static void free_track(struct track *t) {
    session_detach(t->session, t);
    if (t->cuda_address)
        cuda_timeline_unregister(t->cuda, t->timeline);
    timeline_unmap(t->timeline);
    session_drop(t->session);
    free(t);
}

static void free_retired(struct kdad_stream *s) {
    while (s->retired && !s->waiters) {
        struct track *t = s->retired;
        s->retired = t->next;
        free_track(t);
    }
}

/* Makes a track of the daemon's answer to STREAM_OPEN. */
static kdad_status map_track(struct session *session, struct cuda_stream *cuda, struct session_reply *reply,
                             struct track **track) {
    const struct wire_stream_open_reply *opened = &reply->message.stream_open_reply;
    if (reply->packet.lost)
        return error_set(KDAD_NO_MEMORY, "stream: this process has no descriptor left for its timeline");
    struct track *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(KDAD_NO_MEMORY, "stream: out of memory");
    if (reply->packet.fd_count != 1 || opened->slots != WIRE_STREAM_SLOTS) {
        free(t);
        return error_set(KDAD_PROTOCOL,
                         "stream: the daemon gave it %u slots and %d descriptors, not %d and 1",
                         opened->slots, reply->packet.fd_count, WIRE_STREAM_SLOTS);
    }
    t->timeline = timeline_map(reply->packet.fds[0]);
    if (!t->timeline) {
        free(t);
        return error_set(KDAD_NO_MEMORY, "stream: its timeline cannot be mapped: %m");
    }
    madvise(t->timeline, sizeof *t->timeline, MADV_DONTFORK);
    t->session = session_hold(session);
    t->wire_stream = opened->stream;
    t->cuda = cuda;
    kdad_status status = cuda ? cuda_timeline_register(cuda, t->timeline, &t->cuda_address) : KDAD_OK;
    if (status != KDAD_OK) {
        free_track(t);
        return status;
    }
    if (!session_attach(session, t)) {
        free_track(t);
        session_lost_error(session, "stream");
        return KDAD_DAEMON_LOST;
    }
    *track = t;
    return KDAD_OK;
}

static kdad_status open_track(struct kdad_stream *s, struct session *session, struct track **track) {
    struct wire_message request = {.opcode = WIRE_STREAM_OPEN};
    struct session_reply reply;
    request.stream_open.device = wire_string(s->device);
    int64_t deadline = deadline_in(s->connection->timeout_ms);
    kdad_status status = session_request(session, &request, NULL, 0, deadline, &reply);
    if (status != KDAD_OK)
        return status;
    status = map_track(session, s->cuda, &reply, track);
    session_reply_free(&reply);
    return status;
}

/* A new track in a session that lives, which may take a second attempt: its loss may not be known yet. */
static kdad_status open_anew(struct kdad_stream *s, struct track **track) {
    kdad_status status;
    for (int attempt = 0; attempt < OPEN_ATTEMPTS; attempt++) {
        struct session *session;
        status = connection_session(s->connection, &session);
        if (status != KDAD_OK)
            return status;
        status = open_track(s, session, track);
        session_drop(session);
        if (status != KDAD_DAEMON_LOST)
            return status;
    }
    return status;
}

/* --- the end of a track -------------------------------------------------------------------------------- */

/* Remembers the first of the last jobs that never ran, unless a call has told of it already. */
static void note_untold(struct kdad_stream *s, kdad_ticket first, kdad_ticket done) {
    kdad_ticket at = done;
    while (at >= first && s->status[at % WIRE_STREAM_SLOTS] == KDAD_CANCELLED)
        at--;
    if (at == s->last || s->told == s->last)
        return;
    s->untold = done < s->last ? KDAD_DAEMON_LOST : KDAD_CANCELLED;
    s->untold_first = at + 1;
}

/* What the daemon says of a job of the track's that is done, or what it found in its data if it ran here. */
static kdad_status job_status(const struct kdad_stream *s, uint64_t wire) {
    kdad_status status = error_status(s->track->timeline->status[wire % WIRE_STREAM_SLOTS]);
    return status == KDAD_OK && s->local ? local_verdict(s->local, s->base + wire) : status;
}

/* The track's session is lost: writes down what became of its jobs, and copies the outputs of those done. */
static void end_track(struct kdad_stream *s) {
    const struct track *t = s->track;
    uint64_t jobs = s->last - s->base;
    uint64_t done =
        t->done_at_end <= jobs ? t->done_at_end : 0; /* more than there are is not to be believed */
    uint64_t first = jobs > WIRE_STREAM_SLOTS ? jobs - WIRE_STREAM_SLOTS + 1 : 1;
    for (uint64_t n = first; n <= jobs; n++) {
        kdad_status status = n <= done ? job_status(s, n) : KDAD_DAEMON_LOST;
        s->status[(s->base + n) % WIRE_STREAM_SLOTS] = (int16_t)status;
    }
    note_untold(s, s->base + first, s->base + done);
    s->base = s->last;
    s->ended = true;
    stream_settle(s, s->last);
}

/* What is known of a ticket, one of the last 1,024: KDAD_PENDING until its job is done. With the lock. */
static kdad_status look(struct kdad_stream *s, kdad_ticket ticket) {
    struct track *t = s->track;
    if (!s->ended && atomic_load_explicit(&t->lost, memory_order_acquire))
        end_track(s);
    if (ticket <= s->base)
        return (kdad_status)s->status[ticket % WIRE_STREAM_SLOTS];
    uint64_t wire = ticket - s->base;
    uint64_t done = atomic_load_explicit(&t->timeline->done, memory_order_acquire);
    if (done == TIMELINE_LOST) { /* the reader is about to say so */
        session_end(t->session);
        return look(s, ticket);
    }
    return done >= wire ? job_status(s, wire) : KDAD_PENDING;
}

void stream_settle(struct kdad_stream *s, kdad_ticket ticket) {
    while (s->staging.first && s->staging.first->ticket <= ticket) {
        kdad_ticket first = s->staging.first->ticket;
        kdad_status status = look(s, first); /* may end the track, which settles all */
        if (s->staging.first && s->staging.first->ticket == first)
            staging_finish(&s->staging, status == KDAD_OK || status == KDAD_BAD_DATA);
    }
}

void stream_reuse_slot(struct kdad_stream *s, kdad_ticket old) {
    stream_settle(s, old);
    for (struct stream_waiter *w = s->waiters; w; w = w->next) {
        if (w->ticket == old && w->status == KDAD_PENDING)
            w->status = look(s, old);
    }
}

kdad_status stream_open_local(struct kdad_stream *s) {
    struct local *local;
    kdad_status status = s->local ? KDAD_OK : connection_local(s->connection, &local);
    return status == KDAD_OK && !s->local ? local_stream_open(local, s->cuda, &s->local) : status;
}

static kdad_status tell(struct kdad_stream *s) {
    kdad_status status = s->untold;
    s->untold = KDAD_OK;
    if (status == KDAD_CANCELLED)
        return error_set(status,
                         "stream: jobs from %llu on were cancelled; the next submission connects anew",
                         (unsigned long long)s->untold_first);
    pthread_mutex_lock(&s->track->session->lock);
    error_say("stream: jobs from %llu on were lost with the daemon (%s); the next submission connects anew",
              (unsigned long long)s->untold_first, s->track->session->end);
    pthread_mutex_unlock(&s->track->session->lock);
    return status;
}

kdad_status stream_ready(struct kdad_stream *s) {
    struct track *fresh;
    if (s->track) {
        if (!s->ended && atomic_load_explicit(&s->track->lost, memory_order_acquire))
            end_track(s);
        if (!s->ended)
            return KDAD_OK;
        if (s->untold != KDAD_OK)
            return tell(s);
    }
    pthread_mutex_unlock(&s->lock);
    kdad_status status = open_anew(s, &fresh);
    pthread_mutex_lock(&s->lock);
    if (status != KDAD_OK)
        return status;
    staging_destroy(&s->staging);
    if (s->track) {
        session_detach(s->track->session, s->track);
        s->track->next = s->retired;
        s->retired = s->track;
    }
    free_retired(s);
    fresh->base = s->base;
    s->track = fresh;
    s->ended = false;
    return KDAD_OK;
}

/* --- waiting ------------------------------------------------------------------------------------------- */

static bool has_passed(const struct track *t, uint64_t wire) {
    return atomic_load_explicit(&t->timeline->done, memory_order_acquire) >= wire ||
           atomic_load_explicit(&t->lost, memory_order_acquire);
}

/* Spins for as long as it has paid lately. True if the job is done, or the daemon lost. */
static bool spin(struct track *t, uint64_t wire, _Atomic uint32_t *spin_ns) {
    uint32_t budget = atomic_load_explicit(spin_ns, memory_order_relaxed);
    if (budget == 0)
        return has_passed(t, wire);
    int64_t end = deadline_now() + budget;
    bool passed;
    do {
        for (int i = 0; i < 16 && !has_passed(t, wire); i++)
            pause_cpu();
        sched_yield(); /* the daemon may be waiting for this processor */
        passed = has_passed(t, wire);
    } while (!passed && deadline_now() < end);
    if (passed)
        budget = budget < SPIN_MAX_NS / 2 ? 2 * budget : SPIN_MAX_NS;
    else
        budget = budget > 2 * SPIN_MIN_NS ? budget / 2 : SPIN_MIN_NS;
    atomic_store_explicit(spin_ns, budget, memory_order_relaxed);
    return passed;
}

/* Sleeps once. A job that is many jobs off is slept for by the clock at first, so that the daemon need not
 * wake this thread for each. since and before: when the wait began, and what was done then. */
static void sleep_once(struct track *t, uint64_t wire, int64_t deadline, int64_t since, uint64_t before) {
    uint64_t done = atomic_load_explicit(&t->timeline->done, memory_order_acquire);
    int64_t left = deadline_left(deadline);
    if (done >= wire)
        return;
    if (done > before && wire - done > 1) {
        int64_t nap = (deadline_now() - since) / (int64_t)(done - before) * (int64_t)((wire - done) / 2);
        nap = nap < NAP_MAX_NS ? nap : NAP_MAX_NS;
        if (nap >= NAP_MIN_NS && nap <= left) {
            nanosleep(&(struct timespec){0, nap}, NULL);
            return;
        }
    }
    timeline_sleep(t->timeline, done, left < SLEEP_NS ? left : SLEEP_NS);
}

static void wait_passed(struct track *t, uint64_t wire, int64_t deadline, _Atomic uint32_t *spin_ns) {
    int64_t since = deadline_now();
    uint64_t before = atomic_load_explicit(&t->timeline->done, memory_order_acquire);
    if (spin(t, wire, spin_ns))
        return;
    while (!has_passed(t, wire) && deadline_left(deadline) > 0)
        sleep_once(t, wire, deadline, since, before);
}

/* There is nobody who could wake a thread. */
static kdad_status await_local(struct kdad_stream *s, kdad_ticket ticket, int64_t deadline) {
    int64_t nap = LOCAL_NAP_MIN_NS;
    kdad_status status;
    while ((status = local_look(s->local, ticket, s->last)) == KDAD_PENDING && deadline_left(deadline) > 0) {
        int64_t left = deadline_left(deadline);
        pthread_mutex_unlock(&s->lock);
        nanosleep(&(struct timespec){0, nap < left ? nap : left}, NULL);
        pthread_mutex_lock(&s->lock);
        nap = nap < LOCAL_NAP_MAX_NS / 2 ? 2 * nap : LOCAL_NAP_MAX_NS;
    }
    return status;
}

kdad_status stream_await(struct kdad_stream *s, kdad_ticket ticket, int64_t deadline) {
    if (s->connection->in_process)
        return await_local(s, ticket, deadline);
    kdad_status status = look(s, ticket);
    if (status != KDAD_PENDING || deadline == 0)
        return status;
    struct stream_waiter self = {s->waiters, ticket, KDAD_PENDING};
    s->waiters = &self;
    do {
        struct track *t = s->track;
        uint64_t wire = ticket - t->base;
        pthread_mutex_unlock(&s->lock);
        wait_passed(t, wire, deadline, &s->spin_ns);
        pthread_mutex_lock(&s->lock);
        if (self.status == KDAD_PENDING)
            self.status = look(s, ticket);
    } while (self.status == KDAD_PENDING && deadline_left(deadline) > 0);
    struct stream_waiter **link = &s->waiters;
    while (*link != &self)
        link = &(*link)->next;
    *link = self.next;
    free_retired(s);
    return self.status;
}

kdad_status stream_job_error(struct kdad_stream *s, kdad_ticket ticket, kdad_status status) {
    struct track *t = s->track;
    char text[WIRE_SENTENCE_MAX + 1];
    unsigned long long number = ticket;
    if (status == KDAD_BAD_DATA && s->local && local_verdict(s->local, ticket) == status)
        return error_set(status, "job %llu: %s", number, local_sentence(s->local, ticket));
    if (s->connection->in_process)
        return status;               /* local_look has said it */
    bool current = ticket > t->base; /* else the session that knew more is gone */
    if (current && (status == KDAD_CANCELLED || status == KDAD_DAEMON_LOST)) {
        s->untold = KDAD_OK;
        s->told = s->last;
    }
    if (status == KDAD_CANCELLED)
        return error_set(status, "job %llu: was cancelled before it ran", number);
    if (status == KDAD_DAEMON_LOST && current) {
        snprintf(text, sizeof text, "job %llu", number);
        return session_lost_error(t->session, text);
    }
    if (current && session_sentence(t->session, t, ticket - t->base, text))
        return error_set(status, "job %llu: %s", number, text);
    return error_set(status, "job %llu: %s", number, kdad_status_string(status));
}

static kdad_status check_ticket(const struct kdad_stream *s, kdad_ticket ticket) {
    unsigned long long number = ticket, last = s->last;
    if (ticket == 0 || ticket > s->last)
        return error_set(KDAD_NOT_FOUND, "ticket %llu: the stream's last job is %llu", number, last);
    if (s->last - ticket >= WIRE_STREAM_SLOTS)
        return error_set(KDAD_NOT_FOUND,
                         "ticket %llu: is not one of the last %d; the stream's last job is %llu", number,
                         WIRE_STREAM_SLOTS, last);
    return KDAD_OK;
}

/* deadline 0: only looks. */
static kdad_status wait_for(struct kdad_stream *s, kdad_ticket ticket, int64_t deadline) {
    kdad_status status = stream_check(s);
    if (status != KDAD_OK)
        return status;
    pthread_mutex_lock(&s->lock);
    status = check_ticket(s, ticket);
    if (status == KDAD_OK) {
        status = stream_await(s, ticket, deadline);
        if (status != KDAD_PENDING)
            stream_settle(s, ticket);
        if (status != KDAD_PENDING && status != KDAD_OK)
            stream_job_error(s, ticket, status);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

KDAD_API kdad_status kdad_wait(struct kdad_stream *stream, kdad_ticket ticket, int timeout_ms) {
    kdad_status status = wait_for(stream, ticket, timeout_ms == 0 ? 0 : deadline_in(timeout_ms));
    if (status == KDAD_PENDING)
        return error_set(KDAD_TIMEOUT, "job %llu: is not done after %d ms", (unsigned long long)ticket,
                         timeout_ms);
    return status;
}

KDAD_API kdad_status kdad_poll(struct kdad_stream *stream, kdad_ticket ticket) {
    return wait_for(stream, ticket, 0);
}

/* --- life ---------------------------------------------------------------------------------------------- */

static struct kdad_stream *new_stream(struct kdad_connection *connection, const char *device) {
    struct kdad_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->codec = wire_codec_new();
    if (!s->codec) {
        free(s);
        return NULL;
    }
    s->connection = connection;
    snprintf(s->device, sizeof s->device, "%s", device);
    s->spin_ns = connection->spins ? SPIN_MAX_NS : 0;
    pthread_mutex_init(&s->lock, NULL);
    staging_init(&s->staging);
    pthread_mutex_lock(&connection->lock);
    s->next = connection->streams;
    connection->streams = s;
    pthread_mutex_unlock(&connection->lock);
    return s;
}

void stream_free(struct kdad_stream *s) {
    pthread_mutex_lock(&s->connection->lock);
    struct kdad_stream **link = &s->connection->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    pthread_mutex_unlock(&s->connection->lock);
    staging_destroy(&s->staging);
    free_retired(s);
    if (s->track)
        free_track(s->track);
    local_stream_close(s->local);
    cuda_stream_close(s->cuda);
    pthread_mutex_destroy(&s->lock);
    wire_codec_free(s->codec);
    free(s);
}

/* Takes the trainer's stream in any case. */
static kdad_status open_stream(struct kdad_connection *connection, const char *device,
                               struct cuda_stream *cuda, struct kdad_stream **stream) {
    struct kdad_stream *s = new_stream(connection, device);
    if (!s) {
        cuda_stream_close(cuda);
        return error_set(KDAD_NO_MEMORY, "stream: out of memory");
    }
    s->cuda = cuda;
    pthread_mutex_lock(&s->lock);
    kdad_status status = connection->in_process ? stream_open_local(s) : stream_ready(s);
    pthread_mutex_unlock(&s->lock);
    if (status != KDAD_OK) {
        stream_free(s);
        return status;
    }
    *stream = s;
    return KDAD_OK;
}

KDAD_API kdad_status kdad_cuda_stream_open(struct kdad_connection *connection, void *cuda_stream,
                                           struct kdad_stream **stream) {
    char device[WIRE_NAME_MAX + 1];
    struct cuda_stream *cuda;
    kdad_status status = connection_check(connection);
    if (status == KDAD_OK && !stream)
        status = error_set(KDAD_INVALID, "stream: is NULL");
    if (status != KDAD_OK)
        return status;
    *stream = NULL;
    status = cuda_stream_open(cuda_stream, &cuda, device);
    return status == KDAD_OK ? open_stream(connection, device, cuda, stream) : status;
}

KDAD_API kdad_status kdad_trim(struct kdad_connection *connection) {
    kdad_status status = connection_check(connection);
    struct session *session = status == KDAD_OK ? connection_current(connection) : NULL;
    if (session)
        status = cuda_memory_trim(&connection->cuda_memory, session, deadline_in(connection->timeout_ms));
    session_drop(session);
    return status;
}

KDAD_API kdad_status kdad_stream_open(struct kdad_connection *connection, const char *device,
                                      struct kdad_stream **stream) {
    kdad_status status = connection_check(connection);
    if (status != KDAD_OK)
        return status;
    if (!stream)
        return error_set(KDAD_INVALID, "stream: is NULL");
    *stream = NULL;
    if (!device)
        device = "";
    if (strlen(device) > WIRE_NAME_MAX)
        return error_set(KDAD_INVALID, "device: has %zu characters, but may have at most %d", strlen(device),
                         WIRE_NAME_MAX);
    if (connection->in_process && *device && strcmp(device, "cpu") != 0)
        return error_set(
            KDAD_UNSUPPORTED,
            "device: is '%s', but in this process it is the cpu; kdad_cuda_stream_open is for GPUs", device);
    return open_stream(connection, device, NULL, stream);
}

static kdad_status say_close(struct kdad_stream *s) {
    struct wire_message request = {.opcode = WIRE_STREAM_CLOSE};
    struct session_reply reply;
    request.stream_close.stream = s->track->wire_stream;
    int64_t deadline = deadline_in(s->connection->timeout_ms);
    kdad_status status = session_request(s->track->session, &request, NULL, 0, deadline, &reply);
    if (status == KDAD_OK)
        session_reply_free(&reply);
    return status;
}

KDAD_API kdad_status kdad_stream_close(struct kdad_stream *stream) {
    if (!stream)
        return KDAD_OK;
    kdad_status status = stream_check(stream);
    if (status != KDAD_OK)
        return status;
    if (stream->connection->in_process) {
        stream_free(stream);
        return KDAD_OK;
    }
    bool lost = session_is_lost(stream->track->session);
    if (!lost) {
        status = say_close(stream);
        lost = status == KDAD_DAEMON_LOST;
    }
    if (lost) { /* then it is closed, but jobs may be lost */
        pthread_mutex_lock(&stream->lock);
        if (!stream->ended)
            end_track(stream);
        status = stream->untold != KDAD_OK ? tell(stream) : KDAD_OK;
        pthread_mutex_unlock(&stream->lock);
    }
    stream_free(stream);
    return status;
}
