#include "daemon/cuda_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What unmapping needs to know: mapping.handle. */
struct cuda_mapping {
    struct cuda_device *on;
    uint32_t segments; /* 0: opened by its IPC handle */
    uint64_t size;     /* reserved */
    uint64_t segment[];
};

bool cuda_memory_maps(uint32_t kind) {
    return kind == WIRE_BUFFER_CUDA_IPC || kind == WIRE_BUFFER_CUDA_VMM;
}

/* --- an allocation, by its IPC handle ------------------------------------------------------------------ */

static enum wire_status open_handle(const struct cuda_driver *driver, const struct wire_register *request,
                                    struct mapping *mapping, char why[PROBLEM_WHY]) {
    CUdeviceptr address, base;
    CUipcMemHandle handle;
    size_t size;
    char text[CUDA_WHY];
    memcpy(&handle, request->handle.data, sizeof handle);
    if (!cuda_ok(driver->IpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                 "cuIpcOpenMemHandle", text))
        return backend_refuse(why, WIRE_INVALID, "buffer: %.200s", text);
    if (!cuda_ok(driver->MemGetAddressRange(&base, &size, address), "cuMemGetAddressRange", text) ||
        base != address || request->size > size) {
        driver->IpcCloseMemHandle(address);
        return backend_refuse(why, WIRE_INVALID, "buffer: size is %llu, but the allocation has %llu bytes",
                              (unsigned long long)request->size, (unsigned long long)size);
    }
    mapping->address = address;
    mapping->size = size;
    return WIRE_OK;
}

/* --- segments, by their descriptors -------------------------------------------------------------------- */

/* Unmaps the first `count` segments and gives the addresses back. */
static void unmap_segments(const struct cuda_driver *driver, CUdeviceptr address,
                           const struct cuda_mapping *m, uint32_t count) {
    CUdeviceptr at = address;
    for (uint32_t i = 0; i < count; at += m->segment[i++])
        driver->MemUnmap(at, m->segment[i]);
    driver->MemAddressFree(address, m->size);
}

/* Maps one segment: the driver refuses a size that is not the segment's own. Its memory lives as long as it
 * is mapped. */
static bool map_segment(const struct cuda_driver *driver, const struct cuda_device *d, CUdeviceptr at,
                        uint64_t size, int fd, char text[CUDA_WHY]) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties;
    if (!cuda_ok(driver->MemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                 "cuMemImportFromShareableHandle", text))
        return false;
    bool good = cuda_ok(driver->MemGetAllocationPropertiesFromHandle(&properties, handle),
                        "cuMemGetAllocationPropertiesFromHandle", text);
    if (good &&
        (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties.location.id != d->device)) {
        snprintf(text, CUDA_WHY, "a segment does not lie on %s", d->uuid);
        good = false;
    }
    good = good && cuda_ok(driver->MemMap(at, size, 0, handle, 0), "cuMemMap", text);
    driver->MemRelease(handle);
    return good;
}

static enum wire_status map_segments(const struct cuda_driver *driver, const struct wire_register *request,
                                     const int *fds, struct cuda_mapping *m, struct mapping *mapping,
                                     char why[PROBLEM_WHY]) {
    char text[CUDA_WHY];
    CUdeviceptr address;
    uint64_t sum = 0;
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->on->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    for (uint32_t i = 0; i < request->segments; i++) {
        m->segment[i] = request->segment[i];
        if (__builtin_add_overflow(sum, m->segment[i], &sum))
            sum = UINT64_MAX;
    }
    if (sum != request->size)
        return backend_refuse(why, WIRE_INVALID, "buffer: size is %llu, but its segments have %llu bytes",
                              (unsigned long long)request->size, (unsigned long long)sum);
    m->size = sum;
    if (!cuda_ok(driver->MemAddressReserve(&address, sum, 0, 0, 0), "cuMemAddressReserve", text))
        return backend_refuse(why, WIRE_INVALID, "buffer: %.200s", text);
    CUdeviceptr at = address;
    for (uint32_t i = 0; i < request->segments; at += m->segment[i++]) {
        if (map_segment(driver, m->on, at, m->segment[i], fds[i], text))
            continue;
        unmap_segments(driver, address, m, i);
        return backend_refuse(why, WIRE_INVALID, "buffer: segment %u: %.200s", i, text);
    }
    if (!cuda_ok(driver->MemSetAccess(address, sum, &access, 1), "cuMemSetAccess", text)) {
        unmap_segments(driver, address, m, request->segments);
        return backend_refuse(why, WIRE_INVALID, "buffer: %.200s", text);
    }
    m->segments = request->segments;
    mapping->address = address;
    mapping->size = sum;
    return WIRE_OK;
}

/* --- both ---------------------------------------------------------------------------------------------- */

enum wire_status cuda_memory_map(const struct cuda_devices *devices, const struct wire_register *request,
                                 const int *fds, struct mapping *mapping, char why[PROBLEM_WHY]) {
    const struct cuda_driver *driver = devices->driver;
    struct cuda_device *d = cuda_devices_find(devices, request->device);
    if (!d)
        return backend_refuse(why, WIRE_UNSUPPORTED,
                              "buffer: device is '%.*s', which this daemon does not serve",
                              (int)request->device.size, request->device.data);
    struct cuda_mapping *m = calloc(1, sizeof *m + request->segments * sizeof m->segment[0]);
    if (!m)
        return backend_refuse(why, WIRE_NO_MEMORY, "buffer: the daemon is out of memory");
    m->on = d;
    driver->CtxSetCurrent(d->context);
    enum wire_status status = request->kind == WIRE_BUFFER_CUDA_IPC
                                  ? open_handle(driver, request, mapping, why)
                                  : map_segments(driver, request, fds, m, mapping, why);
    if (status != WIRE_OK) {
        free(m);
        return status;
    }
    mapping->device = d->uuid;
    mapping->identity[0] = mapping->address;
    mapping->identity[1] = 0;
    mapping->handle = m;
    return WIRE_OK;
}

/* On the loop's or the watcher's thread, whose current context may be another device's. */
void cuda_memory_unmap(const struct cuda_devices *devices, struct mapping *mapping) {
    struct cuda_mapping *m = mapping->handle;
    const struct cuda_driver *driver = devices->driver;
    driver->CtxPushCurrent(m->on->context);
    if (m->segments == 0)
        driver->IpcCloseMemHandle(mapping->address);
    else
        unmap_segments(driver, mapping->address, m, m->segments);
    driver->CtxPopCurrent(NULL);
    free(m);
}
