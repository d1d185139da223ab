#include "tests/bench/bench_overhead.h"

#include "client/kdad.h"
#include "daemon/meter.h"
#include "kernels/problem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS = 21,          /* turns of each; medians over them */
    CALLS = 2000,         /* round trips of a turn */
    COUNTED = 100000,     /* jobs of a turn that are only counted */
    PIPELINED = 300000,   /* jobs of a pipelined turn */
    PIPELINED_ROUNDS = 5, /* of those */
    WINDOW = 512,         /* jobs in flight */
    PACKET = 148,         /* bytes of the smallest job's SUBMIT, and of the raw ping */
};

struct child {
    pid_t pid;
    char directory[64], socket[96];
};

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

/* --- the two children ---------------------------------------------------------------------------------- */

/* Starts kdad and waits until it serves. */
static bool start_daemon(struct child *daemon, const char *path) {
    int ready[2];
    char number[16], byte;
    strcpy(daemon->directory, "/tmp/kdad-bench-XXXXXX");
    if (!mkdtemp(daemon->directory) || pipe(ready) < 0)
        return false;
    snprintf(daemon->socket, sizeof daemon->socket, "%s/kdad.sock", daemon->directory);
    snprintf(number, sizeof number, "%d", ready[1]);
    daemon->pid = fork();
    if (daemon->pid == 0) {
        close(ready[0]);
        execl(path, path, "--socket", daemon->socket, "--backend", "cpu", "--quiet", "--ready-fd", number,
              (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    bool up = daemon->pid > 0 && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    return up;
}

static void stop_daemon(struct child *daemon) {
    if (daemon->pid > 0) {
        kill(daemon->pid, SIGTERM);
        waitpid(daemon->pid, NULL, 0);
    }
    rmdir(daemon->directory);
}

/* A process that answers each packet with the same packet. */
static pid_t start_echo(int *socket) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        char buffer[PACKET];
        ssize_t n;
        close(pair[0]);
        while ((n = recv(pair[1], buffer, sizeof buffer, 0)) > 0)
            send(pair[1], buffer, (size_t)n, MSG_NOSIGNAL);
        _exit(0);
    }
    close(pair[1]);
    *socket = pair[0];
    return pid;
}

/* --- turns --------------------------------------------------------------------------------------------- */

/* Seconds for each round trip; < 0 on failure. */
static double ping_pong(int socket) {
    char buffer[PACKET] = {0};
    double start = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < CALLS; i++) {
        if (send(socket, buffer, sizeof buffer, 0) < 0 || recv(socket, buffer, sizeof buffer, 0) < 0)
            return -1;
    }
    return (seconds(CLOCK_MONOTONIC) - start) / CALLS;
}

static double call(struct kdad_stream *stream, const struct kdad_chunk_kda_bwd_intra_args *args) {
    kdad_ticket ticket;
    double start = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < CALLS; i++) {
        if (kdad_chunk_kda_bwd_intra(stream, args, &ticket) ||
            kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT))
            return -1;
    }
    return (seconds(CLOCK_MONOTONIC) - start) / CALLS;
}

/* Jobs for each second of the daemon's processor time; *wall: of wall time. */
static double pipelined(struct kdad_stream *stream, const struct kdad_chunk_kda_bwd_intra_args *args,
                        clockid_t daemon, double *wall) {
    kdad_ticket ticket = 0;
    double start = seconds(CLOCK_MONOTONIC), start_cpu = seconds(daemon);
    for (int i = 0; i < PIPELINED; i++) {
        if (kdad_chunk_kda_bwd_intra(stream, args, &ticket))
            return -1;
        if (ticket % (WINDOW / 2) == 0 && ticket > WINDOW &&
            kdad_wait(stream, ticket - WINDOW / 2, KDAD_DEFAULT_TIMEOUT))
            return -1;
    }
    if (kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT))
        return -1;
    *wall = PIPELINED / (seconds(CLOCK_MONOTONIC) - start);
    return PIPELINED / (seconds(daemon) - start_cpu);
}

/* Seconds for what the daemon counts of a job: the clock three times, the meters, and its bytes. */
static double counters(void) {
    static struct meter meter;
    static struct recent recent;
    static struct pace pace;
    static uint64_t bytes_moved, busy_ns, jobs_done;
    volatile int64_t rows = 1; /* or the compiler would find the bytes once */
    double start = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < COUNTED; i++) {
        const struct problem p = {.B = 1, .T = rows, .H = 1, .HV = 1, .K = 16, .C = 16, .N = -1};
        uint64_t at[3], bytes = problem_traffic(&p);
        for (int n = 0; n < 3; n++)
            at[n] = (uint64_t)(seconds(CLOCK_MONOTONIC) * 1e9);
        meter_add(&meter, at[1] - at[0], at[2] - at[1]);
        recent_add(&recent, at[2] - at[0]);
        pace_add(&pace, bytes, at[2] - at[1]);
        __atomic_fetch_add(&bytes_moved, bytes, __ATOMIC_RELAXED);
        __atomic_fetch_add(&busy_ns, at[2] - at[1], __ATOMIC_RELAXED);
        __atomic_fetch_add(&jobs_done, 1, __ATOMIC_RELAXED);
    }
    return (seconds(CLOCK_MONOTONIC) - start) / COUNTED;
}

