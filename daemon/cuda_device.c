#include "daemon/cuda_device.h"

#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Copies of 128 MiB, many times what the caches hold. A device that is too full for that is not measured. */
static uint64_t measure_copy(const struct cuda_driver *driver) {
    enum { COPIES = 16 };
    const size_t size = (size_t)128 << 20;
    CUdeviceptr from = 0, to = 0;
    CUstream stream = NULL;
    struct timespec start, end;
    bool good = driver->MemAlloc(&from, size) == CUDA_SUCCESS &&
                driver->MemAlloc(&to, size) == CUDA_SUCCESS &&
                driver->StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS &&
                driver->MemcpyDtoDAsync(to, from, size, stream) == CUDA_SUCCESS &&
                driver->StreamSynchronize(stream) == CUDA_SUCCESS;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < COPIES; i++)
        good = good && driver->MemcpyDtoDAsync(to, from, size, stream) == CUDA_SUCCESS;
    good = good && driver->StreamSynchronize(stream) == CUDA_SUCCESS;
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (stream)
        driver->StreamDestroy(stream);
    if (from)
        driver->MemFree(from);
    if (to)
        driver->MemFree(to);
    double s = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
    return good && s > 0 ? (uint64_t)(2.0 * COPIES * (double)size / s) : 0;
}

static const char *mps_name(enum wire_mps mps) {
    static const char *const names[] = {"off", "on", "unknown"};
    return names[mps];
}

static void log_device(const struct cuda_device *d) {
    char name[2 * sizeof d->name], directory[1024];
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY"); /* read by the driver when it was loaded */
    log_event(LOG_INFO, "device", "device=%s name=%s mps=%s mps_directory=%s copy_gb_per_s=%.0f", d->uuid,
              log_quote(name, sizeof name, d->name), mps_name(d->mps),
              log_quote(directory, sizeof directory, pipe && *pipe ? pipe : "/tmp/nvidia-mps"),
              (double)d->copy_rate * 1e-9);
    if (d->mps == WIRE_MPS_OFF)
        log_event(LOG_INFO, "mps_off",
                  "device=%s why=\"the GPU switches between processes, some 0.3 ms a job; kdactl doctor says "
                  "how to turn MPS on\"",
                  d->uuid);
}

static void describe_device(const struct cuda_driver *driver, struct cuda_device *d) {
    int mps;
    driver->DeviceGetName(d->name, sizeof d->name, d->device);
    if (driver->DeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, d->device) != CUDA_SUCCESS)
        d->mps = WIRE_MPS_UNKNOWN; /* a driver of before this attribute */
    else
        d->mps = mps ? WIRE_MPS_ON : WIRE_MPS_OFF;
    d->words = cuda_streams_words(d->device);
    d->copy_rate = measure_copy(driver);
    log_device(d);
}

static bool open_device(const struct cuda_driver *driver, struct cuda_device *d, int index,
                        char why[CUDA_WHY]) {
    return cuda_ok(driver->DeviceGet(&d->device, index), "cuDeviceGet", why) &&
           cuda_uuid(d->device, d->uuid, why) &&
           cuda_ok(driver->DevicePrimaryCtxRetain(&d->context, d->device), "cuDevicePrimaryCtxRetain", why) &&
           cuda_ok(driver->CtxSetCurrent(d->context), "cuCtxSetCurrent", why) &&
           (d->kernels = cuda_kernels_load(driver, why));
}

static void describe(struct cuda_devices *ds) {
    const struct cuda_device *first = &ds->device[0];
    snprintf(ds->detail, sizeof ds->detail, "%d x %.40s, MPS %s", ds->count, first->name,
             mps_name(first->mps));
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
        describe_device(ds->driver, &ds->device[i]);
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
