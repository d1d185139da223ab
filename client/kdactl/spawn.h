/*
 * spawn.h - a kdad of kdactl's own, for one call: in a new directory, with the cpu backend.
 *
 * It is ended by spawn_stop, at the latest by the kernel when kdactl dies in any way.
 */
#ifndef CLIENT_KDACTL_SPAWN_H
#define CLIENT_KDACTL_SPAWN_H

/* Starts the kdad beside kdactl, else the one in PATH, and waits until it serves. Returns its socket's path,
 * or NULL, having said why. */
const char *spawn_start(void);

/* Ends it, waits for it, removes its directory. May be called twice, or with none started, and in a signal's
 * handler. */
void spawn_stop(void);

#endif
