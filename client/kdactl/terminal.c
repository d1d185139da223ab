#include "client/kdactl/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Changed with signals blocked, read by a handler too. */
static volatile sig_atomic_t entered, has_keys;
static struct termios before;
static volatile sig_atomic_t stop_asked;

static const char enter[] = "\033[?1049h\033[?25l"; /* the other screen, no cursor */
static const char leave[] = "\033[?25h\033[?1049l";

static void write_all(const char *text, size_t size) {
    while (size > 0) {
        ssize_t n = write(STDOUT_FILENO, text, size);
        if (n < 0 && errno != EINTR)
            return;
        text += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
}

static void on_change(int number) {
    (void)number; /* it ends the wait for a key */
}

static void on_stop(int number) {
    (void)number;
    stop_asked = 1;
}

static void take_over(void) {
    struct termios raw;
    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    has_keys = tcgetattr(STDIN_FILENO, &before) == 0;
    if (has_keys) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    entered = 1;
    write_all(enter, sizeof enter - 1);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

bool terminal_enter(void) {
    if (!isatty(STDOUT_FILENO))
        return false;
    struct sigaction change = {.sa_handler = on_change}, stop = {.sa_handler = on_stop};
    sigaction(SIGWINCH, &change, NULL);
    sigaction(SIGTSTP, &stop, NULL);
    take_over();
    return true;
}

void terminal_leave(void) {
    if (!entered)
        return;
    entered = 0;
    write_all(leave, sizeof leave - 1);
    if (has_keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

void terminal_size(int *rows, int *columns) {
    struct winsize size;
    *rows = 24;
    *columns = 80;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
        *rows = size.ws_row;
        *columns = size.ws_col;
    }
}

/* A frame is one write, so that it does not flicker. */
void terminal_draw(const char *text, int reversed) {
    int rows, columns;
    char *frame = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&frame, &size);
    if (!to)
        return;
    terminal_size(&rows, &columns);
    fputs("\033[H", to);
    for (int row = 0; row < rows && *text; row++) {
        size_t length = strcspn(text, "\n");
        int shown = length < (size_t)columns ? (int)length : columns;
        if (row > 0)
            fputs("\r\n", to);
        if (row == reversed) /* over the whole width */
            fprintf(to, "\033[7m%-*.*s\033[m", columns, shown, text);
        else
            fprintf(to, "%.*s%s", shown, text, shown < columns ? "\033[K" : "");
        text += length + (text[length] == '\n');
    }
    fputs("\033[J", to);
    if (fclose(to) == 0)
        write_all(frame, size);
    free(frame);
}

/* Behind this the program was stopped, and goes on. */
static void stop(void) {
    terminal_leave();
    raise(SIGSTOP);
    stop_asked = 0;
    take_over();
}

int terminal_key(int milliseconds) {
    struct pollfd keys = {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    unsigned char key;
    int found = stop_asked ? 0 : poll(&keys, 1, milliseconds);
    if (stop_asked) {
        stop();
        return 0;
    }
    if (found <= 0)
        return 0;
    if (read(STDIN_FILENO, &key, 1) == 1)
        return key;
    has_keys = 0; /* the terminal is gone, or nobody is at it */
    return 0;
}
