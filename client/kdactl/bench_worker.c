#include "client/kdactl/bench_worker.h"

#include "client/deadline.h"
#include "client/kdactl/spawn.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ANSWER_MS = 60000,
    STOP_MS = 10000,
    WAIT_MS = 50000, /* for one job: less than an answer's time, so that the reason is told */
    DEPTH = 32,      /* jobs in flight while throughput is measured */
};

/* ---- The client's side -----------------------------------------------------------------------------------
 */

struct route {
    struct kdad_connection *connection;
    struct kdad_stream *stream;
};

struct client {
    int fd;
    const char *socket, *gpu;
    struct bench_device device;
    struct route routes[2]; /* through the daemon; local */
    struct bench_job job;
    struct kdad_connection *owner; /* of the job's memory */
    struct bench_answer answer;
};

static bool library_failed(struct client *c, kdad_status status) {
    c->answer.status = status;
    snprintf(c->answer.why, sizeof c->answer.why, "%s", kdad_error());
    return false;
}

static bool device_failed(struct client *c) {
    c->answer.status = KDAD_INTERNAL;
    return false;
}

static bool on_device(struct client *c, bool good) {
    return good || device_failed(c);
}

static bool on_library(struct client *c, kdad_status status) {
    return status == KDAD_OK || library_failed(c, status);
}

static void add_sample(struct client *c, double sample) {
    if (c->answer.count < BENCH_SAMPLES)
        c->answer.samples[c->answer.count++] = sample;
}

static bool connect_route(struct client *c, bool local) {
    struct route *route = &c->routes[local];
    return (route->connection || on_library(c, kdad_connect(local ? "local:" : c->socket,
                                                            KDAD_DEFAULT_TIMEOUT, &route->connection))) &&
           (route->stream ||
            on_library(c, bench_device_stream(&c->device, route->connection, &route->stream)));
}

static bool same_shape(const struct bench_shape *a, const struct bench_shape *b) {
    return a->B == b->B && a->T == b->T && a->H == b->H && a->HV == b->HV && a->K == b->K && a->C == b->C;
}

/* The job of that shape: the last one's, or anew. On the processor its memory is shared with the daemon, if
 * the client is connected to it. */
static bool have_job(struct client *c, const struct bench_shape *shape) {
    if (c->job.memory && same_shape(&c->job.shape, shape))
        return true;
    bench_job_free(&c->job, &c->device, c->owner);
    c->owner = c->routes[0].connection ? c->routes[0].connection : c->routes[1].connection;
    return on_device(c, bench_job_make(&c->job, shape, &c->device, c->owner, c->answer.why));
}

static bool submit(struct client *c, bool local, kdad_ticket *ticket) {
    return on_library(c, kdad_chunk_kda_bwd_intra(c->routes[local].stream, &c->job.args, ticket));
}

static bool await(struct client *c, bool local, kdad_ticket ticket) {
    return on_library(c, kdad_wait(c->routes[local].stream, ticket, WAIT_MS));
}

static bool open_device(struct client *c) {
    const int64_t start = deadline_now();
    bool good = bench_device_open(&c->device, c->gpu, c->answer.why);
    add_sample(c, (double)(deadline_now() - start) / 1e6);
    return on_device(c, good);
}

/* A GPU's tensors are there before the client connects, as a trainer's are. */
static bool first(struct client *c, const struct bench_order *order) {
    kdad_ticket ticket;
    if (c->device.gpu && !have_job(c, &order->shape))
        return false;
    const int64_t start = deadline_now();
    if (!connect_route(c, order->local))
        return false;
    const int64_t connected = deadline_now();
    if (!have_job(c, &order->shape) || !submit(c, order->local, &ticket) || !await(c, order->local, ticket))
        return false;
    add_sample(c, (double)(deadline_now() - start) / 1e6);
    add_sample(c, (double)(connected - start) / 1e6);
    return true;
}

