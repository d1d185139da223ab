/*
 * status.c - what the daemon tells of itself and its clients.
 */
#include "daemon/buffer.h"
#include "daemon/daemon.h"

#include <unistd.h>

static uint64_t load(const uint64_t *counter) {
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void fill_client(const struct client *client, struct wire_status_client *row) {
    *row = (struct wire_status_client){
        .number = client->number,
        .pid = client->pid,
        .uid = client->uid,
        .name = wire_string(client->name),
        .age_ns = uv_hrtime() - client->since,
        .streams = client->streams.count,
        .buffers = client->buffers.count,
        .buffer_bytes = client->buffer_bytes,
        .jobs_queued = client_jobs_queued(client),
        .jobs_done = load(&client->jobs_done),
        .jobs_failed = load(&client->jobs_failed),
        .busy_ns = load(&client->busy_ns),
        .bytes_moved = load(&client->bytes_moved),
    };
    recent_quantiles(&client->recent, &row->p50_ns, &row->p99_ns);
}

static void copy_histogram(const struct histogram *from, struct histogram *to) {
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        to->count[i] = load(&from->count[i]);
}

static void fill_meter(const struct meter *meter, struct wire_status_reply *reply) {
    copy_histogram(&meter->queue, &reply->queue);
    copy_histogram(&meter->run, &reply->run);
    copy_histogram(&meter->whole, &reply->whole);
    reply->queue_ns = load(&meter->queue_ns);
    reply->run_ns = load(&meter->run_ns);
}

static struct wire_status_user user_row(int64_t uid, const uint64_t of[LIMIT_COUNT]) {
    return (struct wire_status_user){
        .uid = uid,
        .connections = load(&of[LIMIT_CONNECTIONS]),
        .streams = load(&of[LIMIT_STREAMS]),
        .buffers = load(&of[LIMIT_BUFFERS]),
        .buffer_bytes = load(&of[LIMIT_BYTES]),
        .jobs_queued = load(&of[LIMIT_JOBS]),
    };
}

void status_fill(const struct daemon *daemon, uint64_t before, struct wire_status_reply *reply) {
    const struct backend *first = daemon->backends[0];
    *reply = (struct wire_status_reply){
        .version = wire_string(KDAD_VERSION),
        .backend = wire_string(first->ops->name),
        .detail = wire_string(first->ops->detail(first)),
        .pid = getpid(),
        .uptime_ns = uv_hrtime() - daemon->since,
        .threads = first->ops->threads(first),
        .connections = daemon->connections,
        .jobs_done = daemon->jobs_done,
        .jobs_failed = daemon->jobs_failed,
        .busy_ns = daemon->busy_ns,
        .bytes_moved = daemon->bytes_moved,
        .clients = daemon->client_count,
        .limits = user_row(-1, daemon->options.limits.max),
    };
    fill_meter(&daemon->meter, reply);
    for (int i = 0; i < daemon->backend_count; i++) {
        struct backend *b = daemon->backends[i];
        reply->device_count += b->ops->devices(b, &reply->device[reply->device_count],
                                               WIRE_STATUS_DEVICES - reply->device_count);
    }
    for (const struct client *c = daemon->clients; c; c = c->next) {
        reply->streams += c->streams.count;
        reply->buffers += c->buffers.count;
        reply->buffer_bytes += c->buffer_bytes;
        reply->jobs_queued += client_jobs_queued(c);
        reply->jobs_done += load(&c->jobs_done);
        reply->jobs_failed += load(&c->jobs_failed);
        reply->busy_ns += load(&c->busy_ns);
        reply->bytes_moved += load(&c->bytes_moved);
        if ((before == 0 || c->number < before) && reply->count < WIRE_STATUS_CLIENTS)
            fill_client(c, &reply->client[reply->count++]);
    }
    for (const struct user *u = daemon->users; u && reply->user_count < WIRE_STATUS_USERS; u = u->next)
        reply->user[reply->user_count++] = user_row(u->uid, u->used);
}
