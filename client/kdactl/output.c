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

static int begin(const char *path, char why[SAFETENSORS_WHY]) {
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

/* Gives the file its name, if it is good and whole (error 0: else errno of what failed), or removes it. */
static bool finish(const char *path, bool good, int error, char why[SAFETENSORS_WHY]) {
    if (good && error) {
        snprintf(why, SAFETENSORS_WHY, "cannot be written: %s", strerror(error));
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

bool output_write(const char *path, const struct safetensor *tensors, size_t count,
                  const struct safetensors_note *metadata, size_t notes, char why[SAFETENSORS_WHY]) {
    int fd = begin(path, why);
    if (fd < 0)
        return false;
    bool good = safetensors_write(fd, tensors, count, metadata, notes, why);
    fchmod(fd, usual_mode());
    int error = close(fd) < 0 ? errno : 0;
    return finish(path, good, error, why);
}

FILE *output_open(const char *path, char why[SAFETENSORS_WHY]) {
    int fd = begin(path, why);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && !file) {
        close(fd);
        finish(path, true, ENOMEM, why);
    }
    return file;
}

bool output_close(const char *path, FILE *file, bool good, char why[SAFETENSORS_WHY]) {
    int error = 0;
    fchmod(fileno(file), usual_mode());
    if (fflush(file) != 0 || ferror(file))
        error = errno ? errno : EIO;
    if (fclose(file) != 0 && error == 0)
        error = errno;
    return finish(path, good, error, why);
}

void output_abandon(void) {
    if (unfinished[0])
        unlink(unfinished);
    unfinished[0] = '\0';
}