static bool one_by_one(struct client *c, const struct bench_order *order) {
    for (int i = 0; i < order->count; i++) {
        kdad_ticket ticket;
        const int64_t start = deadline_now();
        if (!submit(c, order->local, &ticket) || !await(c, order->local, ticket))
            return false;
        add_sample(c, (double)(deadline_now() - start) / 1e3);
    }
    return true;
}

/* The job depends on the kernel by the stream's order, and the kernel touches what the job reads. */
static bool pairs(struct client *c, const struct bench_order *order) {
    for (int batch = 0; batch < order->batches; batch++) {
        kdad_ticket ticket = 0;
        const int64_t start = deadline_now();
        for (int i = 0; i < order->count; i++)
            if (!on_device(c, bench_device_touch(&c->device, c->job.args.q.data, c->answer.why)) ||
                !submit(c, order->local, &ticket))
                return false;
        if (!on_device(c, bench_device_finish(&c->device, c->answer.why)))
            return false;
        add_sample(c, (double)(deadline_now() - start) / 1e3 / order->count);
        if (!await(c, order->local, ticket))
            return false;
    }
    return true;
}

static int64_t cpu_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool submit_cpu(struct client *c, const struct bench_order *order) {
    for (int batch = 0; batch < order->batches; batch++) {
        kdad_ticket ticket = 0;
        const int64_t start = cpu_time();
        for (int i = 0; i < order->count; i++)
            if (!submit(c, order->local, &ticket))
                return false;
        add_sample(c, (double)(cpu_time() - start) / 1e3 / order->count);
        if (!await(c, order->local, ticket))
            return false;
    }
    return true;
}

static bool told_to_stop(const struct client *c) {
    struct pollfd wait = {.fd = c->fd, .events = POLLIN};
    return poll(&wait, 1, 0) > 0;
}

static void sleep_until(int64_t ns) {
    const struct timespec t = {ns / 1000000000, ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        continue;
}

/* Waits while more than DEPTH jobs are in flight. On a GPU by events of the client's own: a wait for a job in
 * this process is one for all that the stream holds, which would let the GPU run dry. */
static bool hold_back(struct client *c, bool local, kdad_ticket ticket) {
    if (c->device.gpu)
        return ticket % (DEPTH / 2) > 0 || on_device(c, bench_device_mark(&c->device, c->answer.why));
    return ticket <= DEPTH || await(c, local, ticket - DEPTH);
}

/* How many jobs were done, from when to when. */
static bool throughput(struct client *c, const struct bench_order *order) {
    kdad_ticket ticket = 0;
    int64_t jobs = 0;
    if (order->verb == BENCH_THROUGHPUT)
        sleep_until(order->start_ns);
    const int64_t start = deadline_now(), end = start + order->window_ns;
    while (order->verb == BENCH_THROUGHPUT ? deadline_now() < end : !told_to_stop(c)) {
        if (!submit(c, order->local, &ticket) || !hold_back(c, order->local, ticket))
            return false;
        jobs++;
    }
    if (jobs > 0 && !await(c, order->local, ticket))
        return false;
    c->answer.work = (struct bench_work){jobs, start, deadline_now()};
    return true;
}

static bool hold(struct client *c, const struct bench_order *order) {
    kdad_ticket ticket;
    return on_device(c, bench_device_hold(&c->device, c->answer.why)) && submit(c, order->local, &ticket);
}

static bool obey(struct client *c, const struct bench_order *order) {
    if (order->verb == BENCH_OPEN)
        return open_device(c);
    if (order->verb == BENCH_FIRST)
        return first(c, order);
    if (!connect_route(c, order->local) || order->verb == BENCH_CONNECT)
        return c->answer.status == KDAD_OK;
    if (!have_job(c, &order->shape))
        return false;
    switch (order->verb) {
    case BENCH_ONE_BY_ONE:
        return one_by_one(c, order);
    case BENCH_PAIRS:
        return pairs(c, order);
    case BENCH_SUBMIT:
        return submit_cpu(c, order);
    case BENCH_THROUGHPUT:
    case BENCH_LOAD:
        return throughput(c, order);
    case BENCH_HOLD:
        return hold(c, order);
    case BENCH_RELEASE:
        return on_device(c, bench_device_release(&c->device, c->answer.why));
    default:
        return true;
    }
}

/* In the forked process: until kdactl lets go, or ends. */
static _Noreturn void serve(struct client *c, pid_t parent) {
    static const int numbers[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM};
    struct bench_order order;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        signal(numbers[i], SIG_DFL); /* kdactl's handler is not for this process */
    spawn_forget();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_NO);
    while (recv(c->fd, &order, sizeof order, 0) == sizeof order) {
        if (order.verb == BENCH_STOP)
            continue;
        c->answer.status = KDAD_OK;
        c->answer.why[0] = '\0';
        c->answer.count = 0;
        obey(c, &order);
        if (send(c->fd, &c->answer, sizeof c->answer, MSG_NOSIGNAL) != sizeof c->answer)
            break;
    }
    bench_job_free(&c->job, &c->device, c->owner);
    kdad_disconnect(c->routes[0].connection);
    kdad_disconnect(c->routes[1].connection);
    _exit(EXIT_DONE);
}

