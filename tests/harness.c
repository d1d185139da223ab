#include "tests/harness.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_OPTIONS = 16 };

const char *harness_path(const char *file) {
    static char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    ck_assert_int_gt(length, 0);
    path[length] = 0;
    for (int up = 0; up < 2; up++) /* from build/tests/PROGRAM to build */
        *strrchr(path, '/') = 0;
    ck_assert_uint_lt(strlen(path) + strlen(file) + 2, sizeof path);
    strcat(path, "/");
    strcat(path, file);
    return path;
}

/* Starts kdad with arguments ahead of the options, and waits for a byte. listener: -1, or what it takes over.
 */
static pid_t spawn(const char *const *ahead, const char *const *options, int listener) {
    int ready[2];
    char number[16], byte;
    ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
    int told = fcntl(ready[1], F_DUPFD, 10); /* out of the listener's way */
    ck_assert_int_ge(told, 0);
    close(ready[1]);
    snprintf(number, sizeof number, "%d", told);
    const char *kdad = harness_path("bin/kdad");
    const char *arguments[MAX_OPTIONS + 16] = {kdad,  "--config", "/dev/null",  "--backend",
                                               "cpu", "--quiet",  "--ready-fd", number};
    int count = 8;
    for (const char *const *o = ahead; o && *o; o++)
        arguments[count++] = *o;
    for (const char *const *o = options; o && *o && count < MAX_OPTIONS + 15; o++)
        arguments[count++] = *o;
    pid_t pid = fork();
    if (pid == 0) { /* no ck_ here: another thread may have held check's lock */
        if (listener >= 0) {
            char own[16];
            snprintf(own, sizeof own, "%d", (int)getpid());
            setenv("LISTEN_PID", own, 1);
            setenv("LISTEN_FDS", "1", 1);
            if (listener == 3)
                fcntl(3, F_SETFD, 0);
            else
                dup2(listener, 3);
        }
        execv(kdad, (char *const *)arguments);
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    close(told);
    ck_assert_msg(read(ready[0], &byte, 1) == 1, "%s did not start", kdad);
    close(ready[0]);
    return pid;
}

void harness_restart(struct harness *harness) {
    const char *ahead[] = {"--socket", harness->socket, NULL};
    harness->pid = spawn(ahead, harness->options, -1);
}

pid_t harness_spawn_on(int listener, const char *const *options) {
    return spawn(NULL, options, listener);
}

int harness_listen(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(path), sizeof address.sun_path);
    strcpy(address.sun_path, path);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_int_eq(listen(listener, 1024), 0);
    return listener;
}

void harness_start(struct harness *harness, const char *const *options) {
    *harness = (struct harness){.options = options};
    strcpy(harness->directory, "/tmp/kdad-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(harness->directory));
    snprintf(harness->socket, sizeof harness->socket, "%s/kdad.sock", harness->directory);
    setenv("KDAD_SOCKET", harness->socket, 1);
    harness_restart(harness);
}

void harness_kill(struct harness *harness) {
    kill(harness->pid, SIGKILL);
    ck_assert_int_eq(waitpid(harness->pid, NULL, 0), harness->pid);
    harness->pid = 0;
}

void harness_stop(struct harness *harness) {
    int status;
    struct stat st;
    if (harness->pid > 0) {
        kill(harness->pid, SIGTERM);
        ck_assert_int_eq(waitpid(harness->pid, &status, 0), harness->pid);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "kdad ended with wait status %#x",
                      status);
        ck_assert_msg(lstat(harness->socket, &st) < 0 && errno == ENOENT, "%s stays behind", harness->socket);
    }
    unlink(harness->socket);
    ck_assert_msg(rmdir(harness->directory) == 0, "%s: %s", harness->directory, strerror(errno));
}
