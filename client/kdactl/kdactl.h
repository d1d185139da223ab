/*
 * kdactl.h - what the commands of kdactl share: options, exit codes, errors.
 */
#ifndef CLIENT_KDACTL_KDACTL_H
#define CLIENT_KDACTL_KDACTL_H

#include "client/kdad.h"

#include <stdbool.h>

enum exit_code {
    EXIT_DONE = 0,
    EXIT_NO = 1,        /* the answer is no: a result is off, the daemon refuses or fails */
    EXIT_BAD_INPUT = 2, /* wrong usage, a bad file */
    EXIT_NO_DAEMON = 3, /* nobody answers, or no longer */
};

struct options {
    const char *socket; /* NULL: the default */
    const char *out_dir;
    const char *output;  /* NULL: standard output */
    const char *backend; /* "cpu" or "cuda"; NULL: what the daemon has */
    bool spawn, json, once, quick;
    double spawn_ms; /* from the start of a private daemon until it was ready */
    double seconds;  /* 0: the default */
    int count;       /* of arguments behind the command */
    char **arguments;
};

enum exit_code command_run(const struct options *options);
enum exit_code command_check(const struct options *options);
enum exit_code command_status(const struct options *options);
enum exit_code command_top(const struct options *options);
enum exit_code command_trace(const struct options *options);
enum exit_code command_doctor(const struct options *options);
enum exit_code command_kill(const struct options *options);
enum exit_code command_metrics(const struct options *options);
enum exit_code command_ping(const struct options *options);
enum exit_code command_bench(const struct options *options);

/* Connects, or says why not. */
enum exit_code open_connection(const struct options *options, struct kdad_connection **connection);
enum exit_code open_stream(const struct options *options, struct kdad_connection **connection,
                           struct kdad_stream **stream);

enum exit_code exit_code_of(kdad_status status);

/* The graver of two: a lost daemon, then bad input, then no. */
enum exit_code graver(enum exit_code a, enum exit_code b);

/* "kdactl: " and the sentence, on standard error. */
__attribute__((format(printf, 1, 2))) void complain(const char *format, ...);

/* Complains of the library's last failure, about something (NULL: nothing in particular). */
enum exit_code complain_of_library(const char *about, kdad_status status);

#endif
