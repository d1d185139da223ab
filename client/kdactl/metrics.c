/*
 * metrics.c - kdactl metrics: the status as text for Prometheus.
 *
 * Names stay: dashboards hang on them. Times are in seconds, sizes in bytes. Without a daemon the text says
 * so, so that a file from a while ago is not taken for the present.
 */
#include "client/kdactl/output.h"
#include "client/kdactl/snapshot.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* --- samples ------------------------------------------------------------------------------------------- */

static void describe(FILE *to, const char *name, const char *type, const char *help) {
    fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* The value of a label, in quotes. Strings of a snapshot have no line breaks. */
static void put_label(FILE *to, const char *name, const char *value) {
    fprintf(to, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            putc('\\', to);
        putc(*value, to);
    }
    putc('"', to);
}

static void put_number(FILE *to, const char *name, const char *type, const char *help, uint64_t value) {
    describe(to, name, type, help);
    fprintf(to, "%s %" PRIu64 "\n", name, value);
}

static void put_seconds(FILE *to, const char *name, const char *type, const char *help, uint64_t ns) {
    describe(to, name, type, help);
    fprintf(to, "%s %.9g\n", name, (double)ns * 1e-9);
}

/* One limit an octave of the histogram's four. */
static void put_histogram(FILE *to, const char *name, const char *help, const struct histogram *h,
                          uint64_t sum_ns) {
    uint64_t total = 0;
    describe(to, name, "histogram", help);
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        total += h->count[i];
        if (i % 4 == 0 && i < HISTOGRAM_BUCKETS - 1)
            fprintf(to, "%s_bucket{le=\"%.9g\"} %" PRIu64 "\n", name, (double)histogram_limit(i) * 1e-9,
                    total);
    }
    fprintf(to, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, total);
    fprintf(to, "%s_sum %.9g\n%s_count %" PRIu64 "\n", name, (double)sum_ns * 1e-9, name, total);
}

/* --- the daemon ---------------------------------------------------------------------------------------- */

static void put_daemon(FILE *to, const struct snapshot *s) {
    const struct wire_status_reply *r = &s->reply;
    describe(to, "kdad_info", "gauge", "1, with what the daemon is as labels.");
    fputs("kdad_info{", to);
    put_label(to, "version", s->version);
    putc(',', to);
    put_label(to, "backend", s->backend);
    putc(',', to);
    put_label(to, "detail", s->detail);
    fputs("} 1\n", to);
    put_seconds(to, "kdad_uptime_seconds", "gauge", "Time since the daemon started.", r->uptime_ns);
    put_number(to, "kdad_threads", "gauge", "Threads of the backend.", r->threads);
    put_number(to, "kdad_connections_total", "counter", "Clients that have connected.", r->connections);
    put_number(to, "kdad_clients", "gauge", "Clients that are connected.", r->clients);
    put_number(to, "kdad_streams", "gauge", "Open streams.", r->streams);
    put_number(to, "kdad_buffers", "gauge", "Registered buffers.", r->buffers);
    put_number(to, "kdad_buffer_bytes", "gauge", "Memory of clients that is mapped.", r->buffer_bytes);
    put_number(to, "kdad_jobs_queued", "gauge", "Jobs that were submitted and have not ended.",
               r->jobs_queued);
    put_number(to, "kdad_jobs_done_total", "counter", "Jobs that ended well.", r->jobs_done);
    put_number(to, "kdad_jobs_failed_total", "counter", "Jobs that were refused, failed or were cancelled.",
               r->jobs_failed);
    put_seconds(to, "kdad_busy_seconds_total", "counter", "Thread time spent on packets and jobs.",
                r->busy_ns);
    put_number(to, "kdad_moved_bytes_total", "counter",
               "What the jobs that ended well had to read and write at least.", r->bytes_moved);
    put_histogram(to, "kdad_job_queue_seconds", "From the arrival of a job's packet to its start.", &r->queue,
                  r->queue_ns);
    put_histogram(to, "kdad_job_run_seconds", "From a job's start to its end.", &r->run, r->run_ns);
    put_histogram(to, "kdad_job_whole_seconds", "From the arrival of a job's packet to its end.", &r->whole,
                  r->queue_ns + r->run_ns);
}

/* --- devices ------------------------------------------------------------------------------------------- */

static void begin_device(FILE *to, const char *name, const struct snapshot *s, uint32_t i) {
    fprintf(to, "%s{", name);
    put_label(to, "device", s->devices[i].device);
    fputs("} ", to);
}

static double share(const struct snapshot *s, uint32_t i) {
    return snapshot_copy_share(&s->reply.device[i]);
}

static double copy_rate(const struct snapshot *s, uint32_t i) {
    uint64_t rate = s->reply.device[i].copy_rate;
    return rate > 0 ? (double)rate : -1;
}

static double mps_on(const struct snapshot *s, uint32_t i) {
    uint32_t mps = s->reply.device[i].mps;
    return mps == WIRE_MPS_ON ? 1 : mps == WIRE_MPS_OFF ? 0 : -1;
}

static double own_bytes(const struct snapshot *s, uint32_t i) {
    return snapshot_is_gpu(s, i) ? (double)s->reply.device[i].own_bytes : -1;
}

