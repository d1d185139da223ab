/*
 * trace.c - kdactl trace: the jobs of the next seconds, as a file in the format of Chrome's traces.
 *
 * Jobs are written as they come. Names of clients and streams stand behind them: the format does not mind.
 */
#include "client/connection.h"
#include "client/deadline.h"
#include "client/kdactl/output.h"
#include "client/kdactl/snapshot.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int64_t pause_ns = 20000000, names_ns = 500000000;

/* A row of the picture: a client's stream that a job came of; or, with stream 0, the client. */
struct row {
    uint64_t client, stream;
    int64_t pid;
    char name[WIRE_NAME_MAX + 1]; /* the client's; "" if it is not known */
};

static volatile sig_atomic_t enough;

static void on_interrupt(int number) {
    (void)number;
    enough = 1;
}

struct trace {
    FILE *to;
    struct row *rows;
    size_t row_count, row_room;
    uint64_t from, jobs, lost, clients;
    bool no_memory;
};

/* --- rows ---------------------------------------------------------------------------------------------- */

static struct row *find_row(struct trace *t, uint64_t client, uint64_t stream) {
    for (size_t i = 0; i < t->row_count; i++)
        if (t->rows[i].client == client && t->rows[i].stream == stream)
            return &t->rows[i];
    return NULL;
}

static void add_row(struct trace *t, uint64_t client, uint64_t stream, int64_t pid) {
    if (find_row(t, client, stream))
        return;
    if (t->row_count == t->row_room) {
        size_t room = t->row_room ? 2 * t->row_room : 64;
        struct row *rows = realloc(t->rows, room * sizeof *rows);
        t->no_memory |= !rows;
        if (!rows)
            return;
        t->rows = rows;
        t->row_room = room;
    }
    t->rows[t->row_count++] = (struct row){.client = client, .stream = stream, .pid = pid};
    t->clients += stream == 0;
}

/* Clients' names are those of the status: of clients that have gone before it was asked for, none. */
static kdad_status take_names(struct trace *t, struct kdad_connection *connection) {
    static struct snapshot snapshot; /* too large for a stack */
    kdad_status status = snapshot_take(&snapshot, connection);
    if (status != KDAD_OK)
        return status;
    for (uint32_t i = 0; i < snapshot.client_count; i++) {
        struct row *row = find_row(t, snapshot.clients[i].client.number, 0);
        if (row)
            memcpy(row->name, snapshot.clients[i].name, sizeof row->name);
    }
    snapshot_free(&snapshot);
    return KDAD_OK;
}

/* --- the file ------------------------------------------------------------------------------------------ */

