/*
 * kill.c - kdactl kill: ends a client of the daemon, and nobody else.
 *
 * Under MPS a process that dies in a long kernel takes all clients of its MPS server along. So its work on
 * the GPU is ended first, through the control daemon; if that fails, the process is left alone. A pidfd that
 * is older than the daemon's answer keeps the signals from another process with the same number.
 */
#include "client/deadline.h"
#include "client/kdactl/mps.h"
#include "client/kdactl/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double patience_s = 5; /* between the signals, and behind the last */

/* The wrappers of these came with glibc 2.36. */
static int open_process(int64_t pid) {
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

static bool send_signal(int process, int number) {
    return syscall(SYS_pidfd_send_signal, process, number, NULL, 0) == 0;
}

static bool has_ended(int process, double seconds) {
    int64_t deadline = deadline_now() + (int64_t)(seconds * 1e9);
    struct pollfd ended = {.fd = process, .events = POLLIN};
    int result;
    do
        result = poll(&ended, 1, deadline_poll(deadline));
    while (result <= 0 && deadline_left(deadline) > 0);
    return result > 0;
}

static bool parse_pid(const char *text, int64_t *pid) {
    char *end;
    errno = 0;
    *pid = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && *pid > 0 && *pid <= INT32_MAX;
}

/* --- MPS ----------------------------------------------------------------------------------------------- */

static bool uses_mps(const struct snapshot *s) {
    for (uint32_t i = 0; i < s->reply.device_count; i++)
        if (snapshot_is_gpu(s, i) && s->reply.device[i].mps == WIRE_MPS_ON)
            return true;
    return false;
}

static bool control_runs(void) {
    int64_t uid;
    uint64_t started;
    return process_look(mps_control_pid(), &uid, &started);
}

static bool is_listed(const int64_t *list, size_t count, int64_t pid) {
    for (size_t i = 0; i < count; i++)
        if (list[i] == pid)
            return true;
    return false;
}

/* The server that the process is a client of; 0: none. False, having complained, if MPS does not say. */
static bool find_server(int64_t pid, int64_t *server) {
    static int64_t servers[MPS_LIST], clients[MPS_LIST]; /* large for a stack */
    size_t server_count, client_count;
    char command[64], why[MPS_WHY];
    *server = 0;
    bool good = mps_ask_list("get_server_list", servers, &server_count, why);
    for (size_t i = 0; good && i < server_count && *server == 0; i++) {
        snprintf(command, sizeof command, "get_client_list %" PRId64, servers[i]);
        good = mps_ask_list(command, clients, &client_count, why);
        if (good && is_listed(clients, client_count, pid))
            *server = servers[i];
    }
    if (!good)
        complain("%s", why);
    return good;
}

/* Ends the process's work on the GPU, if it has any under MPS. */
static bool end_gpu_work(const struct snapshot *s, int64_t pid) {
    char command[96], why[MPS_WHY];
    int64_t server;
    if (!control_runs()) {
        if (uses_mps(s))
            complain(
                "kill: the daemon uses MPS, but no control daemon runs in %s: set CUDA_MPS_PIPE_DIRECTORY "
                "to its directory",
                mps_directory());
        return !uses_mps(s);
    }
    if (!find_server(pid, &server))
        return false;
    if (server == 0)
        return true;
    snprintf(command, sizeof command, "terminate_client %" PRId64 " %" PRId64, server, pid);
    if (!mps_ask(command, why)) {
        complain("%s", why);
        return false;
    }
    printf("%" PRId64 ": MPS server %" PRId64 " has ended its work on the GPU\n", pid, server);
    return true;
}

/* --- the command --------------------------------------------------------------------------------------- */

static bool end_process(int process, int64_t pid, double seconds) {
    static const struct {
        int number;
        const char *name;
    } signals[] = {{SIGTERM, "SIGTERM"}, {SIGKILL, "SIGKILL"}};
    for (int i = 0; i < 2; i++) {
        if (!send_signal(process, signals[i].number) && errno != ESRCH) {
            complain("kill: process %" PRId64 ": %s: %s", pid, signals[i].name, strerror(errno));
            return false;
        }
        if (has_ended(process, i == 0 ? seconds : patience_s)) {
            printf("%" PRId64 ": ended after %s\n", pid, signals[i].name);
            return true;
        }
    }
    complain("kill: process %" PRId64 " does not end, though it was sent SIGKILL: the kernel holds it", pid);
    return false;
}

static bool is_client(const struct snapshot *s, int64_t pid) {
    for (uint32_t i = 0; i < s->client_count; i++)
        if (s->clients[i].client.pid == pid && !snapshot_is_own(&s->clients[i]))
            return true;
    return false;
}

/* A daemon in another PID namespace has other numbers, or none; so it has for this process. */
static bool shares_numbers(const struct snapshot *s) {
    for (uint32_t i = 0; i < s->client_count; i++)
        if (snapshot_is_own(&s->clients[i]))
            return true;
    return false;
}

static bool may_be_ended(const struct snapshot *s, int process, int64_t pid) {
    if (!shares_numbers(s))
        complain("kill: the daemon numbers processes otherwise than this one does: they are in different PID "
                 "namespaces");
    else if (process < 0 || !is_client(s, pid))
        complain("kill: process %" PRId64 " is no client of this daemon: kdactl status lists them", pid);
    else
        return true;
    return false;
}

static enum exit_code kill_client(struct kdad_connection *connection, int process, int64_t pid,
                                  double seconds) {
    static struct snapshot snapshot; /* too large for a stack */
    kdad_status status = snapshot_take(&snapshot, connection);
    if (status != KDAD_OK)
        return complain_of_library(NULL, status);
    bool good = may_be_ended(&snapshot, process, pid) && end_gpu_work(&snapshot, pid) &&
                end_process(process, pid, seconds);
    snapshot_free(&snapshot);
    return good ? EXIT_DONE : EXIT_NO;
}

enum exit_code command_kill(const struct options *options) {
    struct kdad_connection *connection;
    int64_t pid;
    if (!parse_pid(options->arguments[0], &pid)) {
        complain("kill: '%s' is no process's number", options->arguments[0]);
        return EXIT_BAD_INPUT;
    }
    enum exit_code code = open_connection(options, &connection);
    if (code != EXIT_DONE)
        return code;
    int process = open_process(pid);
    if (process < 0 && errno != ESRCH && errno != EINVAL) {
        complain("kill: process %" PRId64 ": pidfd_open: %s", pid, strerror(errno));
        code = EXIT_NO;
    } else {
        code = kill_client(connection, process, pid, options->seconds > 0 ? options->seconds : patience_s);
    }
    if (process >= 0)
        close(process);
    kdad_disconnect(connection);
    return code;
}
