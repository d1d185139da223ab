/*
 * bench_clients.h - what the daemon costs its clients and gives them, seen from client processes: the way
 * through the daemon and the same jobs in the client's own process, in turns.
 */
#ifndef CLIENT_KDACTL_BENCH_CLIENTS_H
#define CLIENT_KDACTL_BENCH_CLIENTS_H

#include "client/kdactl/kdactl.h"

#include <cjson/cJSON.h>
#include <stdint.h>

/* gpu: the daemon's name for it, or "" for the processor. pid: the daemon's, 0 if it is not known. Adds what
 * was measured to the object, under the names that kdactl(1) lists. */
enum exit_code bench_clients(const struct options *options, const char *gpu, int64_t pid, cJSON *object);

/* The same as tables. */
void bench_clients_print(const cJSON *object);

#endif
