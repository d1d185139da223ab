#include "client/kdactl/snapshot.h"

#include "client/connection.h"
#include "client/kdactl/nvml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void take_string(char to[WIRE_NAME_MAX + 1], const struct wire_string *from) {
    uint32_t size = from->size < WIRE_NAME_MAX ? from->size : WIRE_NAME_MAX;
    for (uint32_t i = 0; i < size; i++)
        to[i] = (char)(from->data[i] >= ' ' && from->data[i] <= '~' ? from->data[i] : '?');
    to[size] = '\0';
}

static void take_daemon(struct snapshot *snapshot, const struct wire_status_reply *reply) {
    snapshot->reply = *reply;
    take_string(snapshot->version, &reply->version);
    take_string(snapshot->backend, &reply->backend);
    take_string(snapshot->detail, &reply->detail);
    for (uint32_t i = 0; i < reply->device_count; i++) {
        take_string(snapshot->devices[i].device, &reply->device[i].device);
        take_string(snapshot->devices[i].name, &reply->device[i].name);
        snapshot->devices[i].process_bytes =
            snapshot_is_gpu(snapshot, i) ? nvml_process_bytes(snapshot->devices[i].device, reply->pid) : -1;
    }
}

static bool take_clients(struct snapshot *snapshot, const struct wire_status_reply *reply) {
    size_t count = (size_t)snapshot->client_count + reply->count;
    struct snapshot_client *clients = realloc(snapshot->clients, (count ? count : 1) * sizeof *clients);
    if (!clients)
        return false;
    snapshot->clients = clients;
    for (uint32_t i = 0; i < reply->count; i++) {
        struct snapshot_client *row = &clients[snapshot->client_count++];
        row->client = reply->client[i];
        take_string(row->name, &reply->client[i].name);
    }
    return true;
}

kdad_status snapshot_take(struct snapshot *snapshot, struct kdad_connection *connection) {
    struct session_reply reply;
    const struct wire_status_reply *status = &reply.message.status_reply;
    uint64_t before = 0;
    bool more = true;
    snapshot_free(snapshot);
    while (more) {
        struct wire_message request = {.opcode = WIRE_STATUS, .status.before = before};
        kdad_status result = connection_request(connection, &request, KDAD_DEFAULT_TIMEOUT, &reply);
        if (result != KDAD_OK)
            return result;
        if (before == 0)
            take_daemon(snapshot, status);
        bool taken = take_clients(snapshot, status);
        more = status->count == WIRE_STATUS_CLIENTS;
        if (more)
            before = status->client[status->count - 1].number;
        session_reply_free(&reply);
        if (!taken)
            return error_set(KDAD_NO_MEMORY, "status: out of memory");
    }
    return KDAD_OK;
}

/* The processor's copy rate is measured when it is first asked for, which takes some ten milliseconds. */
static bool lacks_copy_rate(const struct snapshot *s) {
    for (uint32_t i = 0; i < s->reply.device_count; i++) {
        const struct wire_status_device *d = &s->reply.device[i];
        if (!snapshot_is_gpu(s, i) && d->last_ns > 0 && d->copy_rate == 0)
            return true;
    }
    return false;
}

kdad_status snapshot_take_whole(struct snapshot *snapshot, struct kdad_connection *connection) {
    kdad_status status = snapshot_take(snapshot, connection);
    if (status == KDAD_OK && lacks_copy_rate(snapshot)) {
        nanosleep(&(struct timespec){0, 150000000}, NULL);
        status = snapshot_take(snapshot, connection);
    }
    return status;
}

void snapshot_free(struct snapshot *snapshot) {
    free(snapshot->clients);
    snapshot->clients = NULL;
    snapshot->client_count = 0;
}

bool snapshot_is_own(const struct snapshot_client *row) {
    return row->client.pid == getpid();
}

bool snapshot_is_gpu(const struct snapshot *snapshot, uint32_t device) {
    return strcmp(snapshot->devices[device].device, "cpu") != 0;
}

const char *snapshot_mps(const struct wire_status_device *device) {
    if (device->mps == WIRE_MPS_ON)
        return "on";
    return device->mps == WIRE_MPS_OFF ? "off" : "unknown";
}

double snapshot_copy_share(const struct wire_status_device *device) {
    if (device->last_ns == 0 || device->copy_rate == 0)
        return -1;
    return (double)device->last_bytes / ((double)device->last_ns * 1e-9) / (double)device->copy_rate;
}
