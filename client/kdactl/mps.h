/*
 * mps.h - the MPS control daemon: where it is, and what it says to commands.
 */
#ifndef CLIENT_KDACTL_MPS_H
#define CLIENT_KDACTL_MPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Its directory, as the CUDA driver finds it. */
const char *mps_directory(void);

/* The process that is said there to be the control daemon; 0: none. */
int64_t mps_control_pid(void);

/* A process's user and start, in clock ticks since boot. False if there is none, or it cannot be seen. */
bool process_look(int64_t pid, int64_t *uid, uint64_t *started);

#endif
