#include "client/kdactl/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool shown;

/* Columns of the terminal; 0 if there is none. */
static int columns(void) {
    struct winsize size;
    if (!isatty(STDERR_FILENO))
        return 0;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return 80;
    return size.ws_col;
}

void progress_show(int done, int total, const char *name) {
    static const char full[] = "########################";
    const int length = (int)sizeof full - 1;
    const int width = columns();
    if (width < length + 24 || total < 1)
        return;
    const int filled = (int)((long long)length * done / total);
    const int used =
        fprintf(stderr, "\r\033[K[%.*s%*s] %d/%d ", filled, full, length - filled, "", done, total);
    fprintf(stderr, "%.*s", width - used, name);
    fflush(stderr);
    shown = true;
}

void progress_clear(void) {
    if (shown)
        fputs("\r\033[K", stderr);
    shown = false;
}
