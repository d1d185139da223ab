#include "daemon/client.h"

#include "daemon/buffer.h"
#include "daemon/daemon.h"
#include "daemon/job.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A packet that waits for the socket, with at most one descriptor. */
struct outgoing {
    struct outgoing *next;
    int fd;
    bool droppable; /* a JOB_ERROR: the timeline has the status all the same */
    size_t size;
    char data[];
};

static void watch(struct client *client);

enum { JOB_ERRORS_MAX = 64 }; /* that wait for a client's socket */

/* --- the end ------------------------------------------------------------------------------------------- */

static void drop_outgoing(struct client *client) {
    struct outgoing *o = client->out;
    client->out = o->next;
    if (!client->out)
        client->out_end = &client->out;
    client->out_errors -= o->droppable;
    if (o->fd >= 0)
        close(o->fd);
    free(o);
}

/* Of the sentences that wait for a client that does not read, the latest are kept. Behind the oldest there is
 * another one: the end of the list stays. */
static void drop_oldest_error(struct client *client) {
    struct outgoing **link = &client->out;
    while (!(*link)->droppable)
        link = &(*link)->next;
    struct outgoing *o = *link;
    *link = o->next;
    client->out_errors--;
    free(o);
}

static void close_groups(struct client *client) {
    for (int i = 0; i < BACKENDS_MAX; i++) {
        if (client->groups[i])
            client->groups[i]->backend->ops->group_close(client->groups[i]);
    }
}

/* Frees a client that is ending once its handles are closed and its jobs have ended. */
static void free_if_done(struct client *client) {
    struct daemon *daemon = client->daemon;
    char name[2 * WIRE_NAME_MAX];
    if (!client->ending || client->handles > 0 || client->streams.count > 0)
        return;
    log_event(LOG_INFO, "client_end",
              "pid=%d uid=%u name=%s jobs_done=%llu jobs_failed=%llu busy_ms=%.3f age_s=%.3f",
              (int)client->pid, (unsigned)client->uid, log_quote(name, sizeof name, client->name),
              (unsigned long long)client->jobs_done, (unsigned long long)client->jobs_failed,
              (double)client->busy_ns * 1e-6, (double)(uv_hrtime() - client->since) * 1e-9);
    daemon->jobs_done += client->jobs_done;
    daemon->jobs_failed += client->jobs_failed;
    daemon->busy_ns += client->busy_ns;
    daemon->bytes_moved += client->bytes_moved;
    close_groups(client);
    table_free(&client->streams);
    table_free(&client->buffers);
    packet_close(client->socket);
    if (client->user) {
        limits_give(client->user, LIMIT_CONNECTIONS, 1);
        limits_forget(&daemon->users);
    }
    if (client->pidfd >= 0)
        close(client->pidfd);
    if (client->previous)
        client->previous->next = client->next;
    else
        daemon->clients = client->next;
    if (client->next)
        client->next->previous = client->previous;
    daemon->client_count--;
    free(client);
    daemon_check_end(daemon);
}

static void on_handle_closed(uv_handle_t *handle) {
    struct client *client = handle->data;
    client->handles--;
    free_if_done(client);
}

void client_end(struct client *client, const char *reason) {
    struct buffer *buffer;
    uint64_t id;
    if (client->ending)
        return;
    client->ending = true;
    if (client->traces)
        trace_end(&client->daemon->trace);
    log_event(LOG_DEBUG, "client_ending", "pid=%d reason=\"%s\"", (int)client->pid, reason);
    while (client->out)
        drop_outgoing(client);
    shutdown(client->socket, SHUT_RDWR); /* closed when the last job has ended: it may still use the number */
    uv_close((uv_handle_t *)&client->poll, on_handle_closed);
    uv_close((uv_handle_t *)&client->hello_timer, on_handle_closed);
    if (client->pidfd >= 0)
        uv_close((uv_handle_t *)&client->pid_poll, on_handle_closed);
    for (uint32_t at = 0; (buffer = table_next(&client->buffers, &at, &id));) {
        table_remove(&client->buffers, id);
        buffer_drop(buffer);
    }
    while ((buffer = client->released)) {
        client->released = buffer->next;
        buffer_drop(buffer);
    }
    client->buffer_bytes = 0;
    client_cancel(client, reason);
    uv_async_send(&client->daemon->settle); /* closes the streams: not here, where a caller may hold one */
}

