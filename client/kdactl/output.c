#include "client/kdactl/output.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The half-written file; "" if there is none. Changed with signals blocked. */
static char unfinished[PATH_MAX];

int output_begin(const char *path, char why[SAFETENSORS_WHY]) {
    sigset_t all, before;
    char name[PATH_MAX];
    if (snprintf(name, sizeof name, "%s.XXXXXX", path) >= (int)sizeof name) {
        snprintf(why, SAFETENSORS_WHY, "its path is too long");
        return -1;
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int fd = mkstemp(name);
    if (fd >= 0)
        memcpy(unfinished, name, sizeof name);
    else
        snprintf(why, SAFETENSORS_WHY, "cannot be made: %s", strerror(errno));
    sigprocmask(SIG_SETMASK, &before, NULL);
    return fd;
}

/* As open would have made it. */
static mode_t usual_mode(void) {
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

bool output_write(const char *path, const struct safetensor *tensors, size_t count,
                  const struct safetensors_note *metadata, size_t notes, char why[SAFETENSORS_WHY]) {
    int fd = output_begin(path, why);
    return fd >= 0 && output_end(path, fd, safetensors_write(fd, tensors, count, metadata, notes, why), why);
}

bool output_end(const char *path, int fd, bool good, char why[SAFETENSORS_WHY]) {
    fchmod(fd, usual_mode());
    if (close(fd) < 0 && good) {
        snprintf(why, SAFETENSORS_WHY, "cannot be written: %s", strerror(errno));
        good = false;
    }
    if (good && rename(unfinished, path) < 0) {
        snprintf(why, SAFETENSORS_WHY, "cannot be made: %s", strerror(errno));
        good = false;
    }
    if (good)
        unfinished[0] = '\0';
    else
        output_abandon();
    return good;
}

void output_abandon(void) {
    if (unfinished[0])
        unlink(unfinished);
    unfinished[0] = '\0';
}