/* Microseconds, to the nanosecond: a double would round them. */
static void put_time(FILE *to, const char *key, uint64_t ns) {
    fprintf(to, "\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

static void put_job(struct trace *t, const struct wire_trace_job *j) {
    bool ran = j->started_ns != 0;
    uint64_t start = ran ? j->started_ns : j->ended_ns;
    fprintf(t->to, "{\"ph\":\"%s\",\"cat\":\"job\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64 ",", ran ? "X" : "i",
            j->client, j->stream);
    put_time(t->to, "ts", start);
    if (ran) {
        putc(',', t->to);
        put_time(t->to, "dur", j->ended_ns - start);
    } else {
        fputs(",\"s\":\"t\"", t->to);
    }
    fprintf(t->to, ",\"name\":\"%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 "\",\"args\":{", j->B, j->T,
            j->HV, j->K);
    put_time(t->to, "queued_us", start - j->received_ns);
    fprintf(t->to, ",\"ticket\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"status\":\"%s\"}},\n", j->ticket,
            j->bytes, kdad_status_string((kdad_status)j->status));
    add_row(t, j->client, 0, j->pid);
    add_row(t, j->client, j->stream, j->pid);
    t->jobs++;
}

/* A name of a snapshot is printable ASCII. */
static void put_name(FILE *to, const char *name) {
    for (; *name; name++) {
        if (*name == '"' || *name == '\\')
            putc('\\', to);
        putc(*name, to);
    }
}

static void put_rows(struct trace *t) {
    for (size_t i = 0; i < t->row_count; i++) {
        const struct row *row = &t->rows[i];
        fprintf(t->to, "{\"ph\":\"M\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64 ",\"name\":\"%s\",\"args\":{",
                row->client, row->stream, row->stream == 0 ? "process_name" : "thread_name");
        fputs("\"name\":\"", t->to);
        if (row->stream == 0) {
            put_name(t->to, row->name[0] ? row->name : "client");
            fprintf(t->to, ", pid %" PRId64, row->pid);
        } else {
            fprintf(t->to, "stream %" PRIu64, row->stream);
        }
        fputs("\"}},\n", t->to);
    }
}

/* --- the command --------------------------------------------------------------------------------------- */

/* One request; writes what came. *more: there may be more already. */
static kdad_status take_jobs(struct trace *t, struct kdad_connection *connection, bool *more) {
    struct wire_message request = {.opcode = WIRE_TRACE, .trace.from = t->from};
    struct session_reply reply;
    kdad_status status = connection_request(connection, &request, KDAD_DEFAULT_TIMEOUT, &reply);
    if (status != KDAD_OK)
        return status;
    const struct wire_trace_reply *r = &reply.message.trace_reply;
    for (uint32_t i = 0; i < r->count; i++)
        put_job(t, &r->job[i]);
    t->from = r->next;
    t->lost += r->lost;
    *more = r->count == WIRE_TRACE_JOBS || r->lost > 0;
    session_reply_free(&reply);
    return KDAD_OK;
}

/* Jobs that had ended by the time that it is over are all asked for, unless they end faster than that. */
static kdad_status follow(struct trace *t, struct kdad_connection *connection, double seconds) {
    int64_t end = deadline_now() + (int64_t)(seconds * 1e9), names = 0;
    bool more = true, over = false;
    kdad_status status = KDAD_OK;
    while (status == KDAD_OK && (more || !over) && deadline_now() < end + 1000000000) {
        if (!more)
            nanosleep(&(struct timespec){0, pause_ns}, NULL);
        over = enough || deadline_now() >= end;
        status = take_jobs(t, connection, &more);
        if (status == KDAD_OK && deadline_now() >= names) {
            status = take_names(t, connection);
            names = deadline_now() + names_ns;
        }
    }
    return status == KDAD_OK ? take_names(t, connection) : status;
}

/* Writes the whole file. Complains if it cannot. */
static enum exit_code write_trace(struct trace *t, struct kdad_connection *connection,
                                  const struct options *options) {
    struct sigaction interrupt = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &interrupt, NULL);
    fprintf(t->to, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    kdad_status status = follow(t, connection, options->seconds > 0 ? options->seconds : 5);
    if (status != KDAD_OK)
        return complain_of_library(NULL, status);
    put_rows(t);
    fprintf(t->to, "{\"ph\":\"M\",\"pid\":0,\"name\":\"kdad\",\"args\":{\"lost\":%" PRIu64 "}}\n]}\n",
            t->lost);
    if (t->no_memory) {
        complain("out of memory");
        return EXIT_NO;
    }
    return EXIT_DONE;
}

static enum exit_code trace_to(const char *path, struct kdad_connection *connection,
                               const struct options *options) {
    char why[SAFETENSORS_WHY];
    struct trace t = {.to = output_open(path, why)};
    enum exit_code code = EXIT_NO;
    bool good = t.to != NULL;
    if (good) {
        code = write_trace(&t, connection, options);
        good = output_close(path, t.to, code == EXIT_DONE, why);
    }
    if (good)
        printf("%s: %" PRIu64 " jobs of %" PRIu64 " clients, %" PRIu64 " lost\n", path, t.jobs, t.clients,
               t.lost);
    else if (code == EXIT_DONE || !t.to) /* else it was said */
        complain("%s: %s", path, why);
    free(t.rows);
    return good ? EXIT_DONE : graver(code, EXIT_NO);
}

enum exit_code command_trace(const struct options *options) {
    struct kdad_connection *connection;
    enum exit_code code = open_connection(options, &connection);
    if (code != EXIT_DONE)
        return code;
    code = trace_to(options->arguments[0], connection, options);
    kdad_disconnect(connection);
    return code;
}