void client_cancel(struct client *client, const char *why) {
    struct stream *stream;
    for (uint32_t at = 0; (stream = table_next(&client->streams, &at, NULL));)
        stream_cancel(stream, why);
}

/* --- sending ------------------------------------------------------------------------------------------- */

/* Sends a message with a descriptor (or -1), now or when the socket takes it. Takes the descriptor. */
static void send_message(struct client *client, const struct wire_message *message, int fd) {
    size_t size;
    const void *data = wire_encode(client->daemon->codec, message, &size);
    if (data && !client->out && packet_send(client->socket, data, size, &fd, fd >= 0, MSG_DONTWAIT) == 0) {
        if (fd >= 0)
            close(fd);
        return;
    }
    struct outgoing *o = data && (client->out || errno == EAGAIN) ? malloc(sizeof *o + size) : NULL;
    if (!o) {
        if (fd >= 0)
            close(fd);
        client_end(client, "cannot be written to");
        return;
    }
    o->next = NULL;
    o->fd = fd;
    o->droppable = message->opcode == WIRE_JOB_ERROR;
    o->size = size;
    memcpy(o->data, data, size);
    *client->out_end = o;
    client->out_end = &o->next;
    if (o->droppable && ++client->out_errors > JOB_ERRORS_MAX)
        drop_oldest_error(client);
}

static void send_outgoing(struct client *client) {
    while (client->out) {
        struct outgoing *o = client->out;
        if (packet_send(client->socket, o->data, o->size, &o->fd, o->fd >= 0, MSG_DONTWAIT) < 0) {
            if (errno != EAGAIN)
                client_end(client, "cannot be written to");
            return;
        }
        drop_outgoing(client);
    }
}

static void reply_error(struct client *client, uint64_t id, enum wire_status status, const char *why) {
    struct wire_message *m = &client->daemon->message;
    m->opcode = WIRE_ERROR;
    m->id = id;
    m->error = (struct wire_error){status, wire_string(why), false};
    send_message(client, m, -1);
}

void client_fail(struct client *client, enum wire_status status, const char *reason, const char *format,
                 ...) {
    char why[PROBLEM_WHY], quoted[2 * PROBLEM_WHY];
    va_list list;
    if (client->ending)
        return;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    if (status != WIRE_CANCELLED)
        log_event(LOG_WARNING, "client_failed", "pid=%d uid=%u why=%s", (int)client->pid,
                  (unsigned)client->uid, log_quote(quoted, sizeof quoted, why));
    struct wire_message *m = &client->daemon->message;
    m->opcode = WIRE_ERROR;
    m->id = 0;
    m->error = (struct wire_error){status, wire_string(why), true};
    send_message(client, m, -1);
    client_end(client, reason);
}

void client_job_error(struct client *client, uint64_t stream, uint64_t ticket, enum wire_status status,
                      const char *why) {
    struct wire_message message;
    message.opcode = WIRE_JOB_ERROR;
    message.id = 0;
    message.job_error = (struct wire_job_error){stream, ticket, status, wire_string(why)};
    uv_thread_t self = uv_thread_self();
    if (uv_thread_equal(&self, &client->daemon->thread)) {
        if (!client->ending)
            send_message(client, &message, -1);
        return;
    }
    struct wire_codec *codec = wire_codec_new(); /* the loop's codec is the loop's */
    if (!codec)
        return;
    size_t size;
    const void *data = wire_encode(codec, &message, &size);
    if (data)
        packet_send(client->socket, data, size, NULL, 0, MSG_DONTWAIT);
    wire_codec_free(codec);
}

/* --- requests ------------------------------------------------------------------------------------------ */

static void copy_string(char *out, size_t size, struct wire_string s) {
    snprintf(out, size, "%.*s", (int)s.size, s.data);
}

