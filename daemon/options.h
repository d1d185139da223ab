/*
 * options.h - what kdad was asked to do on its command line.
 */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include "daemon/log.h"

#include <stdbool.h>

struct options {
    const char *socket;  /* NULL: the default */
    const char *backend; /* "auto", "cpu" or "cuda" */
    int threads;         /* of the cpu backend; 0: one for each processor */
    int ready_fd;        /* a byte goes there once the daemon serves; -1: none */
    enum log_level log_level;
};

/* Reads the command line. Returns -1 to go on, else the exit code: 0 after --help and --version, 2 after a
 * message about wrong usage. */
int options_parse(struct options *options, int argc, char **argv);

#endif
