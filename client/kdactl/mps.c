#include "client/kdactl/mps.h"

#include "client/deadline.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *mps_directory(void) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return directory && *directory ? directory : "/tmp/nvidia-mps";
}

int64_t mps_control_pid(void) {
    char path[4096], line[32] = "";
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", mps_directory());
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    int64_t pid = read ? strtoll(line, NULL, 10) : 0;
    return pid > 0 ? pid : 0;
}

/* The 22nd field; the second, a name in parentheses, may hold blanks and parentheses itself. */
static uint64_t start_of(char *stat) {
    char *rest = strrchr(stat, ')'), *field, *state;
    if (!rest)
        return 0;
    field = strtok_r(rest, " ", &state);
    for (int i = 2; field && i < 22; i++)
        field = strtok_r(NULL, " ", &state);
    return field ? strtoull(field, NULL, 10) : 0;
}

bool process_look(int64_t pid, int64_t *uid, uint64_t *started) {
    char path[64], text[1024];
    struct stat owner;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    size_t size = fread(text, 1, sizeof text - 1, file);
    bool seen = size > 0 && fstat(fileno(file), &owner) == 0;
    fclose(file);
    if (!seen)
        return false;
    text[size] = '\0';
    *uid = owner.st_uid;
    *started = start_of(text);
    return true;
}

/* --- commands ------------------------------------------------------------------------------------------ */

#define CONTROL "nvidia-cuda-mps-control"

extern char **environ;

static const int64_t patience_ns = 20000000000; /* with a control daemon that does not answer */

/* A file with the command, to be read from its start: a pipe could break. */
static int command_file(const char *command) {
    int fd = memfd_create("command", MFD_CLOEXEC);
    if (fd >= 0 && (dprintf(fd, "%s\n", command) < 0 || lseek(fd, 0, SEEK_SET) < 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Returns errno of what failed, or 0. */
static int start_control(const char *command, int output, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    char *const arguments[] = {CONTROL, NULL};
    int input = command_file(command);
    if (input < 0)
        return errno;
    int error = posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
        error = posix_spawnp(pid, CONTROL, &actions, NULL, arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(input);
    return error;
}

/* Reads to the end; what is too much is dropped. False if that does not come in time. */
static bool read_all(int fd, char *text, size_t room) {
    int64_t deadline = deadline_now() + patience_ns;
    size_t size = 0;
    char more[4096];
    ssize_t got = 1;
    while (got > 0 && deadline_left(deadline) > 0) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (poll(&readable, 1, deadline_poll(deadline)) <= 0)
            continue;
        got = read(fd, more, sizeof more);
        size_t taken = got > 0 && size < room - 1 ? (size_t)got : 0;
        if (taken > room - 1 - size)
            taken = room - 1 - size;
        memcpy(text + size, more, taken);
        size += taken;
    }
    text[size] = '\0';
    return got == 0;
}

static bool run_control(const char *command, char *answer, size_t room, char why[MPS_WHY]) {
    int ends[2], status = 0, error;
    pid_t pid = 0;
    if (pipe2(ends, O_CLOEXEC) < 0) {
        snprintf(why, MPS_WHY, CONTROL ": no pipe can be made: %s", strerror(errno));
        return false;
    }
    error = start_control(command, ends[1], &pid);
    close(ends[1]);
    bool whole = error == 0 && read_all(ends[0], answer, room);
    close(ends[0]);
    if (error) {
        snprintf(why, MPS_WHY, CONTROL ": it cannot be run: %s", strerror(error));
        return false;
    }
    if (!whole)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!whole)
        snprintf(why, MPS_WHY, CONTROL ": %s: no answer in time", command);
    else if (status != 0)
        snprintf(why, MPS_WHY, CONTROL ": %s: failed: %.300s", command, answer);
    return whole && status == 0;
}

static void one_line(char *text) {
    size_t size = strlen(text);
    while (size > 0 && text[size - 1] == '\n')
        text[--size] = '\0';
    for (char *c = text; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = ' ';
}

/* What it has done, it says nothing about; the program ends with 0 all the same if it has not. */
bool mps_ask(const char *command, char why[MPS_WHY]) {
    char answer[4096];
    if (!run_control(command, answer, sizeof answer, why)) {
        one_line(why);
        return false;
    }
    one_line(answer);
    if (answer[0] != '\0' && strtoll(answer, NULL, 10) == 0 && answer[0] != '0') {
        snprintf(why, MPS_WHY, CONTROL ": %s: %.300s", command, answer);
        return false;
    }
    return true;
}

bool mps_ask_list(const char *command, int64_t list[MPS_LIST], size_t *count, char why[MPS_WHY]) {
    static char answer[16 * MPS_LIST]; /* large for a stack */
    *count = 0;
    if (!run_control(command, answer, sizeof answer, why)) {
        one_line(why);
        return false;
    }
    char *state, *line = strtok_r(answer, "\n", &state);
    for (; line && *count < MPS_LIST; line = strtok_r(NULL, "\n", &state)) {
        char *end;
        int64_t number = strtoll(line, &end, 10);
        while (*end == ' ' || *end == '\t' || *end == '\r')
            end++;
        if (number <= 0 || *end != '\0') {
            snprintf(why, MPS_WHY, CONTROL ": %s: %.300s", command, line);
            one_line(why);
            return false;
        }
        list[(*count)++] = number;
    }
    return true;
}
