/*
 * status.c - kdactl status: what the daemon tells of itself and its clients, for people or as JSON.
 */
#include "client/kdactl/json.h"
#include "client/kdactl/snapshot.h"
#include "client/kdactl/text.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- For people ------------------------------------------------------------------------------------------
 */

static void print_device(const struct snapshot *s, uint32_t i) {
    const struct wire_status_device *d = &s->reply.device[i];
    char own[TEXT_MAX], all[TEXT_MAX], rate[TEXT_MAX], share[TEXT_MAX];
    printf("%-10s%s (%s)", i == 0 ? "devices" : "", s->devices[i].device, s->devices[i].name);
    if (snapshot_is_gpu(s, i) && s->devices[i].process_bytes >= 0)
        printf(", MPS %s, %s taken by kdad", snapshot_mps(d),
               text_of_bytes(all, (uint64_t)s->devices[i].process_bytes));
    else if (snapshot_is_gpu(s, i))
        printf(", MPS %s, %s taken by kdad beside context and kernels", snapshot_mps(d),
               text_of_bytes(own, d->own_bytes));
    if (d->copy_rate > 0)
        printf(", copies %s/s", text_of_bytes(rate, d->copy_rate));
    if (d->last_ns > 0)
        printf(", last jobs %s of the copy bound", text_of_share(share, snapshot_copy_share(d)));
    putchar('\n');
}

static void print_latency(const char *name, const struct histogram *h) {
    static const double shares[] = {0.5, 0.9, 0.99, 0.999};
    char text[TEXT_MAX];
    printf("  %-8s", name);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        printf(" %10s", text_of_ns(text, histogram_quantile(h, shares[i])));
    putchar('\n');
}

static void print_client(const struct snapshot_client *row) {
    const struct wire_status_client *c = &row->client;
    char age[TEXT_MAX], memory[TEXT_MAX], moved[TEXT_MAX], p50[TEXT_MAX], p99[TEXT_MAX];
    printf("%8" PRId64 " %6" PRId64 "  %-16s %9s %7" PRIu64 " %7" PRIu64 " %10s %8" PRIu64 " %10" PRIu64
           " %8" PRIu64 " %10s %9s %9s\n",
           c->pid, c->uid, row->name, text_of_ns(age, c->age_ns), c->streams, c->buffers,
           text_of_bytes(memory, c->buffer_bytes), c->jobs_queued, c->jobs_done, c->jobs_failed,
           text_of_bytes(moved, c->bytes_moved), text_of_ns(p50, c->p50_ns), text_of_ns(p99, c->p99_ns));
}

static void print_user(const struct snapshot *s, uint32_t i) {
    const struct wire_status_user *u = &s->reply.user[i], *most = &s->reply.limits;
    char bytes[TEXT_MAX], most_bytes[TEXT_MAX];
    printf("%-10suid %" PRId64 ": %" PRIu64 " of %" PRIu64 " connections, %" PRIu64 " of %" PRIu64
           " streams, %" PRIu64 " of %" PRIu64 " buffers, %s of %s, %" PRIu64 " of %" PRIu64 " jobs\n",
           i == 0 ? "limits" : "", u->uid, u->connections, most->connections, u->streams, most->streams,
           u->buffers, most->buffers, text_of_bytes(bytes, u->buffer_bytes),
           text_of_bytes(most_bytes, most->buffer_bytes), u->jobs_queued, most->jobs_queued);
}

static void print_text(const struct snapshot *s) {
    const struct wire_status_reply *r = &s->reply;
    char a[TEXT_MAX];
    printf("kdad %s, pid %" PRId64 ", up %s\n", s->version, r->pid, text_of_ns(a, r->uptime_ns));
    printf("backend   %s (%s), %u threads, %s of thread time spent on jobs\n", s->backend, s->detail,
           r->threads, text_of_ns(a, r->busy_ns));
    for (uint32_t i = 0; i < r->device_count; i++)
        print_device(s, i);
    printf("jobs      %" PRIu64 " done, %" PRIu64 " failed, %" PRIu64 " queued, %s moved\n", r->jobs_done,
           r->jobs_failed, r->jobs_queued, text_of_bytes(a, r->bytes_moved));
    printf("memory    %s in %" PRIu64 " buffers\n", text_of_bytes(a, r->buffer_bytes), r->buffers);
    printf("clients   %u now, %" PRIu64 " since it started, %" PRIu64 " streams\n", r->clients,
           r->connections, r->streams);
    for (uint32_t i = 0; i < r->user_count; i++)
        print_user(s, i);
    putchar('\n');
    if (histogram_total(&r->whole) > 0) {
        printf("%-10s %10s %10s %10s %10s\n", "latency", "p50", "p90", "p99", "p99.9");
        print_latency("queue", &r->queue);
        print_latency("run", &r->run);
        print_latency("whole", &r->whole);
        putchar('\n');
    }
    printf("%8s %6s  %-16s %9s %7s %7s %10s %8s %10s %8s %10s %9s %9s\n", "pid", "uid", "name", "age",
           "streams", "buffers", "memory", "queued", "done", "failed", "moved", "p50", "p99");
    for (uint32_t i = 0; i < s->client_count; i++)
        print_client(&s->clients[i]);
}

/* ---- For programs ----------------------------------------------------------------------------------------
 */

