/*
 * main.c - kdad: starts the backend, then the listener; runs the loop; stops when asked.
 *
 * Stopping: no connection is accepted any more; what is queued is cancelled, what runs finishes; packets that
 * clients had sent are still read, so that each of their jobs gets its status; then connections close.
 */
#include "daemon/daemon.h"
#include "daemon/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Batches that a stopping daemon still reads from a client: enough for all that its socket holds. */
enum { STOP_BATCHES = 128 };

static const char stopping[] = "the daemon is stopping";

/* A stopping daemon lets go of each client whose jobs have ended. */
static void stop_clients(struct daemon *daemon) {
    for (struct client *c = daemon->clients, *next; c; c = next) {
        next = c->next;
        if (c->ending)
            continue;
        for (int i = 0; i < STOP_BATCHES && client_read(c); i++)
            client_cancel(c, stopping);
        if (!c->ending && client_is_settled(c))
            client_fail(c, WIRE_CANCELLED, "daemon stops", "%s", stopping);
    }
}

static void settle(struct daemon *daemon) {
    if (daemon->stopping)
        stop_clients(daemon);
    for (struct client *c = daemon->clients, *next; c; c = next) {
        next = c->next;
        client_settle(c);
    }
}

static void on_settle(uv_async_t *async) {
    settle(async->data);
}

static void on_soon(uv_timer_t *timer) {
    settle(timer->data);
}

void daemon_settle_soon(struct daemon *daemon) {
    if (!uv_is_active((uv_handle_t *)&daemon->soon) && !uv_is_closing((uv_handle_t *)&daemon->soon))
        uv_timer_start(&daemon->soon, on_soon, 1, 0);
}

/* One that was not opened has no data. */
static void close_handle(uv_handle_t *handle) {
    if (handle->data && !uv_is_closing(handle))
        uv_close(handle, NULL);
}

void daemon_check_end(struct daemon *daemon) {
    if (!daemon->stopping || daemon->clients)
        return;
    close_handle((uv_handle_t *)&daemon->settle);
    close_handle((uv_handle_t *)&daemon->soon);
    close_handle((uv_handle_t *)&daemon->watchdog);
    close_handle((uv_handle_t *)&daemon->terminate);
    close_handle((uv_handle_t *)&daemon->interrupt);
    close_handle((uv_handle_t *)&daemon->hangup);
}

static void on_signal(uv_signal_t *handle, int number) {
    struct daemon *daemon = handle->data;
    log_event(LOG_INFO, "stop", "signal=%d clients=%u", number, daemon->client_count);
    if (daemon->stopping)
        _exit(1); /* asked twice: not gracefully then */
    daemon->stopping = true;
    manager_tell("STOPPING=1");
    listener_close(daemon);
    for (struct client *c = daemon->clients; c; c = c->next)
        client_cancel(c, stopping);
    uv_async_send(&daemon->settle);
    daemon_check_end(daemon);
}

static void on_hangup(uv_signal_t *handle, int number) {
    struct daemon *daemon = handle->data;
    char why[OPTIONS_WHY], quoted[OPTIONS_WHY];
    (void)number;
    if (options_reload(&daemon->options, daemon->argc, daemon->argv, why))
        log_set_level(daemon->options.log_level);
    else
        log_event(LOG_ERROR, "reload_failed", "why=%s", log_quote(quoted, sizeof quoted - 64, why));
}

static void on_idle(void *argument) {
    uv_async_send(argument);
}

/* As many descriptors as the hard limit allows: a client takes two. */
static void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static bool open_backend(struct daemon *daemon, const struct backend_ops *ops, const struct options *options,
                         char why[PROBLEM_WHY]) {
    struct backend *backend = ops->open(options, on_idle, &daemon->settle, why);
    if (backend)
        daemon->backends[daemon->backend_count++] = backend;
    return backend != NULL;
}

/* auto is cuda, where there is a GPU that can be used, and cpu beside it. */
static bool open_backends(struct daemon *daemon, const struct options *options, char why[PROBLEM_WHY]) {
    bool cpu = strcmp(options->backend, "cuda") != 0, cuda = strcmp(options->backend, "cpu") != 0;
#ifdef HAVE_CUDA
    if (cuda && !open_backend(daemon, &cuda_backend, options, why)) {
        char quoted[2 * PROBLEM_WHY];
        if (!cpu)
            return false;
        log_event(LOG_INFO, "no_cuda", "why=%s", log_quote(quoted, sizeof quoted, why));
    }
#else
    if (cuda && !cpu) {
        snprintf(why, PROBLEM_WHY, "backend cuda: this build of kdad has none");
        return false;
    }
#endif
    return !cpu || open_backend(daemon, &cpu_backend, options, why);
}

