/*
 * mps.h - the MPS control daemon: where it is, and what it says to commands.
 */
#ifndef CLIENT_KDACTL_MPS_H
#define CLIENT_KDACTL_MPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MPS_WHY = 512, MPS_LIST = 1024 };

/* Its directory, as the CUDA driver finds it. */
const char *mps_directory(void);

/* The process that is said there to be the control daemon; 0: none. */
int64_t mps_control_pid(void);

/* A process's user and start, in clock ticks since boot. False if there is none, or it cannot be seen. */
bool process_look(int64_t pid, int64_t *uid, uint64_t *started);

/* Gives a command to the control daemon, through NVIDIA's program. False with a sentence in why if it could
 * not be given, was refused or not answered. */
bool mps_ask(const char *command, char why[MPS_WHY]);

/* The same for one that answers with numbers, a line each. */
bool mps_ask_list(const char *command, int64_t list[MPS_LIST], size_t *count, char why[MPS_WHY]);

#endif
