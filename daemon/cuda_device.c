#include "daemon/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool open_device(const struct cuda_driver *driver, struct cuda_device *d, int index,
                        char why[CUDA_WHY]) {
    return cuda_ok(driver->DeviceGet(&d->device, index), "cuDeviceGet", why) &&
           cuda_uuid(d->device, d->uuid, why) &&
           cuda_ok(driver->DevicePrimaryCtxRetain(&d->context, d->device), "cuDevicePrimaryCtxRetain", why) &&
           cuda_ok(driver->CtxSetCurrent(d->context), "cuCtxSetCurrent", why) &&
           (d->kernels = cuda_kernels_load(driver, why));
}

static void describe(struct cuda_devices *ds) {
    char name[40] = "";
    int mps = 0;
    ds->driver->DeviceGetName(name, sizeof name, ds->device[0].device);
    ds->driver->DeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, ds->device[0].device);
    snprintf(ds->detail, sizeof ds->detail, "%d x %s, MPS %s", ds->count, name, mps ? "on" : "off");
}

bool cuda_devices_open(struct cuda_devices *ds, const struct options *options, char why[CUDA_WHY]) {
    (void)options;
    *ds = (struct cuda_devices){0};
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* before the driver is loaded */
    ds->driver = cuda_driver(why);
    if (!ds->driver || !cuda_ok(ds->driver->DeviceGetCount(&ds->count), "cuDeviceGetCount", why))
        return false;
    ds->device = calloc((size_t)ds->count, sizeof *ds->device);
    if (!ds->device) {
        ds->count = 0;
        snprintf(why, CUDA_WHY, "out of memory");
        return false;
    }
    for (int i = 0; i < ds->count; i++) {
        if (!open_device(ds->driver, &ds->device[i], i, why))
            return false;
    }
    describe(ds);
    return true;
}

void cuda_devices_close(struct cuda_devices *ds) {
    for (int i = 0; i < ds->count && ds->device; i++) {
        struct cuda_device *d = &ds->device[i];
        if (!d->context)
            continue;
        ds->driver->CtxSetCurrent(d->context);
        cuda_kernels_unload(d->kernels);
        ds->driver->DevicePrimaryCtxRelease(d->device);
    }
    free(ds->device);
}

struct cuda_device *cuda_devices_find(const struct cuda_devices *ds, struct wire_string uuid) {
    for (int i = 0; i < ds->count; i++) {
        struct cuda_device *d = &ds->device[i];
        if (uuid.size == strlen(d->uuid) && memcmp(uuid.data, d->uuid, uuid.size) == 0)
            return d;
    }
    return NULL;
}
