/*
 * test_top.c - kdactl top on a terminal: what it draws, how it follows the window's size and the daemon, and
 * that the terminal is afterwards as it was, however it ends.
 */
#include "tests/harness.h"
#include "tests/socket/raw.h"

#include <check.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static const char enter[] = "\033[?1049h\033[?25l", leave[] = "\033[?25h\033[?1049l";

static struct harness server;
static struct raw client;
static struct timeline *timeline;
static struct problem problem;
static uint64_t stream, ticket;

/* A terminal with a kdactl top on it. */
static int screen, tty; /* the two ends */
static struct termios usual;
static pid_t top;
static char seen[1 << 20]; /* all that it wrote */
static size_t seen_size, told;

/* --- the daemon and a client --------------------------------------------------------------------------- */

static void setup(void) {
    uint64_t size;
    harness_start(&server, NULL);
    raw_open(&client, server.socket);
    stream = raw_stream(&client, &timeline);
    raw_problem(&problem, 16, 1, 16, 1, &size);
    int fd = raw_memfd(size);
    uint64_t buffer = raw_buffer(&client, size, fd);
    close(fd);
    raw_problem(&problem, 16, 1, 16, buffer, &size);
    ticket = 0;
}

static void teardown(void) {
    timeline_unmap(timeline);
    raw_close(&client);
    harness_stop(&server);
}

static void run_jobs(int count) {
    for (int i = 0; i < count; i++) {
        raw_submit(&client, stream, ++ticket, &problem);
        ck_assert_int_eq(raw_wait(timeline, ticket), WIRE_OK);
    }
}

/* --- the terminal -------------------------------------------------------------------------------------- */

static void set_size(int rows, int columns) {
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
    ck_assert_int_eq(ioctl(screen, TIOCSWINSZ, &size), 0);
}

static void open_terminal(int rows, int columns) {
    screen = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(screen, 0);
    ck_assert_int_eq(grantpt(screen), 0);
    ck_assert_int_eq(unlockpt(screen), 0);
    tty = open(ptsname(screen), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(tty, 0);
    ck_assert_int_eq(tcgetattr(tty, &usual), 0);
    set_size(rows, columns);
    seen_size = told = 0;
    seen[0] = 0;
}

static void start_top(const char *seconds) {
    top = fork();
    if (top == 0) {
        setsid();
        ioctl(tty, TIOCSCTTY, 0);
        for (int fd = 0; fd < 3; fd++)
            dup2(tty, fd);
        execl(KDACTL_BINARY, "kdactl", "top", "--seconds", seconds, NULL);
        _exit(127);
    }
    ck_assert_int_gt(top, 0);
}

/* Reads what is there. False if nothing comes within so many milliseconds. */
static bool read_some(int milliseconds) {
    struct pollfd readable = {.fd = screen, .events = POLLIN};
    if (poll(&readable, 1, milliseconds) <= 0)
        return false;
    ck_assert_uint_lt(seen_size + 1, sizeof seen);
    ssize_t n = read(screen, seen + seen_size, sizeof seen - 1 - seen_size);
    if (n <= 0)
        return false;
    seen_size += (size_t)n;
    seen[seen_size] = 0;
    return true;
}

/* Waits until it draws that, behind what was found before. */
static void expect(const char *text) {
    const char *found;
    while (!(found = strstr(seen + told, text)))
        ck_assert_msg(read_some(20000), "'%s' does not come behind:\n%s", text, seen + told);
    told = (size_t)(found - seen) + strlen(text);
}

/* Waits for the next whole frame, and returns it. */
static const char *next_frame(void) {
    static char frame[1 << 16];
    expect("\033[H");
    size_t start = told;
    expect("\033[J");
    ck_assert_uint_lt(told - start, sizeof frame);
    memcpy(frame, seen + start, told - start);
    frame[told - start] = 0;
    return frame;
}

/* Rows of a frame, and the columns of its longest. */
static void measure(const char *frame, int *rows, int *columns) {
    int column = 0;
    *rows = 1;
    *columns = 0;
    for (; *frame; frame++) {
        if (*frame == '\033') { /* to its letter */
            frame += 2;
            while (*frame && !isalpha((unsigned char)*frame))
                frame++;
        } else if (*frame == '\n') {
            ++*rows;
            column = 0;
        } else if (*frame != '\r' && ++column > *columns) {
            *columns = column;
        }
    }
}

/* It has ended; the terminal is as it was, and the last thing it got is what ends the other screen. */
static int end_top(void) {
    struct termios now;
    int status;
    ck_assert_int_eq(waitpid(top, &status, 0), top);
    while (read_some(0))
        ;
    ck_assert_int_eq(tcgetattr(tty, &now), 0);
    ck_assert_uint_eq(now.c_lflag, usual.c_lflag);
    ck_assert_uint_eq(now.c_iflag, usual.c_iflag);
    ck_assert_uint_eq(now.c_oflag, usual.c_oflag);
    ck_assert_mem_eq(now.c_cc, usual.c_cc, sizeof now.c_cc);
    ck_assert_ptr_nonnull(strstr(seen, enter));
    ck_assert_msg(seen_size > strlen(leave) && strcmp(seen + seen_size - strlen(leave), leave) == 0,
                  "it ends with: %s", seen + told);
    close(screen);
    close(tty);
    return status;
}

/* --- tests --------------------------------------------------------------------------------------------- */

START_TEST(it_shows_the_clients_and_leaves_at_q) {
    char row[64];
    open_terminal(24, 132);
    run_jobs(50);
    start_top("0.1");
    expect(enter);
    const char *frame = next_frame();
    ck_assert_ptr_nonnull(strstr(frame, "kdad " KDAD_VERSION ", pid "));
    ck_assert_ptr_nonnull(strstr(frame, "devices  cpu ("));
    snprintf(row, sizeof row, "\n%8d %5d  ", (int)getpid(), (int)getuid());
    ck_assert_msg(strstr(frame, row) != NULL, "there is no row '%s' in:\n%s", row, frame);
    snprintf(row, sizeof row, "\n%8d ", (int)top);
    ck_assert_msg(!strstr(frame, row), "it shows itself:\n%s", frame);
    /* Jobs between two looks show as a rate, and latencies of them. Without any they show no more. */
    do
        run_jobs(20);
    while (strstr(frame = next_frame(), "jobs     0.0/s") || strstr(frame, "whole -"));
    ck_assert_ptr_nonnull(strstr(frame, "p99"));
    while (!strstr(frame = next_frame(), "jobs     0.0/s done, 0.0/s failed, 0 queued"))
        ;
    ck_assert_ptr_nonnull(strstr(frame, "queue -  run -  whole -"));
    ck_assert_ptr_nonnull(strstr(frame, "s sorts, now by jobs"));
    ck_assert_int_eq(write(screen, "s", 1), 1);
    expect("now by moved");
    ck_assert_int_eq(write(screen, "q", 1), 1);
    ck_assert_int_eq(end_top(), 0);
}
END_TEST

START_TEST(it_keeps_to_the_window) {
    int rows, columns;
    open_terminal(24, 132);
    start_top("3600");
    measure(next_frame(), &rows, &columns);
    ck_assert_int_eq(columns, 132); /* the table's head fills the row */
    ck_assert_int_le(rows, 24);
    set_size(5, 40);
    do /* one of before the change may still come */
        measure(next_frame(), &rows, &columns);
    while (columns == 132);
    ck_assert_int_eq(rows, 5);
    ck_assert_int_eq(columns, 40);
    ck_assert_int_eq(write(screen, "q", 1), 1);
    ck_assert_int_eq(end_top(), 0);
}
END_TEST

START_TEST(a_signal_gives_the_terminal_back) {
    static const int numbers[] = {SIGTERM, SIGHUP, SIGINT};
    open_terminal(24, 80);
    start_top("0.1");
    next_frame();
    ck_assert_int_eq(kill(top, numbers[_i]), 0);
    int status = end_top();
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == numbers[_i]);
}
END_TEST