static cJSON *client_json(const struct snapshot_client *row) {
    const struct wire_status_client *c = &row->client;
    cJSON *object = cJSON_CreateObject();
    json_add_number(object, "number", c->number);
    json_add_number(object, "pid", (uint64_t)c->pid);
    json_add_number(object, "uid", (uint64_t)c->uid);
    cJSON_AddStringToObject(object, "name", row->name);
    json_add_number(object, "age_ns", c->age_ns);
    json_add_number(object, "streams", c->streams);
    json_add_number(object, "buffers", c->buffers);
    json_add_number(object, "buffer_bytes", c->buffer_bytes);
    json_add_number(object, "jobs_queued", c->jobs_queued);
    json_add_number(object, "jobs_done", c->jobs_done);
    json_add_number(object, "jobs_failed", c->jobs_failed);
    json_add_number(object, "busy_ns", c->busy_ns);
    json_add_number(object, "bytes_moved", c->bytes_moved);
    json_add_number(object, "p50_ns", c->p50_ns);
    json_add_number(object, "p99_ns", c->p99_ns);
    return object;
}

static cJSON *device_json(const struct snapshot *s, uint32_t i) {
    const struct wire_status_device *d = &s->reply.device[i];
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "device", s->devices[i].device);
    cJSON_AddStringToObject(object, "name", s->devices[i].name);
    if (snapshot_is_gpu(s, i))
        cJSON_AddStringToObject(object, "mps", snapshot_mps(d));
    else
        cJSON_AddNullToObject(object, "mps");
    json_add_number(object, "own_bytes", d->own_bytes);
    if (s->devices[i].process_bytes < 0)
        cJSON_AddNullToObject(object, "process_bytes");
    else
        json_add_number(object, "process_bytes", (uint64_t)s->devices[i].process_bytes);
    json_add_number(object, "copy_bytes_per_s", d->copy_rate);
    double share = snapshot_copy_share(d);
    if (share < 0)
        cJSON_AddNullToObject(object, "copy_share");
    else
        cJSON_AddNumberToObject(object, "copy_share", share);
    return object;
}

static cJSON *held_json(const struct wire_status_user *u) {
    cJSON *object = cJSON_CreateObject();
    if (u->uid >= 0)
        json_add_number(object, "uid", (uint64_t)u->uid);
    json_add_number(object, "connections", u->connections);
    json_add_number(object, "streams", u->streams);
    json_add_number(object, "buffers", u->buffers);
    json_add_number(object, "buffer_bytes", u->buffer_bytes);
    json_add_number(object, "jobs_queued", u->jobs_queued);
    return object;
}

static void add_latency(cJSON *latency, const char *name, const struct histogram *h) {
    cJSON *object = cJSON_AddObjectToObject(latency, name);
    json_add_number(object, "p50_ns", histogram_quantile(h, 0.5));
    json_add_number(object, "p90_ns", histogram_quantile(h, 0.9));
    json_add_number(object, "p99_ns", histogram_quantile(h, 0.99));
    json_add_number(object, "p999_ns", histogram_quantile(h, 0.999));
}

static enum exit_code print_json(const struct snapshot *s) {
    const struct wire_status_reply *r = &s->reply;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", s->version);
    json_add_number(object, "pid", (uint64_t)r->pid);
    json_add_number(object, "uptime_ns", r->uptime_ns);
    cJSON_AddStringToObject(object, "backend", s->backend);
    cJSON_AddStringToObject(object, "detail", s->detail);
    json_add_number(object, "threads", r->threads);
    json_add_number(object, "connections", r->connections);
    json_add_number(object, "streams", r->streams);
    json_add_number(object, "buffers", r->buffers);
    json_add_number(object, "buffer_bytes", r->buffer_bytes);
    json_add_number(object, "jobs_queued", r->jobs_queued);
    json_add_number(object, "jobs_done", r->jobs_done);
    json_add_number(object, "jobs_failed", r->jobs_failed);
    json_add_number(object, "busy_ns", r->busy_ns);
    json_add_number(object, "bytes_moved", r->bytes_moved);
    cJSON *latency = cJSON_AddObjectToObject(object, "latency");
    add_latency(latency, "queue", &r->queue);
    add_latency(latency, "run", &r->run);
    add_latency(latency, "whole", &r->whole);
    cJSON *devices = cJSON_AddArrayToObject(object, "devices");
    for (uint32_t i = 0; i < r->device_count; i++)
        cJSON_AddItemToArray(devices, device_json(s, i));
    cJSON *clients = cJSON_AddArrayToObject(object, "clients");
    for (uint32_t i = 0; i < s->client_count; i++)
        cJSON_AddItemToArray(clients, client_json(&s->clients[i]));
    cJSON_AddItemToObject(object, "limits", held_json(&r->limits));
    cJSON *users = cJSON_AddArrayToObject(object, "users");
    for (uint32_t i = 0; i < r->user_count; i++)
        cJSON_AddItemToArray(users, held_json(&r->user[i]));
    enum exit_code code = json_print(object);
    cJSON_Delete(object);
    return code;
}

enum exit_code command_status(const struct options *options) {
    static struct snapshot snapshot; /* too large for a stack */
    struct kdad_connection *connection;
    enum exit_code code = open_connection(options, &connection);
    if (code != EXIT_DONE)
        return code;
    kdad_status status = snapshot_take_whole(&snapshot, connection);
    if (status != KDAD_OK)
        code = complain_of_library(NULL, status);
    kdad_disconnect(connection);
    if (code == EXIT_DONE && options->json)
        code = print_json(&snapshot);
    else if (code == EXIT_DONE)
        print_text(&snapshot);
    snapshot_free(&snapshot);
    return code;
}
