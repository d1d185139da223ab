/*
 * A client or the daemon is killed, or stopped for a while, at each step of a session: at its n-th send,
 * receive, mapping and descriptor, for all n. A client that dies leaves nothing in the daemon; one that is
 * stopped holds up nobody. A daemon that dies is told of as lost, no job is reported done that was not, and
 * the next daemon takes the socket that was left; one that is stopped and goes on has lost nothing.
 * And the time of day jumps while both are at work, which nobody is to notice.
 *
 * test_kills [SIDE:KIND:ACTION [CALL]], as "client:send:kill 17". Unless KDAD_FULL is set, each seventh call
 * is taken.
 */
#include "tests/fault/faulty.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const kinds[] = {"send", "receive", "map", "descriptor"};
enum { KINDS = sizeof kinds / sizeof *kinds, STOPPED_MS = 20 };

static const struct fault none = {0};
static int descriptors; /* of a daemon that serves nobody */

/* Waits until a process has stopped or ended. True: it has stopped. */
static bool await_stop(pid_t pid) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOWAIT) == 0 && info.si_code == CLD_STOPPED;
}

static bool kill_client(struct faulty_daemon *daemon, struct fault fault) {
    char what[300] = "the run behind the last kill";
    int code = faulty_session_end(faulty_session_start(fault, false), "a client to be killed", SIGKILL);
    bool hit = faulty_hit(what, sizeof what);
    if (hit != (code == 128 + SIGKILL))
        faulty_problem("%s: the session ends with %d", what, code);
    faulty_daemon_settles(daemon, descriptors, what);
    if (hit)
        faulty_session_good(what);
    return hit;
}

static bool stop_client(struct faulty_daemon *daemon, struct fault fault) {
    char what[300] = "the run behind the last stop";
    pid_t pid = faulty_session_start(fault, false);
    bool stopped = await_stop(pid);
    faulty_hit(what, sizeof what);
    if (stopped) {
        faulty_session_good(what);
        kill(pid, SIGCONT);
    }
    if (faulty_session_end(pid, what, 0) != 0)
        faulty_problem("%s: the session fails when it goes on", what);
    faulty_daemon_settles(daemon, descriptors, what);
    return stopped;
}

/* The session may fail, but never with a wrong result or for ever; the next daemon serves. */
static bool kill_daemon(struct fault fault) {
    char what[300] = "the run behind the last kill";
    struct faulty_daemon daemon, next;
    faulty_daemon_start(&daemon, fault);
    if (daemon.served)
        faulty_session_end(faulty_session_start(none, false), "the daemon is killed", 0);
    bool hit = faulty_hit(what, sizeof what);
    if (!hit) {
        faulty_daemon_stop(&daemon, what);
        return false;
    }
    if (daemon.pid > 0)
        faulty_wait(daemon.pid, what);
    faulty_daemon_restart(&next, none);
    faulty_session_good(what);
    faulty_daemon_settles(&next, descriptors, what);
    faulty_daemon_stop(&next, what);
    return true;
}

static bool stop_daemon(struct fault fault) {
    char what[300] = "the run behind the last stop";
    struct faulty_daemon daemon;
    faulty_daemon_start(&daemon, fault);
    if (!daemon.served) { /* nobody can have noticed */
        kill(daemon.pid, SIGKILL);
        faulty_wait(daemon.pid, what);
        return true;
    }
    pid_t pid = faulty_session_start(none, false);
    bool hit = false;
    siginfo_t info = {0};
    while (!hit && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && !info.si_pid) {
        usleep(1000);
        hit = faulty_hit(what, sizeof what);
    }
    hit = hit || faulty_hit(what, sizeof what);
    if (hit && await_stop(daemon.pid)) {
        usleep(STOPPED_MS * 1000);
        kill(daemon.pid, SIGCONT);
    }
    if (faulty_session_end(pid, what, 0) != 0)
        faulty_problem("%s: the session fails", what);
    faulty_continue(true); /* it may stop when the session has gone */
    faulty_daemon_settles(&daemon, descriptors, what);
    faulty_daemon_stop(&daemon, what);
    faulty_continue(false);
    return hit;
}

static bool run(struct faulty_daemon *daemon, bool client, struct fault fault) {
    bool kills = strcmp(fault.action, "kill") == 0;
    if (client)
        return kills ? kill_client(daemon, fault) : stop_client(daemon, fault);
    return kills ? kill_daemon(fault) : stop_daemon(fault);
}

static void run_beside_jumping_clock(void) {
    static const char what[] = "the clock jumps";
    struct fault behind_all = {"send", 1000000, "fail"}; /* none; but the library is loaded */
    struct faulty_daemon daemon;
    setenv("KDAD_FAULT_CLOCK", "1", 1);
    faulty_daemon_start(&daemon, behind_all);
    if (faulty_session_end(faulty_session_start(behind_all, false), what, 0) != 0)
        faulty_problem("%s: the session fails", what);
    faulty_daemon_settles(&daemon, descriptors, what);
    faulty_daemon_stop(&daemon, what);
    unsetenv("KDAD_FAULT_CLOCK");
    printf("%-8s %-12s %-6s %6d\n", "both", "clock", "jump", 1);
}

/* All calls of a kind, or one. */
static void run_all(struct faulty_daemon *daemon, bool client, const char *kind, const char *action,
                    const char *only, unsigned long one) {
    char name[48];
    int runs = 0;
    snprintf(name, sizeof name, "%s:%s:%s", client ? "client" : "daemon", kind, action);
    if (only && strcmp(only, name) != 0)
        return;
    unsigned long n = one ? one : 1;
    while (run(daemon, client, (struct fault){kind, n, action}) && !one) {
        runs++;
        n += getenv("KDAD_FULL") ? 1 : 7;
    }
    printf("%-8s %-12s %-6s %6d\n", client ? "client" : "daemon", kind, action, runs);
}

int main(int argc, char **argv) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    puts("skipped: sanitizers have functions of their own in these places");
    return 77;
#endif
    const char *only = argc > 1 ? argv[1] : NULL;
    unsigned long one = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    struct faulty_daemon daemon;
    if (!faulty_begin())
        return 1;
    faulty_daemon_start(&daemon, none);
    descriptors = faulty_daemon_descriptors(&daemon);
    faulty_session_good("before all");
    printf("%-8s %-12s %-6s %6s\n", "side", "calls", "action", "times");
    for (int k = 0; k < KINDS; k++) {
        run_all(&daemon, true, kinds[k], "kill", only, one);
        run_all(&daemon, true, kinds[k], "stop", only, one);
    }
    faulty_daemon_stop(&daemon, "beside clients that died");
    for (int k = 0; k < KINDS; k++) {
        run_all(NULL, false, kinds[k], "kill", only, one);
        run_all(NULL, false, kinds[k], "stop", only, one);
    }
    if (!only)
        run_beside_jumping_clock();
    return faulty_end() != 0;
}