START_TEST(ctrl_c_ends_it) {
    open_terminal(24, 80);
    start_top("0.1");
    next_frame();
    ck_assert_int_eq(write(screen, "\003", 1), 1);
    int status = end_top();
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
}
END_TEST

START_TEST(stopped_it_gives_the_terminal_back_and_takes_it_again) {
    struct termios now;
    int status;
    open_terminal(24, 80);
    start_top("0.1");
    next_frame();
    ck_assert_int_eq(kill(top, SIGTSTP), 0);
    ck_assert_int_eq(waitpid(top, &status, WUNTRACED), top);
    ck_assert(WIFSTOPPED(status));
    ck_assert_int_eq(tcgetattr(tty, &now), 0);
    ck_assert_uint_eq(now.c_lflag, usual.c_lflag);
    expect(leave);
    ck_assert_int_eq(kill(top, SIGCONT), 0);
    expect(enter);
    next_frame();
    ck_assert_int_eq(write(screen, "q", 1), 1);
    ck_assert_int_eq(end_top(), 0);
}
END_TEST

START_TEST(it_waits_for_a_daemon_that_goes_away) {
    open_terminal(24, 132);
    start_top("0.1");
    next_frame();
    harness_kill(&server);
    expect("daemon");
    while (strstr(next_frame(), "devices"))
        ;
    harness_restart(&server);
    while (!strstr(next_frame(), "devices  cpu"))
        ;
    ck_assert_int_eq(write(screen, "q", 1), 1);
    ck_assert_int_eq(end_top(), 0);
}
END_TEST

/* Without a terminal, or asked for it: one frame, and nothing that a terminal acts on. */
START_TEST(once_is_plain_text) {
    char text[1 << 14];
    int ends[2], status;
    size_t size = 0;
    ssize_t n;
    run_jobs(3);
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl(KDACTL_BINARY, "kdactl", "top", "--seconds", "0.1", NULL);
        _exit(127);
    }
    close(ends[1]);
    while ((n = read(ends[0], text + size, sizeof text - 1 - size)) > 0)
        size += (size_t)n;
    close(ends[0]);
    text[size] = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    for (size_t i = 0; i < size; i++)
        ck_assert_msg(text[i] == '\n' || isprint((unsigned char)text[i]), "byte %#x", (unsigned)text[i]);
    ck_assert_ptr_nonnull(strstr(text, "jobs     0.0/s done"));
    ck_assert_msg(strstr(text, "\n     pid   uid  name ") != NULL, "no table in:\n%s", text);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("top");
    TCase *c = tcase_create("top");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, it_shows_the_clients_and_leaves_at_q);
    tcase_add_test(c, it_keeps_to_the_window);
    tcase_add_loop_test(c, a_signal_gives_the_terminal_back, 0, 3);
    tcase_add_test(c, ctrl_c_ends_it);
    tcase_add_test(c, stopped_it_gives_the_terminal_back_and_takes_it_again);
    tcase_add_test(c, it_waits_for_a_daemon_that_goes_away);
    tcase_add_test(c, once_is_plain_text);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
