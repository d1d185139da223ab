/*
 * What the daemon tells its service manager: that it is ready, that it gets on, that it stops; and that it is
 * silent once its loop or a thread of a backend hangs. Threads are made to hang by ptrace: where that is not
 * allowed, and without libsystemd, this is skipped.
 */
#ifdef HAVE_LIBSYSTEMD

#include "tests/socket/sample.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WATCHDOG_MS = 400, /* as the daemon is told */
    PATIENCE_MS = 30000,
};

static char directory[64], log_path[96];
static pid_t daemon_pid;
static int manager = -1;

/* --- a service manager --------------------------------------------------------------------------------- */

static void start(const char *watchdog_usec) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char socket_path[96], own[16];
    strcpy(directory, "/tmp/kdad-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(log_path, sizeof log_path, "%s/log", directory);
    snprintf(socket_path, sizeof socket_path, "%s/kdad.sock", directory);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", directory);
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(manager, (struct sockaddr *)&address, sizeof address), 0);
    setenv("KDAD_SOCKET", socket_path, 1);
    daemon_pid = fork();
    if (daemon_pid == 0) {
        dup2(open(log_path, O_CREAT | O_WRONLY | O_APPEND, 0600), STDERR_FILENO);
        snprintf(own, sizeof own, "%d", (int)getpid());
        setenv("NOTIFY_SOCKET", address.sun_path, 1);
        if (watchdog_usec) {
            setenv("WATCHDOG_USEC", watchdog_usec, 1);
            setenv("WATCHDOG_PID", own, 1);
        }
        execl(KDAD_BINARY, "kdad", "--config", "/dev/null", "--backend", "cpu", "--threads", "1",
              (char *)NULL);
        _exit(127);
    }
    ck_assert_int_gt(daemon_pid, 0);
}

/* The next message; NULL if none comes within so many milliseconds. */
static const char *hear(int within_ms) {
    static char text[256];
    struct pollfd readable = {.fd = manager, .events = POLLIN};
    if (poll(&readable, 1, within_ms) == 0)
        return NULL;
    ssize_t size = recv(manager, text, sizeof text - 1, 0);
    ck_assert_int_gt(size, 0);
    text[size] = '\0';
    return text;
}

static void expect(const char *message) {
    const char *heard = hear(PATIENCE_MS);
    ck_assert_msg(heard && strcmp(heard, message) == 0, "heard '%s', not '%s'", heard ? heard : "nothing",
                  message);
}

static void expect_silence(void) {
    while (hear(0)) /* what was sent before */
        continue;
    const char *heard = hear(2 * WATCHDOG_MS);
    ck_assert_msg(!heard, "heard '%s'", heard);
}

static void ask_to_stop(void) {
    ck_assert_int_eq(kill(daemon_pid, SIGTERM), 0);
}

static void expect_end(void) {
    int status;
    ck_assert_int_eq(waitpid(daemon_pid, &status, 0), daemon_pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %#x", status);
    char path[128];
    unlink(log_path);
    snprintf(path, sizeof path, "%s/notify", directory);
    unlink(path);
    close(manager);
    ck_assert_int_eq(rmdir(directory), 0);
}

static bool is_logged(const char *words) {
    char text[8192];
    FILE *file = fopen(log_path, "re");
    ck_assert_ptr_nonnull(file);
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    return strstr(text, words) != NULL;
}

static void await_log(const char *words) {
    for (int i = 0; !is_logged(words); i++) {
        ck_assert_msg(i < PATIENCE_MS / 10, "the log never says %s", words);
        usleep(10000);
    }
}

/* --- threads that hang --------------------------------------------------------------------------------- */

/* The daemon's thread of that name. */
static pid_t thread_named(const char *name) {
    char path[300], found[32];
    pid_t thread = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)daemon_pid);
    DIR *tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *task; (task = readdir(tasks)) && !thread;) {
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/comm", (int)daemon_pid, task->d_name);
        FILE *file = task->d_name[0] != '.' ? fopen(path, "re") : NULL;
        if (file && fgets(found, sizeof found, file) && strncmp(found, name, strlen(name)) == 0)
            thread = atoi(task->d_name);
        if (file)
            fclose(file);
    }
    closedir(tasks);
    ck_assert_msg(thread > 0, "the daemon has no thread %s", name);
    return thread;
}

