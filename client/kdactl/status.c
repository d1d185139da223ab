/*
 * status.c - kdactl status: what the daemon tells of itself and its clients.
 *
 * One reply holds 64 clients; if there are more, the rest is asked for. Names come from clients and may hold
 * anything, so what a terminal would act on is replaced.
 */
#include "client/connection.h"
#include "client/kdactl/kdactl.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A reply's numbers and strings, copied out of it. */
struct daemon_status {
    struct wire_status_reply reply; /* its strings and clients are not to be used */
    char version[WIRE_NAME_MAX + 1], backend[WIRE_NAME_MAX + 1], detail[WIRE_NAME_MAX + 1];
    struct client_row {
        struct wire_status_client client;
        char name[WIRE_NAME_MAX + 1];
    } * rows;
    uint32_t row_count;
};

static void take_string(char to[WIRE_NAME_MAX + 1], const struct wire_string *from) {
    uint32_t size = from->size < WIRE_NAME_MAX ? from->size : WIRE_NAME_MAX;
    for (uint32_t i = 0; i < size; i++)
        to[i] = (char)(from->data[i] >= ' ' && from->data[i] <= '~' ? from->data[i] : '?');
    to[size] = '\0';
}

static bool take_reply(struct daemon_status *status, const struct wire_status_reply *reply) {
    status->reply = *reply;
    take_string(status->version, &reply->version);
    take_string(status->backend, &reply->backend);
    take_string(status->detail, &reply->detail);
    size_t count = (size_t)status->row_count + reply->count;
    struct client_row *rows = realloc(status->rows, (count ? count : 1) * sizeof *rows);
    if (!rows)
        return false;
    status->rows = rows;
    for (uint32_t i = 0; i < reply->count; i++) {
        struct client_row *row = &rows[status->row_count++];
        row->client = reply->client[i];
        take_string(row->name, &reply->client[i].name);
    }
    return true;
}

static enum exit_code ask(struct kdad_connection *connection, struct daemon_status *status) {
    struct session_reply reply;
    uint32_t got;
    do {
        struct wire_message request = {.opcode = WIRE_STATUS, .status.first = status->row_count};
        kdad_status result = connection_request(connection, &request, KDAD_DEFAULT_TIMEOUT, &reply);
        if (result != KDAD_OK)
            return complain_of_library(NULL, result);
        got = reply.message.status_reply.count;
        bool taken = take_reply(status, &reply.message.status_reply);
        session_reply_free(&reply);
        if (!taken) {
            complain("out of memory");
            return EXIT_NO;
        }
    } while (got > 0 && status->row_count < status->reply.clients);
    return EXIT_DONE;
}

/* ---- For people ------------------------------------------------------------------------------------------
 */