static void on_hello(struct client *client, const struct wire_message *request) {
    struct daemon *daemon = client->daemon;
    const struct wire_hello *hello = &request->hello;
    if (client->greeted) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol", "HELLO: sent twice");
        return;
    }
    if (hello->major != WIRE_MAJOR) {
        client_fail(client, WIRE_PROTOCOL, "other protocol version",
                    "HELLO: the client speaks protocol %u.%u, this daemon %d.%d", hello->major, hello->minor,
                    WIRE_MAJOR, WIRE_MINOR);
        return;
    }
    client->greeted = true;
    uv_timer_stop(&client->hello_timer);
    copy_string(client->name, sizeof client->name, hello->name);
    struct wire_message *m = &daemon->message;
    m->opcode = WIRE_HELLO_REPLY; /* the id stays */
    m->hello_reply = (struct wire_hello_reply){
        .major = WIRE_MAJOR,
        .minor = WIRE_MINOR,
        .version = wire_string(KDAD_VERSION),
        .backend = wire_string(daemon->backends[0]->ops->name),
        .streams_max = WIRE_STREAMS_MAX,
        .buffers_max = WIRE_BUFFERS_MAX,
    };
    send_message(client, m, -1);
}

/* The group of the backend that serves a device; NULL if none does. */
static struct group *find_group(const struct client *client, struct wire_string device) {
    for (int i = 0; i < client->daemon->backend_count; i++) {
        struct backend *backend = client->daemon->backends[i];
        if (backend->ops->serves(backend, device))
            return client->groups[i];
    }
    return NULL;
}

static void on_stream_open(struct client *client, const struct wire_message *request) {
    struct daemon *daemon = client->daemon;
    struct stream *stream;
    char why[PROBLEM_WHY];
    int fd;
    uint64_t id = request->id;
    if (client->streams.count == client->streams.limit) {
        snprintf(why, sizeof why, "stream: the connection has %u already, and may have no more",
                 client->streams.count);
        reply_error(client, id, WIRE_LIMIT, why);
        return;
    }
    struct group *group = find_group(client, request->stream_open.device);
    if (!group) {
        snprintf(why, sizeof why, "stream: device is '%.*s', which this daemon does not serve",
                 (int)request->stream_open.device.size, request->stream_open.device.data);
        reply_error(client, id, WIRE_UNSUPPORTED, why);
        return;
    }
    if (!limits_take(client->user, LIMIT_STREAMS, 1, &daemon->options.limits, "stream", why)) {
        reply_error(client, id, WIRE_LIMIT, why);
        return;
    }
    enum wire_status status = stream_open(client, group, request->stream_open.device, &stream, &fd, why);
    if (status != WIRE_OK) {
        limits_give(client->user, LIMIT_STREAMS, 1);
        reply_error(client, id, status, why);
        return;
    }
    stream->id = table_add(&client->streams, stream);
    if (stream->id == 0) {
        stream_close(stream);
        limits_give(client->user, LIMIT_STREAMS, 1);
        close(fd);
        reply_error(client, id, WIRE_NO_MEMORY, "stream: the daemon is out of memory");
        return;
    }
    struct wire_message *m = &daemon->message;
    m->opcode = WIRE_STREAM_OPEN_REPLY;
    m->id = id;
    m->stream_open_reply = (struct wire_stream_open_reply){stream->id, WIRE_STREAM_SLOTS};
    send_message(client, m, fd);
}

/* Frees a closing stream if its jobs have ended, and answers who asked for it. */
static void settle_stream(struct client *client, struct stream *stream) {
    uint64_t id = stream->id, request = stream->close_request;
    if (!stream_close(stream))
        return;
    table_remove(&client->streams, id);
    limits_give(client->user, LIMIT_STREAMS, 1);
    if (request == 0 || client->ending)
        return;
    struct wire_message *m = &client->daemon->message;
    m->opcode = WIRE_STREAM_CLOSE_REPLY;
    m->id = request;
    send_message(client, m, -1);
}

static void on_stream_close(struct client *client, const struct wire_message *request) {
    struct stream *stream = table_find(&client->streams, request->stream_close.stream);
    if (!stream || stream->closing) {
        reply_error(client, request->id, WIRE_NOT_FOUND, "stream: the connection has no such stream");
        return;
    }
    stream->close_request = request->id;
    stream_cancel(stream, "its stream was closed");
    settle_stream(client, stream);
}

/* The id of a buffer's memory: that of another buffer of this client with the same memory, else a new one. */
static uint64_t allocation_id(struct client *client, const struct mapping *mapping) {
    const struct buffer *other;
    for (uint32_t at = 0; (other = table_next(&client->buffers, &at, NULL));) {
        if (other->mapping.device == mapping->device &&
            memcmp(other->mapping.identity, mapping->identity, sizeof mapping->identity) == 0)
            return other->allocation;
    }
    return ++client->daemon->allocations;
}

