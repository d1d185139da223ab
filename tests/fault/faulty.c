#include "tests/fault/faulty.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[] = "/tmp/kdad-fault-XXXXXX";
static char socket_path[64], log_path[64], error_path[64], words_path[64], expected_path[64];
static char points[PATH_MAX];
static int problems;
static bool continues;

/* A file of the build, found from where this program lies: build/tests/PROGRAM. */
static const char *build_path(const char *file) {
    static char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path / 2);
    path[length > 0 ? length : 0] = 0;
    for (int up = 0; up < 2 && strrchr(path, '/'); up++)
        *strrchr(path, '/') = 0;
    strncat(path, "/", sizeof path - strlen(path) - 1);
    strncat(path, file, sizeof path - strlen(path) - 1);
    return path;
}

void faulty_problem(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("FAILED: ", stdout);
    vprintf(format, list);
    putchar('\n');
    fflush(stdout);
    va_end(list);
    problems++;
}

static void show(const char *path) {
    char text[2000];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text);
    printf("%.*s", size > 0 ? (int)size : 0, text);
    close(fd);
}

bool faulty_begin(void) {
    if (!mkdtemp(directory) || !realpath(build_path("lib/libfault-points.so"), points))
        return false;
    snprintf(socket_path, sizeof socket_path, "%s/kdad.sock", directory);
    snprintf(log_path, sizeof log_path, "%s/log", directory);
    snprintf(error_path, sizeof error_path, "%s/stderr", directory);
    snprintf(words_path, sizeof words_path, "%s/stdout", directory);
    snprintf(expected_path, sizeof expected_path, "%s/expected", directory);
    setenv("KDAD_SOCKET", socket_path, 1);
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    return true;
}

int faulty_end(void) {
    const char *const files[] = {log_path, error_path, words_path, expected_path, socket_path};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        unlink(files[i]);
    rmdir(directory);
    return problems;
}

/* --- processes ----------------------------------------------------------------------------------------- */

/* In a child: what is to fail. */
static void set_fault(struct fault fault, bool later) {
    char what[64];
    snprintf(what, sizeof what, "%s:%lu:%s", fault.kind ? fault.kind : "alloc", fault.call,
             fault.action ? fault.action : "fail");
    setenv("LD_PRELOAD", points, 1);
    setenv("KDAD_FAULT", what, 1);
    setenv("KDAD_FAULT_LOG", log_path, 1);
    if (later)
        setenv("KDAD_FAULT_LATER", "1", 1);
}

static void redirect(int fd, const char *path) {
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(to, fd);
}

void faulty_continue(bool on) {
    continues = on;
}

/* A moment of waiting for a process. */
static void wait_a_moment(pid_t pid) {
    if (continues)
        kill(pid, SIGCONT);
    usleep(2000);
}

int faulty_wait(pid_t pid, const char *what) {
    int status;
    for (int i = 0; i < FAULTY_HANG_S * 500; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        wait_a_moment(pid);
    }
    faulty_problem("%s: goes on for ever", what);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return status;
}

/* --- the daemon ---------------------------------------------------------------------------------------- */