/* ---- kdactl's side ---------------------------------------------------------------------------------------
 */

enum exit_code bench_worker_start(struct bench_worker *worker, const char *socket, const char *gpu) {
    static struct client client; /* the forked process's own copy */
    int ends[2];
    *worker = (struct bench_worker){0};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
        complain("no socket pair: %s", strerror(errno));
        return EXIT_NO;
    }
    const pid_t self = getpid();
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        client = (struct client){.fd = ends[1], .socket = socket, .gpu = gpu};
        serve(&client, self);
    }
    close(ends[1]);
    if (pid < 0) {
        complain("no process: %s", strerror(errno));
        close(ends[0]);
        return EXIT_NO;
    }
    *worker = (struct bench_worker){.pid = pid, .fd = ends[0]};
    return EXIT_DONE;
}

/* Its socket's end closes when it is done with all else. */
void bench_worker_stop(struct bench_worker *worker) {
    if (worker->pid <= 0)
        return;
    struct pollfd wait = {.fd = worker->fd, .events = POLLIN};
    const int64_t deadline = deadline_in(STOP_MS);
    struct bench_answer rest;
    shutdown(worker->fd, SHUT_WR);
    bool gone = false;
    while (!gone && poll(&wait, 1, deadline_poll(deadline)) > 0)
        gone = recv(worker->fd, &rest, sizeof rest, 0) <= 0;
    if (!gone)
        kill(worker->pid, SIGKILL);
    close(worker->fd);
    while (waitpid(worker->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    worker->pid = 0;
}

enum exit_code bench_worker_tell(const struct bench_worker *worker, const struct bench_order *order) {
    if (send(worker->fd, order, sizeof *order, MSG_NOSIGNAL) == sizeof *order)
        return EXIT_DONE;
    complain("a client process of the bench has ended");
    return EXIT_NO;
}

enum exit_code bench_worker_hear(const struct bench_worker *worker, struct bench_answer *answer) {
    struct pollfd wait = {.fd = worker->fd, .events = POLLIN};
    const int64_t deadline = deadline_in(ANSWER_MS);
    int found;
    while ((found = poll(&wait, 1, deadline_poll(deadline))) < 0 && errno == EINTR)
        continue;
    if (found <= 0) {
        complain("a client process of the bench does not answer");
        kill(worker->pid, SIGKILL);
        return EXIT_NO;
    }
    if (recv(worker->fd, answer, sizeof *answer, 0) != sizeof *answer) {
        complain("a client process of the bench has ended");
        return EXIT_NO;
    }
    if (answer->status == KDAD_OK)
        return EXIT_DONE;
    complain("%s", answer->why);
    return exit_code_of(answer->status);
}

enum exit_code bench_worker_ask(const struct bench_worker *worker, const struct bench_order *order,
                                struct bench_answer *answer) {
    enum exit_code code = bench_worker_tell(worker, order);
    return code == EXIT_DONE ? bench_worker_hear(worker, answer) : code;
}