static struct backend *find_mapper(const struct daemon *daemon, uint32_t kind) {
    for (int i = 0; i < daemon->backend_count; i++) {
        if (daemon->backends[i]->ops->maps(daemon->backends[i], kind))
            return daemon->backends[i];
    }
    return NULL;
}

static void on_register(struct client *client, const struct wire_message *request, struct packet *packet) {
    struct daemon *daemon = client->daemon;
    struct buffer *buffer;
    char why[PROBLEM_WHY];
    uint64_t id = request->id;
    if (packet->lost) {
        reply_error(client, id, WIRE_LIMIT,
                    "buffer: the daemon has no descriptor left to take it (LimitNOFILE)");
        return;
    }
    int expected = request->reg.kind == WIRE_BUFFER_CUDA_IPC   ? 0
                   : request->reg.kind == WIRE_BUFFER_CUDA_VMM ? (int)request->reg.segments
                                                               : 1;
    if (packet->fd_count != expected) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol", "REGISTER: came with %d descriptors, not %d",
                    packet->fd_count, expected);
        return;
    }
    if (client->buffers.count == client->buffers.limit) {
        snprintf(why, sizeof why, "buffer: the connection has %u already, and may have no more",
                 client->buffers.count);
        reply_error(client, id, WIRE_LIMIT, why);
        return;
    }
    if (request->reg.kind == WIRE_BUFFER_CUDA_IPC && client->uid != geteuid()) {
        snprintf(why, sizeof why,
                 "buffer: GPU memory by its IPC handle is mapped for uid %u alone, who runs the daemon, not "
                 "for uid %u",
                 (unsigned)geteuid(), (unsigned)client->uid);
        reply_error(client, id, WIRE_UNSUPPORTED, why);
        return;
    }
    struct backend *backend = find_mapper(daemon, request->reg.kind);
    if (!backend) {
        snprintf(why, sizeof why, "buffer: kind is %u, which this daemon does not map", request->reg.kind);
        reply_error(client, id, WIRE_UNSUPPORTED, why);
        return;
    }
    enum wire_status status = buffer_open(backend, &request->reg, packet->fds, packet->fd_count, client->user,
                                          &daemon->options.limits, &buffer, why);
    if (status != WIRE_OK) {
        reply_error(client, id, status, why);
        return;
    }
    buffer->allocation = allocation_id(client, &buffer->mapping);
    uint64_t buffer_id = table_add(&client->buffers, buffer);
    if (buffer_id == 0) {
        buffer_drop(buffer);
        reply_error(client, id, WIRE_NO_MEMORY, "buffer: the daemon is out of memory");
        return;
    }
    client->buffer_bytes += buffer->mapping.size;
    struct wire_message *m = &daemon->message;
    m->opcode = WIRE_REGISTER_REPLY;
    m->id = id;
    m->reg_reply.buffer = buffer_id;
    send_message(client, m, -1);
}

/* Unmaps what was released and is not used any more, and says so. What is left is looked at again soon. */
static void settle_released(struct client *client) {
    struct wire_message *m = &client->daemon->message;
    for (struct buffer **link = &client->released; *link && !client->ending;) {
        struct buffer *buffer = *link;
        if (!buffer_is_unused(buffer)) {
            link = &buffer->next;
            continue;
        }
        *link = buffer->next;
        m->opcode = WIRE_RELEASE_REPLY;
        m->id = buffer->request;
        buffer_drop(buffer);
        send_message(client, m, -1);
    }
    if (client->released)
        daemon_settle_soon(client->daemon);
}

static void on_release(struct client *client, const struct wire_message *request) {
    struct buffer *buffer = table_remove(&client->buffers, request->release.buffer);
    if (!buffer) {
        reply_error(client, request->id, WIRE_NOT_FOUND, "buffer: the connection has no such buffer");
        return;
    }
    client->buffer_bytes -= buffer->mapping.size;
    buffer->request = request->id;
    buffer->next = client->released;
    client->released = buffer;
    settle_released(client);
}

