#include "client/kdactl/spawn.h"

#include "client/kdactl/kdactl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    START_MS = 30000,
    STOP_MS = 20000, /* a job that runs is finished first */
    SOCKET_MAX = sizeof((struct sockaddr_un *)0)->sun_path,
};

static const char socket_name[] = "/kdad.sock";

/* Written with signals blocked, read by a handler too. */
static char directory[SOCKET_MAX];
static char socket_path[SOCKET_MAX];
static volatile pid_t daemon_pid;
static volatile int daemon_fd = -1; /* a pidfd */

/* The kdad beside this program; "kdad", to be looked for in PATH, if there is none. */
static void find_daemon(char path[PATH_MAX]) {
    static const char name[] = "kdad";
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - sizeof name);
    char *slash = NULL;
    if (length > 0) {
        path[length] = '\0';
        slash = strrchr(path, '/');
    }
    if (slash)
        memcpy(slash + 1, name, sizeof name);
    if (!slash || access(path, X_OK) < 0)
        memcpy(path, name, sizeof name);
}

static bool make_directory(void) {
    const char *parent = getenv("TMPDIR");
    static const char template[] = "/kdactl.XXXXXX";
    if (!parent || parent[0] != '/' || strlen(parent) + sizeof template + sizeof socket_name > SOCKET_MAX)
        parent = "/tmp";
    char path[SOCKET_MAX];
    snprintf(path, sizeof path, "%s%s", parent, template);
    if (!mkdtemp(path)) {
        complain("%s: cannot be made: %s", path, strerror(errno));
        return false;
    }
    snprintf(socket_path, sizeof socket_path, "%.*s%s", (int)(SOCKET_MAX - sizeof socket_name), path,
             socket_name);
    memcpy(directory, path, sizeof directory); /* from here on spawn_stop removes it */
    return true;
}

/* In the child. A service manager's messages are not for this daemon. */
static _Noreturn void become_daemon(pid_t parent, int ready) {
    static const char *const foreign[] = {"LISTEN_FDS",    "LISTEN_PID",    "LISTEN_FDNAMES",
                                          "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
    char path[PATH_MAX], number[16];
    sigset_t none;
    setpgid(0, 0); /* a terminal's Ctrl-C is kdactl's to pass on */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(EXIT_NO_DAEMON);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        unsetenv(foreign[i]);
    find_daemon(path);
    snprintf(number, sizeof number, "%d", ready);
    char *const arguments[] = {"kdad",    "--socket",   socket_path, "--backend", "cpu",
                               "--quiet", "--ready-fd", number,      NULL};
    fcntl(ready, F_SETFD, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(path, arguments);
    complain("%s: cannot be run: %s", path, strerror(errno));
    _exit(EXIT_NO_DAEMON);
}

/* True once the daemon has written its byte. */
static bool wait_ready(int fd) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    char byte;
    int found;
    do {
        found = poll(&wait, 1, START_MS);
    } while (found < 0 && errno == EINTR);
    if (found == 0)
        complain("the private daemon is not ready after %d s", START_MS / 1000);
    else if (found < 0 || read(fd, &byte, 1) != 1)
        complain("the private daemon has not started");
    else
        return true;
    return false;
}

const char *spawn_start(void) {
    sigset_t all, before;
    int ready[2] = {-1, -1};
    pid_t parent = getpid();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    bool good = make_directory();
    if (good && pipe2(ready, O_CLOEXEC) < 0) {
        complain("no pipe: %s", strerror(errno));
        good = false;
    }
    pid_t pid = good ? fork() : -1;
    if (pid == 0)
        become_daemon(parent, ready[1]);
    if (good && pid < 0)
        complain("no process: %s", strerror(errno));
    if (pid > 0) {
        daemon_pid = pid;
        daemon_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);

    if (ready[1] >= 0)
        close(ready[1]);
    good = pid > 0 && wait_ready(ready[0]);
    if (ready[0] >= 0)
        close(ready[0]);
    if (good)
        return socket_path;
    spawn_stop();
    return NULL;
}

void spawn_stop(void) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    if (daemon_pid > 0) {
        kill(daemon_pid, SIGTERM);
        struct pollfd wait = {.fd = daemon_fd, .events = POLLIN};
        if (daemon_fd < 0 || poll(&wait, 1, STOP_MS) == 0)
            kill(daemon_pid, SIGKILL);
        waitpid(daemon_pid, NULL, 0);
        daemon_pid = 0;
    }
    if (daemon_fd >= 0)
        close(daemon_fd);
    daemon_fd = -1;
    if (directory[0]) {
        unlink(socket_path);
        rmdir(directory);
        directory[0] = '\0';
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}
