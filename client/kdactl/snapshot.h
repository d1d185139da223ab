/*
 * snapshot.h - what a daemon tells of itself and its clients, at one moment.
 *
 * One reply holds some clients; the rest is asked for, from the newest to the oldest by their numbers, so
 * none comes twice while others come and go. Names come from clients and may hold anything: what a terminal
 * would act on is replaced.
 */
#ifndef CLIENT_KDACTL_SNAPSHOT_H
#define CLIENT_KDACTL_SNAPSHOT_H

#include "client/kdactl/kdactl.h"
#include "proto/wire.h"

struct snapshot {
    struct wire_status_reply reply; /* the first one's; its strings and its clients are not to be used */
    char version[WIRE_NAME_MAX + 1], backend[WIRE_NAME_MAX + 1], detail[WIRE_NAME_MAX + 1];
    struct {
        char device[WIRE_NAME_MAX + 1], name[WIRE_NAME_MAX + 1];
        int64_t process_bytes; /* of its memory: what the daemon takes in all; -1 if it is not known */
    } devices[WIRE_STATUS_DEVICES];
    struct snapshot_client {
        struct wire_status_client client; /* its name is not to be used */
        char name[WIRE_NAME_MAX + 1];
    } * clients;
    uint32_t client_count;
};

/* Asks the daemon. Whatever the snapshot held is freed. */
kdad_status snapshot_take(struct snapshot *snapshot, struct kdad_connection *connection);
/* The same, a moment later if the daemon had to measure something first. */
kdad_status snapshot_take_whole(struct snapshot *snapshot, struct kdad_connection *connection);
void snapshot_free(struct snapshot *snapshot);

/* True for the row of this process's own connection, as far as it can be told. */
bool snapshot_is_own(const struct snapshot_client *row);

/* True for a GPU. */
bool snapshot_is_gpu(const struct snapshot *snapshot, uint32_t device);

/* "on", "off", or "unknown". */
const char *snapshot_mps(const struct wire_status_device *device);

/* How near the last jobs of a device came to copying what they had to move: 1 is as fast. Negative: not
 * known.
 */
double snapshot_copy_share(const struct wire_status_device *device);

#endif