/* Finds a job's buffers and holds them; checks the problem with their true sizes; fills in addresses. */
static void resolve(struct client *client, struct job *job) {
    struct problem *p = &job->problem;
    const char *device = job->stream->queue->device;
    const struct buffer *last = NULL;
    uint64_t last_id = 0;
    if (!problem_is_empty(p)) {
        for (enum operand o = 0; o < OPERAND_COUNT; o++) {
            struct operand_view *v = &p->at[o];
            if (!problem_has(p, o))
                continue;
            if (!last || v->allocation != last_id) {
                struct buffer *buffer = table_find(&client->buffers, v->allocation);
                if (!buffer) {
                    job_refuse(job, WIRE_NOT_FOUND, "%s: the connection has no buffer %llu", operand_name(o),
                               (unsigned long long)v->allocation);
                    return;
                }
                buffer_hold(buffer);
                job->buffer[o] = buffer;
                last = buffer;
                last_id = v->allocation;
            }
            if (last->mapping.device != device) {
                job_refuse(job, WIRE_INVALID, "%s: lies on %s, but its stream is on %s", operand_name(o),
                           last->mapping.device, device);
                return;
            }
            v->allocation = last->allocation;
            v->allocation_size = last->mapping.size;
            job->address[o] = last->mapping.address + v->offset;
        }
    }
    if (!problem_check(p, job->why))
        job->status = WIRE_INVALID;
}

/* A job beyond the user's limit fails alone; one that goes on all the same loses its connection, before what
 * waits to be refused takes as much room again. */
static void on_submit(struct client *client, const struct wire_submit *submit) {
    char why[PROBLEM_WHY];
    struct stream *stream = table_find(&client->streams, submit->stream);
    if (!stream || stream->closing) {
        client_job_error(client, submit->stream, submit->ticket, WIRE_NOT_FOUND,
                         "stream: the connection has no such stream");
        return;
    }
    if (submit->ticket != stream->submitted + 1) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol", "SUBMIT: ticket is %llu, but must be %llu",
                    (unsigned long long)submit->ticket, (unsigned long long)stream->submitted + 1);
        return;
    }
    if (stream_in_flight(stream) >= WIRE_STREAM_SLOTS) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol",
                    "SUBMIT: %d jobs of the stream are in flight", WIRE_STREAM_SLOTS);
        return;
    }
    const struct limits *limits = &client->daemon->options.limits;
    bool allowed = limits_take(client->user, LIMIT_JOBS, 1, limits, "job", why);
    if (!allowed &&
        limits_used(client->user, LIMIT_JOBS) >= 2 * limits->max[LIMIT_JOBS] + WIRE_STREAM_SLOTS) {
        client_fail(client, WIRE_LIMIT, "submits beyond its limit", "SUBMIT: %s", why);
        return;
    }
    const struct backend_ops *ops = stream->queue->group->backend->ops;
    struct job *job = job_new(stream, submit->ticket, ops->job_size);
    if (!job) {
        if (allowed)
            limits_give(client->user, LIMIT_JOBS, 1);
        client_fail(client, WIRE_NO_MEMORY, "out of memory", "SUBMIT: the daemon is out of memory");
        return;
    }
    if (!allowed) /* it waits for its turn to be refused, and is counted until then */
        limits_count(client->user, LIMIT_JOBS, 1);
    stream->submitted++;
    client->jobs_submitted++;
    job->problem = submit->problem;
    if (!allowed)
        job_refuse(job, WIRE_LIMIT, "%s", why);
    else if (submit->operation == WIRE_CHUNK_KDA_BWD_INTRA)
        resolve(client, job);
    else
        job_refuse(job, WIRE_UNSUPPORTED, "job: operation %u is not known", submit->operation);
    ops->submit(stream->queue, job);
}

static void on_status(struct client *client, const struct wire_message *request) {
    struct wire_message *m = &client->daemon->message;
    uint64_t before = request->status.before;
    m->opcode = WIRE_STATUS_REPLY;
    status_fill(client->daemon, before, &m->status_reply);
    send_message(client, m, -1);
}

/* Others would see what all clients do, job by job. */
static bool may_trace(const struct client *client) {
    return client->uid == geteuid() || client->uid == 0;
}

static void on_trace(struct client *client, const struct wire_message *request) {
    struct trace *trace = &client->daemon->trace;
    struct wire_message *m = &client->daemon->message;
    uint64_t from = request->trace.from;
    if (!may_trace(client)) {
        reply_error(client, request->id, WIRE_DENIED,
                    "trace: only the daemon's user and root may ask for it");
        return;
    }
    if (!client->traces && !trace_begin(trace)) {
        reply_error(client, request->id, WIRE_NO_MEMORY, "trace: the daemon is out of memory");
        return;
    }
    client->traces = true;
    m->opcode = WIRE_TRACE_REPLY;
    trace_fill(trace, from, &m->trace_reply);
    send_message(client, m, -1);
}

