/*
 * session.c - connecting, the reader thread, requests and replies, and the end of it all.
 *
 * Order at the end, with the lock held: of each timeline the daemon's last word is taken by an exchange with
 * TIMELINE_LOST and stored in done_at_end, then lost is set, then sleepers are woken. So a job is done if the
 * daemon had said so, and never by the word LOST itself.
 */
#include "client/session.h"

#include "client/cuda.h"

#include "client/deadline.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDLE_LOOK_MS 500 /* how often unused GPU memory is looked for */
#define INSIST_MS 200    /* how long a lost timeline is kept so */
#define SENTENCE_WAIT_MS 100

/* A request that waits for its reply; in the requester's frame. */
struct session_request {
    struct session_request *next;
    uint64_t id;
    struct session_reply *reply;
    bool answered;
};

/* --- the reader ---------------------------------------------------------------------------------------- */

static void copy_text(char *to, size_t size, struct wire_string from) {
    snprintf(to, size, "%.*s", (int)from.size, from.data);
}

static void keep_sentence(struct session *s, const struct wire_job_error *error) {
    for (struct track *t = s->tracks; t; t = t->next) {
        if (t->wire_stream != error->stream)
            continue;
        unsigned i = t->sentences++ % SESSION_SENTENCES;
        t->failed = t->sentence[i].ticket = error->ticket;
        copy_text(t->sentence[i].text, sizeof t->sentence[i].text, error->sentence);
    }
}

/* Gives the message and its packet to the request with its id, if there is one. */
static void answer(struct session *s) {
    for (struct session_request *r = s->requests; r; r = r->next) {
        if (r->id != s->message.id || r->answered)
            continue;
        uint8_t *spare = r->reply->packet.data;
        r->reply->message = s->message;
        r->reply->packet = s->packet;
        r->answered = true;
        s->packet.data = spare;
        s->packet.fd_count = 0;
        return;
    }
}

