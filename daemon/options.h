/*
 * options.h - what kdad was asked to do: on its command line, else in its environment, else in a file.
 */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include "daemon/limits.h"
#include "daemon/log.h"

#include <stdbool.h>

enum {
    OPTIONS_MAX = 24,     /* at least as many as there are */
    OPTIONS_WHY = 1024,   /* bytes of a sentence about a wrong one */
    OPTIONS_DEVICES = 64, /* GPUs that can be named */
    OPTIONS_DEVICE = 48,  /* bytes of a GPU's name, a zero included */
};

/* GPUs by UUID or index, as they were given. None: all that the driver shows. */
struct option_devices {
    char name[OPTIONS_DEVICES][OPTIONS_DEVICE];
    int count;
};

struct options {
    const char *config;  /* NULL: the usual file, if it is there */
    const char *socket;  /* NULL: the default */
    const char *backend; /* "auto", "cpu" or "cuda" */
    struct option_devices devices;
    int threads;  /* of the cpu backend; 0: one for each processor */
    int ready_fd; /* a byte goes there once the daemon serves; -1: none */
    enum log_level log_level;
    struct limits limits;

    /* The reader's: where each comes from, and the file's text, which strings point into. */
    struct option_origin {
        enum { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENVIRONMENT, ORIGIN_COMMAND_LINE } from;
        int line;
    } origin[OPTIONS_MAX];
    char *text;
};

/* Reads the command line, the environment and the file. Returns -1 to go on, else the exit code: 0 after
 * --help, --version and --check-config, 2 after a message about what is wrong. argv stays in use. */
int options_parse(struct options *options, int argc, char **argv);

/* Reads all of it once more, and takes over what can change while the daemon runs; the log has what changed,
 * and what differs but cannot. False with a sentence in why if something is wrong: nothing has changed then.
 */
bool options_reload(struct options *options, int argc, char **argv, char why[OPTIONS_WHY]);

void options_free(struct options *options);

#endif