static int open_signal(struct daemon *daemon, uv_signal_t *handle, uv_signal_cb handler, int number) {
    int error = uv_signal_init(&daemon->loop, handle);
    if (error)
        return error;
    handle->data = daemon;
    return uv_signal_start(handle, handler, number);
}

static bool open_handles(struct daemon *daemon, char why[PROBLEM_WHY]) {
    uv_timer_init(&daemon->loop, &daemon->soon); /* timers need nothing */
    uv_timer_init(&daemon->loop, &daemon->watchdog);
    daemon->soon.data = daemon->watchdog.data = daemon;
    int error = uv_async_init(&daemon->loop, &daemon->settle, on_settle);
    if (!error) {
        daemon->settle.data = daemon;
        error = open_signal(daemon, &daemon->terminate, on_signal, SIGTERM);
    }
    if (!error)
        error = open_signal(daemon, &daemon->interrupt, on_signal, SIGINT);
    if (!error)
        error = open_signal(daemon, &daemon->hangup, on_hangup, SIGHUP);
    if (error)
        snprintf(why, PROBLEM_WHY, "the event loop cannot be made: %s", uv_strerror(error));
    return error == 0;
}

static bool start(struct daemon *daemon, char why[PROBLEM_WHY]) {
    uint8_t *batch = malloc((size_t)DAEMON_BATCH * WIRE_PACKET_MAX);
    daemon->batch[0].data = batch;
    daemon->codec = wire_codec_new();
    if (!batch || !daemon->codec) {
        snprintf(why, PROBLEM_WHY, "out of memory");
        return false;
    }
    for (int i = 1; i < DAEMON_BATCH; i++)
        daemon->batch[i].data = batch + (size_t)i * WIRE_PACKET_MAX;
    return open_handles(daemon, why) && open_backends(daemon, &daemon->options, why) &&
           listener_open(daemon, daemon->options.socket, why);
}

static void tell_ready(const struct daemon *daemon, int fd) {
    char path[2 * sizeof daemon->listener.address.sun_path];
    const struct backend *first = daemon->backends[0];
    log_event(LOG_INFO, "ready", "version=%s socket=%s backend=%s detail=%s threads=%u pid=%d", KDAD_VERSION,
              log_quote(path, sizeof path, daemon->listener.address.sun_path), first->ops->name,
              first->ops->detail(first), first->ops->threads(first), (int)getpid());
    manager_tell("READY=1");
    if (fd < 0)
        return;
    if (write(fd, "\n", 1) < 0)
        log_event(LOG_WARNING, "ready_fd", "why=\"%s\"", strerror(errno));
    close(fd);
}

static void clean_up(struct daemon *daemon) {
    listener_close(daemon);
    daemon->stopping = true;
    daemon_check_end(daemon);
    uv_run(&daemon->loop, UV_RUN_DEFAULT); /* closes what is closing */
    for (int i = 0; i < daemon->backend_count; i++)
        daemon->backends[i]->ops->close(daemon->backends[i]);
    loop_close(&daemon->loop);
    wire_codec_free(daemon->codec);
    trace_free(&daemon->trace);
    free(daemon->batch[0].data);
    options_free(&daemon->options);
}

#ifdef KDAD_MAIN /* inside another program: tests/fuzz */
int KDAD_MAIN(int argc, char **argv);
#define main KDAD_MAIN
#endif

int main(int argc, char **argv) {
    static struct daemon daemon = {.listener = {.socket = -1, .reserve = -1}};
    char why[PROBLEM_WHY];
    int code = options_parse(&daemon.options, argc, argv);
    if (code >= 0)
        return code;
    daemon.argc = argc;
    daemon.argv = argv;
    log_set_level(daemon.options.log_level);
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    if (!loop_open(&daemon.loop, why)) {
        fprintf(stderr, "kdad: %s\n", why);
        return 1;
    }
    daemon.thread = uv_thread_self();
    daemon.since = uv_hrtime();
    code = start(&daemon, why) ? 0 : 1;
    if (code == 0) {
        manager_watchdog(&daemon);
        tell_ready(&daemon, daemon.options.ready_fd);
        uv_run(&daemon.loop, UV_RUN_DEFAULT);
        log_event(LOG_INFO, "stopped", "jobs_done=%llu jobs_failed=%llu connections=%llu",
                  (unsigned long long)daemon.jobs_done, (unsigned long long)daemon.jobs_failed,
                  (unsigned long long)daemon.connections);
    } else {
        fprintf(stderr, "kdad: %s\n", why);
    }
    clean_up(&daemon);
    return code;
}