static void freeze(pid_t thread) {
    int status;
    ck_assert_int_eq(ptrace(PTRACE_SEIZE, thread, NULL, NULL), 0);
    ck_assert_int_eq(ptrace(PTRACE_INTERRUPT, thread, NULL, NULL), 0);
    ck_assert_int_eq(waitpid(thread, &status, __WALL), thread);
    ck_assert(WIFSTOPPED(status));
}

static void thaw(pid_t thread) {
    ck_assert_int_eq(ptrace(PTRACE_DETACH, thread, NULL, NULL), 0);
}

static bool may_trace(void) {
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    bool may = ptrace(PTRACE_SEIZE, child, NULL, NULL) == 0;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return may;
}

/* --- the tests ----------------------------------------------------------------------------------------- */

START_TEST(the_manager_hears_of_start_life_and_end) {
    start("400000");
    expect("READY=1");
    for (int i = 0; i < 5; i++)
        expect("WATCHDOG=1");
    ask_to_stop();
    const char *heard;
    do
        heard = hear(PATIENCE_MS);
    while (heard && strcmp(heard, "WATCHDOG=1") == 0);
    ck_assert_ptr_nonnull(heard);
    ck_assert_str_eq(heard, "STOPPING=1");
    expect_end();
}
END_TEST

START_TEST(who_has_no_watchdog_hears_nothing_of_life) {
    start(NULL);
    expect("READY=1");
    expect_silence();
    ask_to_stop();
    expect("STOPPING=1");
    expect_end();
}
END_TEST

START_TEST(a_loop_that_hangs_is_silent) {
    start("400000");
    expect("READY=1");
    expect("WATCHDOG=1");
    freeze(daemon_pid);
    expect_silence();
    thaw(daemon_pid);
    expect("WATCHDOG=1");
    ask_to_stop();
    expect_end();
}
END_TEST

/* The loop gets on meanwhile: it answers, and logs. */
START_TEST(a_thread_that_hangs_silences_the_daemon) {
    struct kdad_connection *connection;
    struct kdad_stream *stream;
    struct sample sample;
    kdad_ticket ticket;
    start("400000");
    expect("READY=1");
    pid_t thread = thread_named("kdad-pool");
    ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &connection));
    ck_ok(kdad_stream_open(connection, NULL, &stream));
    sample_make(&sample, &sample_small, connection, 0, 0, 1);
    freeze(thread);
    expect("WATCHDOG=1"); /* there is no work */
    while (hear(0))
        continue;
    expect("WATCHDOG=1");
    ck_ok(kdad_chunk_kda_bwd_intra(stream, &sample.args, &ticket));
    await_log("event=stuck why=\"backend cpu: a thread does not get on");
    expect_silence();
    ck_status(kdad_wait(stream, ticket, 0), KDAD_TIMEOUT);
    thaw(thread);
    ck_ok(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT));
    sample_check(&sample);
    expect("WATCHDOG=1");
    await_log("event=goes_on");
    sample_free(&sample);
    kdad_disconnect(connection);
    ask_to_stop();
    expect_end();
}
END_TEST

int main(void) {
    bool traces = may_trace();
    Suite *suite = suite_create("watchdog");
    TCase *c = tcase_create("watchdog");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, the_manager_hears_of_start_life_and_end);
    tcase_add_test(c, who_has_no_watchdog_hears_nothing_of_life);
    if (traces) {
        tcase_add_test(c, a_loop_that_hangs_is_silent);
        tcase_add_test(c, a_thread_that_hangs_silences_the_daemon);
    }
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (!failed && !traces)
        puts("skipped: ptrace is not allowed here, so no thread was made to hang");
    return failed ? 1 : traces ? 0 : 77;
}

#else
int main(void) {
    return 77; /* skipped: a build without libsystemd tells nobody */
}
#endif
