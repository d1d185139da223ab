#include "tests/harness.h"

#include <check.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

void harness_restart(struct harness *harness) {
    int ready[2];
    char number[16], byte;
    ck_assert_int_eq(pipe(ready), 0);
    snprintf(number, sizeof number, "%d", ready[1]);
    const char *kdad = harness_path("bin/kdad");
    const char *arguments[MAX_OPTIONS + 11] = {
        kdad,        "--config", "/dev/null", "--socket",   harness->socket,
        "--backend", "cpu",      "--quiet",   "--ready-fd", number};
    int count = 10;
    for (const char *const *o = harness->options; o && *o && count < MAX_OPTIONS + 10; o++)
        arguments[count++] = *o;
    harness->pid = fork();
    if (harness->pid == 0) { /* no ck_ here: another thread may have held check's lock */
        close(ready[0]);
        execv(kdad, (char *const *)arguments);
        _exit(127);
    }
    ck_assert_int_gt(harness->pid, 0);
    close(ready[1]);
    ck_assert_msg(read(ready[0], &byte, 1) == 1, "%s did not start", kdad);
    close(ready[0]);
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