static struct kdad_tensor tensor(float *memory, int *at, int64_t width) {
    struct kdad_tensor t = kdad_tensor_4d(memory + *at, KDAD_F32, 1, 1, 1, width);
    *at += 16;
    return t;
}

static struct kdad_tensor scalar(float *memory, int *at) {
    struct kdad_tensor t = kdad_tensor_3d(memory + *at, KDAD_F32, 1, 1, 1);
    *at += 16;
    return t;
}

static void smallest_job(struct kdad_chunk_kda_bwd_intra_args *args, float *memory) {
    int at = 0;
    for (int i = 0; i < 16 * 16; i++)
        memory[i] = (float)(i % 7) * 0.25F;
    *args = (struct kdad_chunk_kda_bwd_intra_args){.chunk_size = 16};
    args->q = tensor(memory, &at, 16);
    args->k = tensor(memory, &at, 16);
    args->g = tensor(memory, &at, 16);
    args->beta = scalar(memory, &at);
    args->dAqk = tensor(memory, &at, 16);
    args->dAkk = tensor(memory, &at, 16);
    args->dq = tensor(memory, &at, 16);
    args->dk = tensor(memory, &at, 16);
    args->db = scalar(memory, &at);
    args->dg = tensor(memory, &at, 16);
    args->dq_out = tensor(memory, &at, 16);
    args->dk_out = tensor(memory, &at, 16);
    args->db_out = scalar(memory, &at);
    args->dg_out = tensor(memory, &at, 16);
}

static int measure(struct kdad_connection *connection, pid_t daemon, int echo, bool json) {
    struct kdad_stream *stream;
    struct kdad_chunk_kda_bwd_intra_args args;
    double raw[ROUNDS], ours[ROUNDS], ratio[ROUNDS], counted[ROUNDS], rate[PIPELINED_ROUNDS],
        wall[PIPELINED_ROUNDS];
    clockid_t clock;
    float *memory = kdad_alloc(connection, 16 * 16 * sizeof(float));
    if (!memory || kdad_stream_open(connection, NULL, &stream) || clock_getcpuclockid(daemon, &clock) != 0)
        return 1;
    smallest_job(&args, memory);
    if (ping_pong(echo) < 0 || call(stream, &args) < 0) /* warm-up */
        return 1;
    for (int i = 0; i < ROUNDS; i++) {
        raw[i] = ping_pong(echo);
        ours[i] = call(stream, &args);
        ratio[i] = ours[i] / raw[i];
        counted[i] = counters();
        if (raw[i] < 0 || ours[i] < 0)
            return 1;
    }
    for (int i = 0; i < PIPELINED_ROUNDS; i++) {
        rate[i] = pipelined(stream, &args, clock, &wall[i]);
        if (rate[i] < 0)
            return 1;
    }
    double r = median(raw, ROUNDS) * 1e6, o = median(ours, ROUNDS) * 1e6, q = median(ratio, ROUNDS);
    double n = median(counted, ROUNDS) * 1e6;
    double p = median(rate, PIPELINED_ROUNDS), w = median(wall, PIPELINED_ROUNDS);
    kdad_stream_close(stream);
    if (json) {
        printf("{\"overhead\": {\"ping_pong_us\": %.3f, \"submit_to_done_us\": %.3f, \"ratio\": %.3f, "
               "\"counters_us\": %.4f, \"jobs_per_daemon_cpu_s\": %.0f, \"jobs_per_s\": %.0f}}\n",
               r, o, q, n, p, w);
        return 0;
    }
    printf("smallest job (B 1, T 1, H 1, K 16), medians\n");
    printf("  %-48s %10.2f us\n", "raw SOCK_SEQPACKET ping-pong, two processes", r);
    printf("  %-48s %10.2f us %8.2f x\n", "submit to done through the daemon", o, q);
    printf("  %-48s %10.3f us %8.2f %%\n", "of that for counters and latencies", n, 100 * n / o);
    printf("  %-48s %10.0f /s\n", "pipelined jobs, per second of daemon CPU time", p);
    printf("  %-48s %10.0f /s\n", "pipelined jobs, per second", w);
    return 0;
}

int bench_overhead(const char *kdad_path, bool json) {
    struct child daemon = {0};
    struct kdad_connection *connection = NULL;
    int echo = -1, code = 1;
    pid_t echo_pid = start_echo(&echo);
    if (echo_pid > 0 && start_daemon(&daemon, kdad_path) &&
        kdad_connect(daemon.socket, KDAD_DEFAULT_TIMEOUT, &connection) == KDAD_OK)
        code = measure(connection, daemon.pid, echo, json);
    if (code)
        fprintf(stderr, "kdad-bench: overhead: %s\n", *kdad_error() ? kdad_error() : strerror(errno));
    kdad_disconnect(connection);
    close(echo);
    if (echo_pid > 0)
        waitpid(echo_pid, NULL, 0);
    stop_daemon(&daemon);
    return code;
}
