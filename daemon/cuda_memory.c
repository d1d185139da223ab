#include "daemon/cuda_memory.h"

#include <string.h>

bool cuda_memory_maps(uint32_t kind) {
    return kind == WIRE_BUFFER_CUDA_IPC;
}

enum wire_status cuda_memory_map(const struct cuda_devices *devices, const struct wire_register *request,
                                 const int *fds, int fd_count, struct mapping *mapping,
                                 char why[PROBLEM_WHY]) {
    const struct cuda_driver *driver = devices->driver;
    struct cuda_device *d = cuda_devices_find(devices, request->device);
    CUdeviceptr address, base;
    CUipcMemHandle handle;
    size_t size;
    char text[CUDA_WHY];
    (void)fds;
    (void)fd_count; /* none */
    if (!d)
        return backend_refuse(why, WIRE_UNSUPPORTED,
                              "buffer: device is '%.*s', which this daemon does not serve",
                              (int)request->device.size, request->device.data);
    memcpy(&handle, request->handle.data, sizeof handle);
    driver->CtxSetCurrent(d->context);
    if (!cuda_ok(driver->IpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                 "cuIpcOpenMemHandle", text))
        return backend_refuse(why, WIRE_INVALID, "buffer: %.200s", text);
    if (!cuda_ok(driver->MemGetAddressRange(&base, &size, address), "cuMemGetAddressRange", text) ||
        base != address || request->size > size) {
        driver->IpcCloseMemHandle(address);
        return backend_refuse(why, WIRE_INVALID, "buffer: size is %llu, but the allocation has %llu bytes",
                              (unsigned long long)request->size, (unsigned long long)size);
    }
    *mapping = (struct mapping){address, size, d->uuid, {address, 0}, d};
    return WIRE_OK;
}

/* On the loop's or the watcher's thread, whose current context may be another device's. */
void cuda_memory_unmap(const struct cuda_devices *devices, struct mapping *mapping) {
    struct cuda_device *d = mapping->handle;
    devices->driver->CtxPushCurrent(d->context);
    devices->driver->IpcCloseMemHandle(mapping->address);
    devices->driver->CtxPopCurrent(NULL);
}