static double process_bytes(const struct snapshot *s, uint32_t i) {
    return (double)s->devices[i].process_bytes;
}

/* What is not known of a device is left out. */
static void put_devices(FILE *to, const struct snapshot *s) {
    static const struct {
        const char *name, *help;
        double (*value)(const struct snapshot *s, uint32_t i); /* negative: not known */
    } gauges[] = {
        {"kdad_device_mps", "1 if the daemon is a client of MPS on the GPU, else 0.", mps_on},
        {"kdad_device_own_bytes", "GPU memory that the daemon has allocated for itself.", own_bytes},
        {"kdad_device_process_bytes", "GPU memory that the daemon's process takes in all.", process_bytes},
        {"kdad_device_copy_bytes_per_second", "Bytes that a copy reads and writes in a second.", copy_rate},
        {"kdad_device_copy_share", "How near the last jobs came to the speed of that copy.", share},
    };
    describe(to, "kdad_device_info", "gauge", "1, with a device's name as label.");
    for (uint32_t i = 0; i < s->reply.device_count; i++) {
        fputs("kdad_device_info{", to);
        put_label(to, "device", s->devices[i].device);
        putc(',', to);
        put_label(to, "name", s->devices[i].name);
        fputs("} 1\n", to);
    }
    for (size_t g = 0; g < sizeof gauges / sizeof *gauges; g++) {
        describe(to, gauges[g].name, "gauge", gauges[g].help);
        for (uint32_t i = 0; i < s->reply.device_count; i++) {
            double value = gauges[g].value(s, i);
            if (value < 0)
                continue;
            begin_device(to, gauges[g].name, s, i);
            fprintf(to, "%.9g\n", value);
        }
    }
}

/* --- clients ------------------------------------------------------------------------------------------- */

static void begin_client(FILE *to, const char *name, const struct snapshot_client *row) {
    fprintf(to, "%s{client=\"%" PRIu64 "\",pid=\"%" PRId64 "\",uid=\"%" PRId64 "\",", name,
            row->client.number, row->client.pid, row->client.uid);
    put_label(to, "name", row->name);
    fputs("} ", to);
}

/* This call's own connection is left out: each time it would be another. */
static void put_clients(FILE *to, const struct snapshot *s) {
#define FIELD(name) offsetof(struct wire_status_client, name)
    static const struct {
        const char *name, *type, *help;
        size_t field;
        bool seconds;
    } metrics[] = {
        {"kdad_client_buffer_bytes", "gauge", "A client's memory that is mapped.", FIELD(buffer_bytes), 0},
        {"kdad_client_streams", "gauge", "A client's open streams.", FIELD(streams), 0},
        {"kdad_client_jobs_queued", "gauge", "A client's jobs that have not ended.", FIELD(jobs_queued), 0},
        {"kdad_client_jobs_done_total", "counter", "A client's jobs that ended well.", FIELD(jobs_done), 0},
        {"kdad_client_jobs_failed_total", "counter", "A client's jobs that did not.", FIELD(jobs_failed), 0},
        {"kdad_client_busy_seconds_total", "counter", "Thread time spent for a client.", FIELD(busy_ns), 1},
        {"kdad_client_moved_bytes_total", "counter", "What a client's jobs had to read and write at least.",
         FIELD(bytes_moved), 0},
    };
#undef FIELD
    for (size_t m = 0; m < sizeof metrics / sizeof *metrics; m++) {
        describe(to, metrics[m].name, metrics[m].type, metrics[m].help);
        for (uint32_t i = 0; i < s->client_count; i++) {
            const struct snapshot_client *row = &s->clients[i];
            uint64_t value;
            if (snapshot_is_own(row))
                continue;
            memcpy(&value, (const char *)&row->client + metrics[m].field, sizeof value);
            begin_client(to, metrics[m].name, row);
            if (metrics[m].seconds)
                fprintf(to, "%.9g\n", (double)value * 1e-9);
            else
                fprintf(to, "%" PRIu64 "\n", value);
        }
    }
}

/* --- the command --------------------------------------------------------------------------------------- */

static void put_all(FILE *to, const struct snapshot *s, bool up) {
    put_number(to, "kdad_up", "gauge", "1 if the daemon answers, else 0.", up);
    if (!up)
        return;
    put_daemon(to, s);
    put_devices(to, s);
    put_clients(to, s);
}

enum exit_code command_metrics(const struct options *options) {
    static struct snapshot snapshot; /* too large for a stack */
    struct kdad_connection *connection;
    char why[SAFETENSORS_WHY];
    enum exit_code code = open_connection(options, &connection);
    if (code == EXIT_DONE) {
        kdad_status status = snapshot_take_whole(&snapshot, connection);
        if (status != KDAD_OK)
            code = complain_of_library(NULL, status);
        kdad_disconnect(connection);
    }
    FILE *to = options->output ? output_open(options->output, why) : stdout;
    if (to)
        put_all(to, &snapshot, code == EXIT_DONE);
    if (options->output && (!to || !output_close(options->output, to, true, why))) {
        complain("%s: %s", options->output, why);
        code = graver(code, EXIT_NO);
    }
    snapshot_free(&snapshot);
    return code;
}
