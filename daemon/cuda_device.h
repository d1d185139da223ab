/*
 * cuda_device.h - the GPUs that the daemon serves: a primary context each, with the kernels loaded.
 */
#ifndef DAEMON_CUDA_DEVICE_H
#define DAEMON_CUDA_DEVICE_H

#include "daemon/meter.h"
#include "daemon/options.h"
#include "kernels/cuda/kernels.h"
#include "proto/wire.h"

struct cuda_device {
    CUdevice device;
    CUcontext context;
    char uuid[CUDA_UUID_TEXT];
    char name[WIRE_NAME_MAX + 1]; /* for people */
    enum wire_mps mps;            /* the context is a client of MPS */
    bool words;                   /* its streams write words of memory; else events tell */
    struct cuda_kernels *kernels;
    uint64_t
        copy_rate; /* bytes a second that a copy on the device reads and writes; 0: could not be measured */
    uint64_t own_bytes; /* of the device's memory, allocated here: atomic */
    struct pace pace;
    /* Of the backend, under its lock: jobs that are on the device; those that it has finished, and how many
     * that were when a watchdog last asked, if it had jobs then. */
    uint64_t launched, finished, finished_seen;
    bool busy_seen;
};

struct cuda_devices {
    const struct cuda_driver *driver;
    struct cuda_device *device;
    int count;
    char detail[WIRE_NAME_MAX + 1]; /* for people */
};

/* Opens the devices that the options name. On failure, with a sentence in why, what was opened is still to be
 * closed. */
bool cuda_devices_open(struct cuda_devices *devices, const struct options *options, char why[CUDA_WHY]);
void cuda_devices_close(struct cuda_devices *devices);

/* The device of that name; NULL if it is not served. */
struct cuda_device *cuda_devices_find(const struct cuda_devices *devices, struct wire_string uuid);

#endif