static void dispatch(struct session *s) {
    const struct wire_message *m = &s->message;
    pthread_mutex_lock(&s->lock);
    if (m->opcode == WIRE_JOB_ERROR)
        keep_sentence(s, &m->job_error);
    else if (m->opcode == WIRE_ERROR && m->error.closing)
        copy_text(s->end, sizeof s->end, m->error.sentence);
    else if (m->id != 0)
        answer(s);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Receives one packet into s->packet and s->message. False at the end, with the reason in why. A socket whose
 * peer closed with packets unread says ECONNRESET once, before what is still to be read. A packet that was
 * cut short cannot be decoded; one that lost descriptors, as this process has too many, is its receiver's
 * affair. */
static bool receive(struct session *s, int flags, char why[PROBLEM_WHY]) {
    int n = packet_receive(s->socket.fd, &s->packet, flags);
    if (n < 0 && errno == ECONNRESET)
        n = packet_receive(s->socket.fd, &s->packet, flags);
    if (n <= 0) {
        snprintf(why, PROBLEM_WHY, n == 0 ? "it closed the connection" : "%s", strerror(errno));
        return false;
    }
    return wire_decode(s->codec, s->packet.data, s->packet.size, &s->message, why);
}

static void mark_lost(struct session *s, const char *why) {
    pthread_mutex_lock(&s->lock);
    if (!s->end[0])
        snprintf(s->end, sizeof s->end, "%s", why);
    for (struct track *t = s->tracks; t; t = t->next) {
        t->done_at_end = atomic_exchange(&t->timeline->done, TIMELINE_LOST);
        atomic_store_explicit(&t->lost, true, memory_order_release);
        timeline_set_done(t->timeline, TIMELINE_LOST);
    }
    atomic_store_explicit(&s->lost, true, memory_order_release);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Waits for a packet. Meanwhile GPU memory that no job has used for a while is given back. */
static void wait_readable(struct session *s) {
    struct pollfd readable = {.fd = s->socket.fd, .events = POLLIN};
    struct cuda_memory *memory;
    bool left = true;
    do {
        pthread_mutex_lock(&s->lock);
        memory = left ? s->cuda_memory : NULL;
        pthread_mutex_unlock(&s->lock);
        if (memory)
            left = cuda_memory_release(memory, s, deadline_now() - CUDA_IDLE_NS);
    } while (poll(&readable, 1, memory && left ? IDLE_LOOK_MS : -1) == 0);
}

/* Work that a daemon which died had put on the GPU may still write into a timeline. */
static void insist(struct session *s) {
    for (int i = 0; i < INSIST_MS; i++) {
        bool any = false;
        pthread_mutex_lock(&s->lock);
        for (struct track *t = s->tracks; t; t = t->next) {
            if (t->cuda && atomic_load(&t->timeline->done) != TIMELINE_LOST)
                timeline_set_done(t->timeline, TIMELINE_LOST);
            any |= t->cuda != NULL;
        }
        pthread_mutex_unlock(&s->lock);
        if (!any)
            return;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

static void *read_packets(void *argument) {
    struct session *s = argument;
    char why[PROBLEM_WHY];
    do {
        wait_readable(s);
        if (!receive(s, 0, why))
            break;
        dispatch(s);
        packet_close_fds(&s->packet);
    } while (true);
    packet_close_fds(&s->packet);
    shutdown(s->socket.fd, SHUT_RDWR);
    mark_lost(s, why);
    insist(s);
    return NULL;
}

/* Signals are for the program's own threads. */
static int start_reader(struct session *s) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&s->reader, NULL, read_packets, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_setname_np(s->reader, "kdad-reader");
    return error;
}

/* --- life ---------------------------------------------------------------------------------------------- */

static void free_session(struct session *s) {
    forked_close(&s->socket);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    wire_codec_free(s->codec);
    free(s->packet.data);
    free(s);
}

static struct session *new_session(uint64_t serial) {
    pthread_condattr_t monotonic;
    struct session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->socket.fd = -1;
    s->references = 1;
    s->serial = serial;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->codec = wire_codec_new();
    s->packet.data = malloc(WIRE_PACKET_MAX);
    if (s->codec && s->packet.data)
        return s;
    free_session(s);
    return NULL;
}

static kdad_status connect_error(const char *path) {
    switch (errno) {
    case EACCES:
    case EPERM:
        return error_set(KDAD_DENIED, "socket: %s may not be used by this user: %m", path);
    case EAGAIN:
    case EINTR:
        return error_set(KDAD_TIMEOUT, "socket: the daemon on %s did not accept the connection in time",
                         path);
    default:
        return error_set(KDAD_NO_DAEMON, "no daemon answers on %s: %m", path);
    }
}

/* A full backlog holds connect(2) back for as long as SO_SNDTIMEO says. */
static kdad_status connect_socket(struct session *s, const struct sockaddr_un *address, socklen_t size,
                                  int64_t deadline) {
    if (forked_socket(&s->socket) < 0)
        return error_set(KDAD_NO_MEMORY, "socket: cannot be made: %m");
    int result;
    do {
        int64_t left = deadline_left(deadline) / 1000;
        struct timeval limit = {left / 1000000, left % 1000000 + 1}; /* 0 would mean for ever */
        if (deadline != DEADLINE_NEVER)
            setsockopt(s->socket.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        result = connect(s->socket.fd, (const struct sockaddr *)address, size);
    } while (result < 0 && errno == EINTR && deadline_left(deadline) > 0);
    return result == 0 ? KDAD_OK : connect_error(address->sun_path);
}

static kdad_status check_hello(const struct wire_message *m, const char *path) {
    if (m->opcode == WIRE_ERROR) {
        kdad_status status = error_status(m->error.status);
        return error_set(status ? status : KDAD_PROTOCOL, "the daemon on %s refused: %.*s", path,
                         (int)m->error.sentence.size, m->error.sentence.data);
    }
    if (m->opcode != WIRE_HELLO_REPLY)
        return error_set(KDAD_PROTOCOL, "the daemon on %s answered HELLO with opcode %u", path, m->opcode);
    if (m->hello_reply.major != WIRE_MAJOR)
        return error_set(KDAD_PROTOCOL, "the daemon on %s speaks protocol %u.%u, this library %d.%d", path,
                         m->hello_reply.major, m->hello_reply.minor, WIRE_MAJOR, WIRE_MINOR);
    return KDAD_OK;
}

/* Says HELLO and reads the answer. A daemon that refuses at once may have closed before HELLO was sent: its
 * answer is read all the same. */
static kdad_status greet(struct session *s, const char *path, int64_t deadline) {
    struct pollfd readable = {.fd = s->socket.fd, .events = POLLIN};
    char why[PROBLEM_WHY];
    size_t size;
    s->message.opcode = WIRE_HELLO;
    s->message.id = ++s->last_id;
    s->message.hello = (struct wire_hello){
        .major = WIRE_MAJOR,
        .minor = WIRE_MINOR,
        .version = wire_string(kdad_version()),
        .name = wire_string(program_invocation_short_name),
    };
    const void *data = wire_encode(s->codec, &s->message, &size);
    if (packet_send(s->socket.fd, data, size, NULL, 0, MSG_DONTWAIT) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return error_set(KDAD_NO_DAEMON, "no daemon answers on %s: %m", path);
    int ready;
    do
        ready = poll(&readable, 1, deadline_poll(deadline));
    while (ready <= 0 && deadline_left(deadline) > 0);
    if (ready <= 0)
        return error_set(KDAD_TIMEOUT, "the daemon on %s did not answer in time", path);
    bool received = receive(s, MSG_DONTWAIT, why);
    packet_close_fds(&s->packet);
    if (!received && s->packet.size > 0)
        return error_set(KDAD_PROTOCOL, "the daemon on %s does not speak the protocol: %s", path, why);
    if (!received)
        return error_set(KDAD_NO_DAEMON, "no daemon answers on %s: %s", path, why);
    return check_hello(&s->message, path);
}

kdad_status session_open(const struct sockaddr_un *address, socklen_t size, int64_t deadline, uint64_t serial,
                         struct session **session) {
    struct session *s = new_session(serial);
    if (!s)
        return error_set(KDAD_NO_MEMORY, "connection: out of memory");
    kdad_status status = connect_socket(s, address, size, deadline);
    if (status == KDAD_OK)
        status = greet(s, address->sun_path, deadline);
    if (status == KDAD_OK) {
        int error = start_reader(s);
        if (error)
            status = error_set(KDAD_NO_MEMORY, "connection: no thread can be started: %s", strerror(error));
    }
    if (status != KDAD_OK) {
        free_session(s);
        return status;
    }
    *session = s;
    return KDAD_OK;
}

void session_end(struct session *s) {
    if (session_is_lost(s))
        return;
    shutdown(s->socket.fd, SHUT_RDWR);
    pthread_mutex_lock(&s->lock);
    while (!session_is_lost(s))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void session_stop(struct session *s) {
    session_end(s);
    pthread_join(s->reader, NULL);
}

struct session *session_hold(struct session *s) {
    atomic_fetch_add_explicit(&s->references, 1, memory_order_relaxed);
    return s;
}

void session_drop(struct session *s) {
    if (s && atomic_fetch_sub_explicit(&s->references, 1, memory_order_acq_rel) == 1)
        free_session(s);
}

bool session_is_lost(const struct session *s) {
    return atomic_load_explicit(&s->lost, memory_order_acquire);
}

kdad_status session_lost_error(struct session *s, const char *what) {
    pthread_mutex_lock(&s->lock);
    kdad_status status = error_set(KDAD_DAEMON_LOST, "%s: the daemon was lost: %s", what, s->end);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* --- sending ------------------------------------------------------------------------------------------- */

kdad_status session_try_send(struct session *s, const void *data, size_t size, const int *fds, int fd_count) {
    if (packet_send(s->socket.fd, data, size, fds, fd_count, MSG_DONTWAIT) == 0)
        return KDAD_OK;
    switch (errno) {
    case EAGAIN:
        return KDAD_PENDING;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        session_end(s);
        return session_lost_error(s, "request");
    case ETOOMANYREFS:
        return error_set(KDAD_LIMIT, "request: too many descriptors are in flight: %m");
    default:
        return error_set(KDAD_NO_MEMORY, "request: cannot be sent: %m");
    }
}

kdad_status session_wait_writable(struct session *s, int64_t deadline) {
    struct pollfd writable = {.fd = s->socket.fd, .events = POLLOUT};
    do {
        if (poll(&writable, 1, deadline_poll(deadline)) > 0)
            return KDAD_OK;
    } while (deadline_left(deadline) > 0);
    return error_set(KDAD_TIMEOUT, "request: the daemon does not read; it was not sent");
}

static kdad_status send_all(struct session *s, const void *data, size_t size, const int *fds, int fd_count,
                            int64_t deadline) {
    for (;;) {
        kdad_status status = session_try_send(s, data, size, fds, fd_count);
        if (status != KDAD_PENDING)
            return status;
        status = session_wait_writable(s, deadline);
        if (status != KDAD_OK)
            return status;
    }
}

/* --- requests ------------------------------------------------------------------------------------------ */

static void wait_changed(struct session *s, int64_t deadline) {
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    if (deadline == DEADLINE_NEVER)
        pthread_cond_wait(&s->changed, &s->lock);
    else
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

static void list_request(struct session *s, struct session_request *r) {
    pthread_mutex_lock(&s->lock);
    r->next = s->requests;
    s->requests = r;
    pthread_mutex_unlock(&s->lock);
}

/* Waits for the answer, as long as wait says so, and takes the request off the list. */
static void await_request(struct session *s, struct session_request *r, bool wait, int64_t deadline) {
    pthread_mutex_lock(&s->lock);
    while (wait && !r->answered && !session_is_lost(s) && deadline_left(deadline) > 0)
        wait_changed(s, deadline);
    struct session_request **link = &s->requests;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    pthread_mutex_unlock(&s->lock);
}

static kdad_status check_reply(const struct wire_message *request, const struct wire_message *m) {
    if (m->opcode == WIRE_ERROR) {
        kdad_status status = error_status(m->error.status);
        return error_set(status ? status : KDAD_PROTOCOL, "%.*s", (int)m->error.sentence.size,
                         m->error.sentence.data);
    }
    if (m->opcode != request->opcode + (WIRE_HELLO_REPLY - WIRE_HELLO))
        return error_set(KDAD_PROTOCOL, "request: the daemon answered opcode %u with %u", request->opcode,
                         m->opcode);
    return KDAD_OK;
}

static kdad_status exchange(struct session *s, struct wire_codec *codec, struct wire_message *request,
                            const int *fds, int fd_count, int64_t deadline, struct session_reply *reply) {
    struct session_request r = {.id = ++s->last_id, .reply = reply};
    size_t size;
    request->id = r.id;
    const void *data = wire_encode(codec, request, &size);
    if (!data)
        return error_set(KDAD_INTERNAL, "request: opcode %u is too long for a packet", request->opcode);
    list_request(s, &r);
    kdad_status status = send_all(s, data, size, fds, fd_count, deadline);
    await_request(s, &r, status == KDAD_OK, deadline);
    if (r.answered)
        return check_reply(request, &reply->message);
    if (status != KDAD_OK)
        return status;
    if (session_is_lost(s))
        return session_lost_error(s, "request");
    return error_set(KDAD_TIMEOUT, "request: the daemon did not answer opcode %u in time", request->opcode);
}

kdad_status session_request(struct session *s, struct wire_message *request, const int *fds, int fd_count,
                            int64_t deadline, struct session_reply *reply) {
    struct wire_codec *codec = wire_codec_new();
    kdad_status status;
    reply->packet.fd_count = 0;
    reply->packet.data = malloc(WIRE_PACKET_MAX);
    if (codec && reply->packet.data)
        status = exchange(s, codec, request, fds, fd_count, deadline, reply);
    else
        status = error_set(KDAD_NO_MEMORY, "request: out of memory");
    wire_codec_free(codec);
    if (status != KDAD_OK)
        session_reply_free(reply);
    return status;
}

void session_reply_free(struct session_reply *reply) {
    packet_close_fds(&reply->packet);
    free(reply->packet.data);
    reply->packet.data = NULL;
}

kdad_status session_register(struct session *s, int fd, size_t size, int64_t deadline, uint64_t *buffer) {
    struct wire_message request = {.opcode = WIRE_REGISTER};
    struct session_reply reply;
    request.reg = (struct wire_register){.kind = WIRE_BUFFER_HOST, .size = size};
    kdad_status status = session_request(s, &request, &fd, 1, deadline, &reply);
    if (status != KDAD_OK)
        return status;
    *buffer = reply.message.reg_reply.buffer;
    session_reply_free(&reply);
    return KDAD_OK;
}

void session_release(struct session *s, uint64_t buffer, int64_t deadline) {
    struct wire_message request = {.opcode = WIRE_RELEASE, .id = ++s->last_id};
    struct wire_codec *codec = session_is_lost(s) ? NULL : wire_codec_new();
    size_t size;
    request.release.buffer = buffer;
    const void *data = codec ? wire_encode(codec, &request, &size) : NULL;
    if (data)
        send_all(s, data, size, NULL, 0, deadline);
    wire_codec_free(codec);
}

/* --- tracks -------------------------------------------------------------------------------------------- */

bool session_attach(struct session *s, struct track *track) {
    pthread_mutex_lock(&s->lock);
    bool alive = !session_is_lost(s);
    if (alive) {
        track->next = s->tracks;
        s->tracks = track;
    }
    pthread_mutex_unlock(&s->lock);
    return alive;
}

void session_detach(struct session *s, struct track *track) {
    pthread_mutex_lock(&s->lock);
    struct track **link = &s->tracks;
    while (*link && *link != track)
        link = &(*link)->next;
    if (*link)
        *link = track->next;
    pthread_mutex_unlock(&s->lock);
}

static const char *find_sentence(const struct track *t, uint64_t wire_ticket) {
    for (unsigned i = 0; i < SESSION_SENTENCES && i < t->sentences; i++) {
        if (t->sentence[i].ticket == wire_ticket)
            return t->sentence[i].text;
    }
    return NULL;
}

bool session_sentence(struct session *s, const struct track *track, uint64_t wire_ticket,
                      char text[WIRE_SENTENCE_MAX + 1]) {
    int64_t deadline = deadline_in(SENTENCE_WAIT_MS);
    const char *found;
    pthread_mutex_lock(&s->lock);
    while (track->failed < wire_ticket && !session_is_lost(s) && deadline_left(deadline) > 0)
        wait_changed(s, deadline);
    found = find_sentence(track, wire_ticket);
    if (found)
        snprintf(text, WIRE_SENTENCE_MAX + 1, "%s", found);
    pthread_mutex_unlock(&s->lock);
    return found != NULL;
}
