/*
 * cuda_device.h - the GPUs that the daemon serves: a primary context each, with the kernels loaded.
 */
#ifndef DAEMON_CUDA_DEVICE_H
#define DAEMON_CUDA_DEVICE_H

#include "daemon/options.h"
#include "kernels/cuda/kernels.h"
#include "proto/wire.h"

struct cuda_device {
    CUdevice device;
    CUcontext context;
    char uuid[CUDA_UUID_TEXT];
    struct cuda_kernels *kernels;
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
