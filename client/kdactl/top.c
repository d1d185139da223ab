/*
 * top.c - kdactl top: what clients do between two looks at the daemon, again and again.
 *
 * Rates are differences of two snapshots, by the daemon's own clock. A client that was not there before
 * counts from its connection. A daemon that goes away is waited for.
 */
#include "client/deadline.h"
#include "client/kdactl/snapshot.h"
#include "client/kdactl/terminal.h"
#include "client/kdactl/text.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A client between two looks: rates in a second. */
struct pace_row {
    const struct snapshot_client *client;
    double jobs, failed, bytes, busy;
};

static const struct order {
    const char *name;
    size_t field; /* of pace_row, a double */
} orders[] = {
    {"jobs", offsetof(struct pace_row, jobs)},
    {"moved", offsetof(struct pace_row, bytes)},
    {"busy", offsetof(struct pace_row, busy)},
};

static unsigned order; /* the one in force */

/* --- rates --------------------------------------------------------------------------------------------- */

static double rate(uint64_t now, uint64_t before, double seconds) {
    return seconds > 0 && now > before ? (double)(now - before) / seconds : 0;
}

/* Clients come newest first. */
static const struct wire_status_client *find_client(const struct snapshot *s, uint64_t number) {
    uint32_t low = 0, high = s->client_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (s->clients[middle].client.number > number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->client_count && s->clients[low].client.number == number ? &s->clients[low].client : NULL;
}

static void fill_row(struct pace_row *row, const struct snapshot_client *client,
                     const struct snapshot *before) {
    static const struct wire_status_client nothing;
    const struct wire_status_client *now = &client->client, *then = find_client(before, now->number);
    double seconds = (double)(now->age_ns - (then ? then->age_ns : 0)) * 1e-9;
    if (!then)
        then = &nothing;
    row->client = client;
    row->jobs = rate(now->jobs_done, then->jobs_done, seconds);
    row->failed = rate(now->jobs_failed, then->jobs_failed, seconds);
    row->bytes = rate(now->bytes_moved, then->bytes_moved, seconds);
    row->busy = rate(now->busy_ns, then->busy_ns, seconds) * 1e-9;
}

static int by_order(const void *a, const void *b) {
    const struct pace_row *x = a, *y = b;
    double left, right;
    memcpy(&left, (const char *)x + orders[order].field, sizeof left);
    memcpy(&right, (const char *)y + orders[order].field, sizeof right);
    if (left != right)
        return left < right ? 1 : -1;
    return x->client->client.number < y->client->client.number ? 1 : -1;
}

/* --- a frame ------------------------------------------------------------------------------------------- */

static void put_rate_of_bytes(FILE *to, double bytes, int width) {
    char text[TEXT_MAX];
    text_of_bytes(text, (uint64_t)bytes);
    strcat(text, "/s");
    fprintf(to, "%*s", width, text);
}

static void put_latency(FILE *to, const char *name, const struct histogram *now,
                        const struct histogram *before) {
    char p50[TEXT_MAX], p99[TEXT_MAX];
    struct histogram between;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        between.count[i] = now->count[i] > before->count[i] ? now->count[i] - before->count[i] : 0;
    if (histogram_total(&between) == 0)
        fprintf(to, "  %s -", name);
    else
        fprintf(to, "  %s %s, p99 %s", name, text_of_ns(p50, histogram_quantile(&between, 0.5)),
                text_of_ns(p99, histogram_quantile(&between, 0.99)));
}

static void put_device(FILE *to, const struct snapshot *s, uint32_t i) {
    const struct wire_status_device *d = &s->reply.device[i];
    char text[TEXT_MAX];
    fprintf(to, "%-9s%s (%s)", i == 0 ? "devices" : "", s->devices[i].device, s->devices[i].name);
    if (snapshot_is_gpu(s, i))
        fprintf(to, ", MPS %s", snapshot_mps(d));
    if (s->devices[i].process_bytes >= 0)
        fprintf(to, ", %s taken by kdad", text_of_bytes(text, (uint64_t)s->devices[i].process_bytes));
    if (d->last_ns > 0)
        fprintf(to, ", last jobs %s of the copy bound", text_of_share(text, snapshot_copy_share(d)));
    putc('\n', to);
}

static void put_daemon(FILE *to, const struct snapshot *now, const struct snapshot *before) {
    const struct wire_status_reply *r = &now->reply, *b = &before->reply;
    double seconds = (double)(r->uptime_ns - b->uptime_ns) * 1e-9;
    char text[TEXT_MAX];
    fprintf(to, "kdad %s, pid %" PRId64 ", up %s, backend %s (%s), %u threads, %.0f %% busy\n", now->version,
            r->pid, text_of_ns(text, r->uptime_ns), now->backend, now->detail, r->threads,
            rate(r->busy_ns, b->busy_ns, seconds) * 1e-7);
    fprintf(to, "jobs     %.1f/s done, %.1f/s failed, %" PRIu64 " queued, ",
            rate(r->jobs_done, b->jobs_done, seconds), rate(r->jobs_failed, b->jobs_failed, seconds),
            r->jobs_queued);
    put_rate_of_bytes(to, rate(r->bytes_moved, b->bytes_moved, seconds), 0);
    fputs(" moved\nlatency", to);
    put_latency(to, "queue", &r->queue, &b->queue);
    put_latency(to, "run", &r->run, &b->run);
    put_latency(to, "whole", &r->whole, &b->whole);
    putc('\n', to);
    for (uint32_t i = 0; i < r->device_count; i++)
        put_device(to, now, i);
    fprintf(to, "memory   %s in %" PRIu64 " buffers, of %u clients with %" PRIu64 " streams\n",
            text_of_bytes(text, r->buffer_bytes), r->buffers, r->clients, r->streams);
}

static void put_row(FILE *to, const struct pace_row *row) {
    const struct wire_status_client *c = &row->client->client;
    char memory[TEXT_MAX], p50[TEXT_MAX], p99[TEXT_MAX];
    fprintf(to, "%8" PRId64 " %5" PRId64 "  %-15s %8.1f %6" PRIu64 " %8s %8s ", c->pid, c->uid,
            row->client->name, row->jobs, c->jobs_queued, text_of_ns(p50, c->p50_ns),
            text_of_ns(p99, c->p99_ns));
    put_rate_of_bytes(to, row->bytes, 12);
    fprintf(to, " %6.1f %8.1f %10s %7" PRIu64 "\n", row->busy * 100, row->failed,
            text_of_bytes(memory, c->buffer_bytes), c->streams);
}

/* Clients, this one left out. Returns the line that is the table's head, from 0; -1 if memory is short. */
static int put_frame(FILE *to, const struct snapshot *now, const struct snapshot *before) {
    struct pace_row *rows = malloc((now->client_count + 1) * sizeof *rows);
    uint32_t count = 0;
    if (!rows)
        return -1;
    put_daemon(to, now, before);
    for (uint32_t i = 0; i < now->client_count; i++) {
        if (!snapshot_is_own(&now->clients[i]))
            fill_row(&rows[count++], &now->clients[i], before);
    }
    qsort(rows, count, sizeof *rows, by_order);
    fprintf(to, "\n%8s %5s  %-15s %8s %6s %8s %8s %12s %6s %8s %10s %7s\n", "pid", "uid", "name", "jobs/s",
            "queued", "p50", "p99", "moved", "busy %", "failed/s", "memory", "streams");
    for (uint32_t i = 0; i < count; i++)
        put_row(to, &rows[i]);
    free(rows);
    return 5 + (int)now->reply.device_count;
}

/* --- the command --------------------------------------------------------------------------------------- */

static enum exit_code print_once(struct kdad_connection *connection, struct snapshot *now,
                                 struct snapshot *before, double seconds) {
    kdad_status status = snapshot_take(before, connection);
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (status == KDAD_OK) {
        nanosleep(&pause, NULL);
        status = snapshot_take(now, connection);
    }
    if (status != KDAD_OK)
        return complain_of_library(NULL, status);
    if (put_frame(stdout, now, before) >= 0)
        return EXIT_DONE;
    complain("out of memory");
    return EXIT_NO;
}

/* The frame, or why there is none. */
static void draw(kdad_status status, const struct snapshot *now, const struct snapshot *before) {
    char *text = NULL;
    size_t size = 0;
    int head = -1;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return;
    if (status == KDAD_OK)
        head = put_frame(to, now, before);
    else
        fprintf(to, "%s\n", kdad_error());
    fprintf(to, "\nq leaves; s sorts, now by %s\n", orders[order].name);
    if (fclose(to) == 0)
        terminal_draw(text, head);
    free(text);
}

static bool is_same_daemon(const struct snapshot *now, const struct snapshot *before) {
    return now->reply.pid == before->reply.pid && now->reply.uptime_ns > before->reply.uptime_ns;
}

/* Draws until somebody presses q. */
static void watch(struct kdad_connection *connection, struct snapshot snapshots[2], double seconds) {
    struct snapshot *now = &snapshots[0], *before = &snapshots[1];
    int64_t interval = (int64_t)(seconds * 1e9), due = deadline_now() + 200000000; /* the first one soon */
    kdad_status status = snapshot_take(now, connection);
    before->reply = (struct wire_status_reply){0};
    for (;;) {
        int64_t left = due - deadline_now();
        draw(status, now, before);
        int key = left > 0 ? terminal_key((int)(left / 1000000) + 1) : 0;
        if (key == 'q' || key == 'Q')
            return;
        if (key == 's')
            order = (order + 1) % (sizeof orders / sizeof *orders);
        if (deadline_now() < due)
            continue;
        due = deadline_now() + interval;
        if (status == KDAD_OK) { /* else there is nothing new to compare with */
            struct snapshot *swap = now;
            now = before;
            before = swap;
        }
        status = snapshot_take(now, connection);
        if (status == KDAD_OK && !is_same_daemon(now, before)) {
            snapshot_free(before);
            before->reply = (struct wire_status_reply){0};
        }
    }
}

enum exit_code command_top(const struct options *options) {
    static struct snapshot snapshots[2]; /* too large for a stack */
    double seconds = options->seconds > 0 ? options->seconds : 1;
    struct kdad_connection *connection;
    enum exit_code code = open_connection(options, &connection);
    if (code != EXIT_DONE)
        return code;
    if (!options->once && terminal_enter()) {
        watch(connection, snapshots, seconds);
        terminal_leave();
    } else {
        code = print_once(connection, &snapshots[0], &snapshots[1], seconds);
    }
    kdad_disconnect(connection);
    snapshot_free(&snapshots[0]);
    snapshot_free(&snapshots[1]);
    return code;
}
