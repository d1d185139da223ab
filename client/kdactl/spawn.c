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

static char directory[SOCKET_MAX];
static char socket_path[SOCKET_MAX];

/* Changed with signals blocked, read by a handler too. */
static volatile pid_t keeper;
static volatile int life = -1; /* the pipe's end that kdactl holds */

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
    snprintf(directory, sizeof directory, "%s%s", parent, template);
    if (!mkdtemp(directory)) {
        complain("%s: cannot be made: %s", directory, strerror(errno));
        return false;
    }
    snprintf(socket_path, sizeof socket_path, "%.*s%s", (int)(SOCKET_MAX - sizeof socket_name), directory,
             socket_name);
    return true;
}

static void remove_directory(void) {
    unlink(socket_path);
    rmdir(directory);
}

/* ---- The keeper's side -----------------------------------------------------------------------------------
 */

/* In the keeper's child. A service manager's messages are not for this daemon. */
static _Noreturn void become_daemon(pid_t parent, int ready, const char *backend) {
    static const char *const foreign[] = {"LISTEN_FDS",    "LISTEN_PID",    "LISTEN_FDNAMES",
                                          "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
    char path[PATH_MAX], number[16], name[16];
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(EXIT_NO_DAEMON);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        unsetenv(foreign[i]);
    find_daemon(path);
    snprintf(number, sizeof number, "%d", ready);
    snprintf(name, sizeof name, "%s", backend);
    char *const arguments[] = {"kdad", "--config", "/dev/null",  "--socket", socket_path, "--backend",
                               name,   "--quiet",  "--ready-fd", number,     NULL};
    fcntl(ready, F_SETFD, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(path, arguments);
    complain("%s: cannot be run: %s", path, strerror(errno));
    _exit(EXIT_NO_DAEMON);
}

/* In kdactl's child, with all signals blocked: kdactl's end of the pipe is what it goes by. */
static _Noreturn void keep(int life_end, int ready, const char *backend) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO); /* so that whoever reads kdactl's output sees its end */
    setpgid(0, 0);             /* a terminal's Ctrl-C is for kdactl */
    pid_t self = getpid(), pid = fork();
    if (pid == 0)
        become_daemon(self, ready, backend);
    close(ready);
    if (pid > 0) {
        int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
        struct pollfd waits[] = {{.fd = pid_fd, .events = POLLIN}, {.fd = life_end, .events = POLLIN}};
        poll(waits, 2, -1);
        kill(pid, SIGTERM);
        if (poll(waits, 1, STOP_MS) == 0)
            kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    remove_directory();
    _exit(0);
}

/* ---- kdactl's side ---------------------------------------------------------------------------------------
 */

/* Starts the keeper. Returns the end of a pipe that the daemon writes to once it serves, or -1. */
static int start_keeper(const char *backend) {
    int lives[2], readies[2];
    if (pipe2(lives, O_CLOEXEC) < 0) {
        complain("no pipe: %s", strerror(errno));
        return -1;
    }
    if (pipe2(readies, O_CLOEXEC) < 0) {
        complain("no pipe: %s", strerror(errno));
        close(lives[0]);
        close(lives[1]);
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(lives[1]);
        close(readies[0]);
        keep(lives[0], readies[1], backend);
    }
    close(lives[0]);
    close(readies[1]);
    if (pid < 0) {
        complain("no process: %s", strerror(errno));
        close(lives[1]);
        close(readies[0]);
        return -1;
    }
    keeper = pid;
    life = lives[1];
    return readies[0];
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

const char *spawn_start(const char *backend) {
    sigset_t all, before;
    int ready = -1;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    if (make_directory()) {
        ready = start_keeper(backend);
        if (ready < 0)
            remove_directory();
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (ready < 0)
        return NULL;
    bool good = wait_ready(ready);
    close(ready);
    if (good)
        return socket_path;
    spawn_stop();
    return NULL;
}

void spawn_stop(void) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    if (life >= 0)
        close(life);
    life = -1;
    if (keeper > 0)
        waitpid(keeper, NULL, 0);
    keeper = 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void spawn_forget(void) {
    if (life >= 0)
        close(life);
    life = -1;
    keeper = 0;
}