/* The request lies in daemon->message, and replies are made there: a handler reads what it needs first. */
static void dispatch(struct client *client, struct packet *packet) {
    struct wire_message *m = &client->daemon->message;
    char why[PROBLEM_WHY];
    if (packet->truncated) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol",
                    "packet: longer than %d bytes, or with more than %d descriptors", WIRE_PACKET_MAX,
                    WIRE_FDS_MAX);
    } else if (!wire_decode(client->daemon->codec, packet->data, packet->size, m, why)) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol", "%s", why);
    } else if (!client->greeted && m->opcode != WIRE_HELLO) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol", "packet: opcode %u before HELLO", m->opcode);
    } else if ((packet->fd_count > 0 || packet->lost) && m->opcode != WIRE_REGISTER) {
        client_fail(client, WIRE_PROTOCOL, "broke the protocol", "packet: opcode %u takes no descriptors",
                    m->opcode);
    } else {
        switch (m->opcode) {
        case WIRE_HELLO:
            on_hello(client, m);
            break;
        case WIRE_STREAM_OPEN:
            on_stream_open(client, m);
            break;
        case WIRE_STREAM_CLOSE:
            on_stream_close(client, m);
            break;
        case WIRE_REGISTER:
            on_register(client, m, packet);
            break;
        case WIRE_RELEASE:
            on_release(client, m);
            break;
        case WIRE_SUBMIT:
            on_submit(client, &m->submit);
            break;
        case WIRE_STATUS:
            on_status(client, m);
            break;
        case WIRE_TRACE:
            on_trace(client, m);
            break;
        default:
            snprintf(why, sizeof why, "packet: opcode %u is not known", m->opcode);
            reply_error(client, m->id, WIRE_UNSUPPORTED, why);
            break;
        }
    }
}

/* --- events -------------------------------------------------------------------------------------------- */

bool client_read(struct client *client) {
    struct daemon *daemon = client->daemon;
    int n = packet_receive_many(client->socket, daemon->batch, client->burst);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        client_end(client, "its connection ended");
        return false;
    }
    if (n < client->burst)
        client->burst = n;
    else
        client->burst = 2 * n < DAEMON_BATCH ? 2 * n : DAEMON_BATCH;
    uint64_t start = daemon->now = uv_hrtime();
    for (int i = 0; i < n; i++) {
        struct packet *packet = &daemon->batch[i];
        if (!client->ending && packet->size == 0)
            client_end(client, "its connection ended");
        else if (!client->ending)
            dispatch(client, packet);
        packet_close_fds(packet);
    }
    __atomic_fetch_add(&client->busy_ns, uv_hrtime() - start, __ATOMIC_RELAXED);
    return !client->ending;
}

bool client_is_settled(const struct client *client) {
    const struct stream *stream;
    for (uint32_t at = 0; (stream = table_next(&client->streams, &at, NULL));) {
        if (!stream_is_settled(stream))
            return false;
    }
    return true;
}

static void on_socket(uv_poll_t *poll, int status, int events) {
    struct client *client = poll->data;
    if (status < 0) {
        client_end(client, "its connection failed");
        return;
    }
    if (events & UV_WRITABLE)
        send_outgoing(client);
    if (!client->ending && (events & (UV_READABLE | UV_DISCONNECT)))
        client_read(client);
    if (!client->ending)
        watch(client);
}

/* A client whose socket is full of replies is not listened to until it has read them. */
static void watch(struct client *client) {
    int events = client->out ? UV_WRITABLE : UV_READABLE;
    if (events == client->watched) /* libuv would leave and enter epoll again */
        return;
    client->watched = events;
    if (uv_poll_start(&client->poll, events, on_socket) < 0)
        client_end(client, "cannot be watched");
}

static void on_process_end(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    client_end(poll->data, "its process ended");
}

static void on_hello_timeout(uv_timer_t *timer) {
    client_fail(timer->data, WIRE_PROTOCOL, "said no HELLO", "HELLO: did not come within %d ms",
                WIRE_HELLO_MS);
}