static const char *bytes_text(uint64_t bytes, char text[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static const char *time_text(uint64_t ns, char text[32]) {
    double s = (double)ns / 1e9;
    if (s < 1)
        snprintf(text, 32, "%.1f ms", s * 1e3);
    else if (s < 120)
        snprintf(text, 32, "%.1f s", s);
    else if (s < 7200)
        snprintf(text, 32, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(text, 32, "%.1f h", s / 3600);
    else
        snprintf(text, 32, "%.1f days", s / 86400);
    return text;
}

static void print_text(const struct daemon_status *status) {
    const struct wire_status_reply *r = &status->reply;
    char a[32], b[32];
    printf("kdad %s, pid %" PRId64 ", up %s\n", status->version, r->pid, time_text(r->uptime_ns, a));
    printf("backend   %s (%s), %u threads, %s of thread time spent on jobs\n", status->backend,
           status->detail, r->threads, time_text(r->busy_ns, a));
    printf("jobs      %" PRIu64 " done, %" PRIu64 " failed, %" PRIu64 " queued\n", r->jobs_done,
           r->jobs_failed, r->jobs_queued);
    printf("memory    %s in %" PRIu64 " buffers\n", bytes_text(r->buffer_bytes, a), r->buffers);
    printf("clients   %u now, %" PRIu64 " since it started, %" PRIu64 " streams\n\n", r->clients,
           r->connections, r->streams);
    printf("%8s %6s  %-16s %9s %7s %7s %10s %8s %10s %8s %9s\n", "pid", "uid", "name", "age", "streams",
           "buffers", "memory", "queued", "done", "failed", "busy");
    for (uint32_t i = 0; i < status->row_count; i++) {
        const struct wire_status_client *c = &status->rows[i].client;
        char busy[32];
        printf("%8" PRId64 " %6" PRId64 "  %-16s %9s %7" PRIu64 " %7" PRIu64 " %10s %8" PRIu64 " %10" PRIu64
               " %8" PRIu64 " %9s\n",
               c->pid, c->uid, status->rows[i].name, time_text(c->age_ns, a), c->streams, c->buffers,
               bytes_text(c->buffer_bytes, b), c->jobs_queued, c->jobs_done, c->jobs_failed,
               time_text(c->busy_ns, busy));
    }
}

/* ---- For programs ----------------------------------------------------------------------------------------
 */

/* Numbers are written digit by digit: a double would round those beyond 2^53. */
static void add_number(cJSON *object, const char *key, uint64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    cJSON_AddRawToObject(object, key, text);
}

static cJSON *client_json(const struct client_row *row) {
    const struct wire_status_client *c = &row->client;
    cJSON *object = cJSON_CreateObject();
    add_number(object, "pid", (uint64_t)c->pid);
    add_number(object, "uid", (uint64_t)c->uid);
    cJSON_AddStringToObject(object, "name", row->name);
    add_number(object, "age_ns", c->age_ns);
    add_number(object, "streams", c->streams);
    add_number(object, "buffers", c->buffers);
    add_number(object, "buffer_bytes", c->buffer_bytes);
    add_number(object, "jobs_queued", c->jobs_queued);
    add_number(object, "jobs_done", c->jobs_done);
    add_number(object, "jobs_failed", c->jobs_failed);
    add_number(object, "busy_ns", c->busy_ns);
    return object;
}

static enum exit_code print_json(const struct daemon_status *status) {
    const struct wire_status_reply *r = &status->reply;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", status->version);
    add_number(object, "pid", (uint64_t)r->pid);
    add_number(object, "uptime_ns", r->uptime_ns);
    cJSON_AddStringToObject(object, "backend", status->backend);
    cJSON_AddStringToObject(object, "detail", status->detail);
    add_number(object, "threads", r->threads);
    add_number(object, "connections", r->connections);
    add_number(object, "streams", r->streams);
    add_number(object, "buffers", r->buffers);
    add_number(object, "buffer_bytes", r->buffer_bytes);
    add_number(object, "jobs_queued", r->jobs_queued);
    add_number(object, "jobs_done", r->jobs_done);
    add_number(object, "jobs_failed", r->jobs_failed);
    add_number(object, "busy_ns", r->busy_ns);
    cJSON *clients = cJSON_AddArrayToObject(object, "clients");
    for (uint32_t i = 0; i < status->row_count; i++)
        cJSON_AddItemToArray(clients, client_json(&status->rows[i]));
    char *text = cJSON_Print(object);
    cJSON_Delete(object);
    if (!text) {
        complain("out of memory");
        return EXIT_NO;
    }
    puts(text);
    cJSON_free(text);
    return EXIT_DONE;
}

enum exit_code command_status(const struct options *options) {
    struct kdad_connection *connection;
    struct daemon_status status = {0};
    enum exit_code code = open_connection(options, &connection);
    if (code != EXIT_DONE)
        return code;
    code = ask(connection, &status);
    kdad_disconnect(connection);
    if (code == EXIT_DONE && options->json)
        code = print_json(&status);
    else if (code == EXIT_DONE)
        print_text(&status);
    free(status.rows);
    return code;
}
