/*
 * companion.h - a well-behaved client beside an attack: a process of its own whose jobs must come out right,
 * bit for bit, as long as the attack lasts.
 */
#ifndef TESTS_SOCKET_COMPANION_H
#define TESTS_SOCKET_COMPANION_H

#include <sys/types.h>

struct companion {
    pid_t pid;
    int stop; /* closed: it stops */
};

/* Starts it, and returns when its first job is done and right. KDAD_SOCKET says where the daemon is. */
void companion_start(struct companion *companion);

/* Stops it. Fails the test unless it has done at least one more job since it was asked to, and all were
 * right. */
void companion_stop(struct companion *companion);

#endif
