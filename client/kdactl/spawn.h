/*
 * spawn.h - a kdad of kdactl's own, for one call: in a new directory.
 *
 * A process between the two, the keeper, starts the daemon, waits until kdactl lets go of a pipe, however it
 * ends, then stops the daemon and removes the directory. So nothing stays behind even after kill -9.
 */
#ifndef CLIENT_KDACTL_SPAWN_H
#define CLIENT_KDACTL_SPAWN_H

/* Starts the kdad beside kdactl, else the one in PATH, with that backend, and waits until it serves. Returns
 * its socket's path, or NULL, having said why. */
const char *spawn_start(const char *backend);

/* Lets go, and waits until nothing is left. May be called twice, or with none started, and in a signal's
 * handler. */
void spawn_stop(void);

/* In a forked child: what was started is its parent's alone, and ends with that. */
void spawn_forget(void);

#endif