void faulty_daemon_restart(struct faulty_daemon *daemon, struct fault fault) {
    int ready[2];
    char number[16], byte;
    if (pipe2(ready, O_CLOEXEC) < 0)
        abort();
    unlink(log_path);
    *daemon = (struct faulty_daemon){.pid = fork()};
    if (daemon->pid == 0) {
        int told = fcntl(ready[1], F_DUPFD, 10);
        snprintf(number, sizeof number, "%d", told);
        redirect(STDERR_FILENO, error_path);
        set_fault(fault, false);
        const char *kdad = build_path("bin/kdad");
        execl(kdad, kdad, "--config", "/dev/null", "--backend", "cpu", "--threads", "1", "--log-level",
              "warning", "--ready-fd", number, (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    struct pollfd readable = {.fd = ready[0], .events = POLLIN};
    int status, came = 0;
    for (int i = 0; i < FAULTY_HANG_S * 100 && came == 0; i++) {
        came = poll(&readable, 1, 10);
        if (came == 0 && waitpid(daemon->pid, &status, WNOHANG | WUNTRACED) == daemon->pid)
            break; /* stopped */
    }
    daemon->served = came > 0 && read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    if (came > 0 && !daemon->served) {
        daemon->status = faulty_wait(daemon->pid, "a daemon that closed its pipe");
        daemon->pid = 0;
    }
}

void faulty_daemon_start(struct faulty_daemon *daemon, struct fault fault) {
    unlink(socket_path);
    faulty_daemon_restart(daemon, fault);
}

bool faulty_daemon_ended(struct faulty_daemon *daemon) {
    int status;
    if (daemon->pid > 0 && waitpid(daemon->pid, &status, WNOHANG) == daemon->pid) {
        daemon->pid = 0;
        daemon->status = status;
    }
    return daemon->pid == 0;
}

int faulty_daemon_descriptors(const struct faulty_daemon *daemon) {
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon->pid);
    DIR *fds = opendir(path);
    if (!fds)
        return 0;
    while (readdir(fds))
        count++;
    closedir(fds);
    return count - 2; /* . and .. */
}

void faulty_daemon_settles(struct faulty_daemon *daemon, int descriptors, const char *what) {
    for (int i = 0; i < 5000; i++) {
        if (faulty_daemon_descriptors(daemon) <= descriptors)
            return;
        wait_a_moment(daemon->pid);
    }
    faulty_problem("%s: the daemon has %d descriptors, not %d", what, faulty_daemon_descriptors(daemon),
                   descriptors);
}

void faulty_daemon_check_exit(const struct faulty_daemon *daemon, const char *what) {
    struct stat st;
    int code = WIFEXITED(daemon->status) ? WEXITSTATUS(daemon->status) : 0;
    if (code != 1 && !(code == 2 && !daemon->served)) { /* 2: the options cannot be read */
        faulty_problem("%s: the daemon ends with wait status %#x", what, daemon->status);
        show(error_path);
    } else if (stat(error_path, &st) < 0 || st.st_size == 0) {
        faulty_problem("%s: the daemon exits without a word", what);
    }
    if (stat(socket_path, &st) == 0)
        faulty_problem("%s: the daemon exits and leaves its socket", what);
}

void faulty_daemon_stop(struct faulty_daemon *daemon, const char *what) {
    struct stat st;
    kill(daemon->pid, SIGTERM);
    daemon->status = faulty_wait(daemon->pid, what);
    daemon->pid = 0;
    if (!WIFEXITED(daemon->status) || WEXITSTATUS(daemon->status) != 0) {
        faulty_problem("%s: the daemon stops with wait status %#x", what, daemon->status);
        show(error_path);
    }
    if (stat(socket_path, &st) == 0)
        faulty_problem("%s: the daemon stops and leaves its socket", what);
    unlink(socket_path);
}

/* --- sessions ------------------------------------------------------------------------------------------ */

pid_t faulty_session_start(struct fault fault, bool patient) {
    if (fault.kind)
        unlink(log_path);
    pid_t pid = fork();
    if (pid == 0) {
        redirect(STDOUT_FILENO, words_path);
        if (patient)
            setenv("KDAD_FAULT_PATIENT", "1", 1);
        if (fault.kind)
            set_fault(fault, true);
        const char *session = build_path("tests/fault-session");
        execl(session, session, expected_path, (char *)NULL);
        _exit(127);
    }
    return pid;
}

int faulty_session_end(pid_t pid, const char *what, int signal) {
    int status = faulty_wait(pid, what);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0 || code == 3 || code == 4 || (signal && code == 128 + signal))
        return code;
    faulty_problem("%s: the session ends with %d:", what, code);
    show(words_path);
    return code;
}

void faulty_session_good(const char *what) {
    struct fault none = {0};
    int code = faulty_session_end(faulty_session_start(none, false), what, 0);
    if (code == 3 || code == 4) {
        faulty_problem("%s: a fresh session fails:", what);
        show(words_path);
    }
}

/* --- what was logged ----------------------------------------------------------------------------------- */

bool faulty_hit(char *where, size_t size) {
    char line[512];
    bool hit = false;
    FILE *file = fopen(log_path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "hit ", 4) != 0)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(where, size, "%s", line + 4);
        hit = true;
    }
    if (file)
        fclose(file);
    return hit;
}

long faulty_live(void) {
    char line[512];
    long live = -1;
    FILE *file = fopen(log_path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "live %ld", &live);
    if (file)
        fclose(file);
    return live;
}