void client_settle(struct client *client) {
    struct stream *stream;
    if (client->released && !client->ending)
        settle_released(client);
    for (uint32_t at = 0; (stream = table_next(&client->streams, &at, NULL));) {
        if (client->ending || stream->closing)
            settle_stream(client, stream);
    }
    if (!client->ending)
        watch(client); /* an answer may wait for the socket now */
    free_if_done(client);
}

uint64_t client_jobs_queued(const struct client *client) {
    return client->jobs_submitted - __atomic_load_n(&client->jobs_done, __ATOMIC_RELAXED) -
           __atomic_load_n(&client->jobs_failed, __ATOMIC_RELAXED);
}

/* --- the beginning ------------------------------------------------------------------------------------- */

static bool is_allowed(const struct daemon *daemon, uid_t uid) {
    return uid == geteuid() || uid == 0 || daemon->listener.inherited;
}

/* The process may be in a PID namespace that this one cannot see (pid 0), or gone by now. */
static int open_pidfd(pid_t pid) {
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static bool open_groups(struct daemon *daemon, struct client *client) {
    for (int i = 0; i < daemon->backend_count; i++) {
        client->groups[i] = daemon->backends[i]->ops->group_open(daemon->backends[i]);
        if (!client->groups[i])
            return false;
    }
    return true;
}

void client_refuse(struct daemon *daemon, int socket, enum wire_status status, const char *why) {
    struct wire_message *m = &daemon->message;
    size_t size;
    log_event(LOG_WARNING, "refused", "why=\"%s\"", why);
    m->opcode = WIRE_ERROR;
    m->id = 0;
    m->error = (struct wire_error){status, wire_string(why), true};
    const void *data = wire_encode(daemon->codec, m, &size);
    if (data)
        packet_send(socket, data, size, NULL, 0, MSG_DONTWAIT);
    packet_close(socket);
}

/* Charges the user for a connection. */
static bool take_connection(struct client *client, char why[PROBLEM_WHY]) {
    struct daemon *daemon = client->daemon;
    struct user *user = limits_user(&daemon->users, client->uid);
    if (!user)
        snprintf(why, PROBLEM_WHY, "connection: the daemon is out of memory");
    else if (limits_take(user, LIMIT_CONNECTIONS, 1, &daemon->options.limits, "connection", why))
        client->user = user;
    return client->user != NULL;
}

void client_open(struct daemon *daemon, int socket) {
    char why[PROBLEM_WHY];
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct client *client = calloc(1, sizeof *client);
    if (!client || !open_groups(daemon, client) ||
        getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
        uv_poll_init(&daemon->loop, &client->poll, socket) < 0) {
        if (client)
            close_groups(client);
        free(client);
        client_refuse(daemon, socket, WIRE_NO_MEMORY, "connection: the daemon is out of memory");
        return;
    }
    client->daemon = daemon;
    client->socket = socket;
    client->pid = peer.pid;
    client->uid = peer.uid;
    client->since = uv_hrtime();
    client->out_end = &client->out;
    client->burst = 1;
    client->pidfd = open_pidfd(peer.pid);
    table_init(&client->streams, WIRE_STREAMS_MAX);
    table_init(&client->buffers, WIRE_BUFFERS_MAX);
    uv_timer_init(&daemon->loop, &client->hello_timer);
    client->poll.data = client->hello_timer.data = client->pid_poll.data = client;
    client->handles = 2;
    if (client->pidfd >= 0 && uv_poll_init(&daemon->loop, &client->pid_poll, client->pidfd) < 0) {
        close(client->pidfd);
        client->pidfd = -1;
    }
    if (client->pidfd >= 0) {
        client->handles++;
        uv_poll_start(&client->pid_poll, UV_READABLE, on_process_end);
    }
    client->next = daemon->clients;
    if (client->next)
        client->next->previous = client;
    daemon->clients = client;
    daemon->client_count++;
    client->number = ++daemon->connections;
    log_event(LOG_DEBUG, "client_start", "pid=%d uid=%u", (int)client->pid, (unsigned)client->uid);
    if (!is_allowed(daemon, client->uid)) {
        client_fail(client, WIRE_DENIED, "not allowed", "the daemon does not serve uid %u",
                    (unsigned)client->uid);
        return;
    }
    if (!take_connection(client, why)) {
        client_fail(client, WIRE_LIMIT, "beyond its limit", "%s", why);
        return;
    }
    uv_timer_start(&client->hello_timer, on_hello_timeout, WIRE_HELLO_MS, 0);
    watch(client);
}
