/*
 * harness.h - a real kdad process for a test, in a directory of its own.
 *
 * All functions fail the running test when something else happens than they say.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <sys/types.h>

struct harness {
    pid_t pid;
    char directory[64];
    char socket[96];
    const char *const *options;
};

/* The path of a file of the build, given from its top: "bin/kdad". It is found from where the running program
 * lies, so that a build can be carried to another machine. Valid until the next call. */
const char *harness_path(const char *file);

/* Starts kdad with --backend cpu and the options given (NULL-terminated, or NULL), and waits until it serves.
 * Sets KDAD_SOCKET. The options must stay valid. */
void harness_start(struct harness *harness, const char *const *options);

/* Starts it again on the same socket after it was killed. */
void harness_restart(struct harness *harness);

/* Starts kdad with the options on a listening socket of the test's, which it takes over as from a service
 * manager; waits until it serves. The socket stays the test's. */
pid_t harness_spawn_on(int listener, const char *const *options);

/* A listening socket at a path, for any user. */
int harness_listen(const char *path);

/* Kills it, as kill -9, and reaps it. */
void harness_kill(struct harness *harness);

/* Stops it by SIGTERM; checks that it exits with 0 and that its socket is gone. A daemon that the test has
 * sent SIGTERM itself is only waited for. */
void harness_stop(struct harness *harness);

#endif
