#include "client/kdactl/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* From nvml.h of the driver's releases 510 to 580, which is no part of the CUDA driver API and may be missing
 * where kdad is built. */
enum { SUCCESS = 0, MORE_THAN_ROOM = 7 };

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

static struct {
    int (*init)(void);
    int (*driver_version)(char *text, unsigned size);
    int (*cuda_version)(int *version);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, void **device);
    int (*by_uuid)(const char *uuid, void **device);
    int (*uuid)(void *device, char *text, unsigned size);
    int (*name)(void *device, char *text, unsigned size);
    int (*mode)(void *device, int *mode);
    int (*processes)(void *device, unsigned *count, struct process *processes);
    const char *(*error)(int result);
} nvml;

static char failure[256];

static bool find(void *library, void *function, const char *symbol) {
    void *found = dlsym(library, symbol);
    memcpy(function, &found, sizeof found);
    if (!found)
        snprintf(failure, sizeof failure, "libnvidia-ml.so.1 has no %s: the driver is too old", symbol);
    return found != NULL;
}

static void initialise(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(failure, sizeof failure, "no NVIDIA driver: %s", dlerror());
        return;
    }
    if (!find(library, &nvml.init, "nvmlInit_v2") ||
        !find(library, &nvml.driver_version, "nvmlSystemGetDriverVersion") ||
        !find(library, &nvml.cuda_version, "nvmlSystemGetCudaDriverVersion_v2") ||
        !find(library, &nvml.count, "nvmlDeviceGetCount_v2") ||
        !find(library, &nvml.by_index, "nvmlDeviceGetHandleByIndex_v2") ||
        !find(library, &nvml.by_uuid, "nvmlDeviceGetHandleByUUID") ||
        !find(library, &nvml.uuid, "nvmlDeviceGetUUID") || !find(library, &nvml.name, "nvmlDeviceGetName") ||
        !find(library, &nvml.mode, "nvmlDeviceGetComputeMode") ||
        !find(library, &nvml.processes, "nvmlDeviceGetComputeRunningProcesses_v3") ||
        !find(library, &nvml.error, "nvmlErrorString"))
        return;
    int result = nvml.init();
    if (result != SUCCESS)
        snprintf(failure, sizeof failure, "the NVIDIA driver does not answer: nvmlInit: %s",
                 nvml.error(result));
}

/* kdactl has one thread that asks. */
static bool ready(void) {
    static bool tried;
    if (!tried)
        initialise();
    tried = true;
    return failure[0] == '\0';
}

static void look_at_device(unsigned index, struct nvml_device *d) {
    void *device;
    int mode;
    *d = (struct nvml_device){.uuid = "?", .name = "?", .mode = NVML_MODE_UNKNOWN};
    if (nvml.by_index(index, &device) != SUCCESS)
        return;
    nvml.uuid(device, d->uuid, sizeof d->uuid);
    nvml.name(device, d->name, sizeof d->name);
    if (nvml.mode(device, &mode) == SUCCESS)
        d->mode = (enum nvml_mode)mode;
}

bool nvml_look(struct nvml *n, char why[256]) {
    unsigned count = 0;
    *n = (struct nvml){.driver = "?"};
    if (!ready()) {
        memcpy(why, failure, sizeof failure);
        return false;
    }
    nvml.driver_version(n->driver, sizeof n->driver);
    nvml.cuda_version(&n->cuda_version);
    nvml.count(&count);
    n->count = count < NVML_DEVICES ? count : NVML_DEVICES;
    for (unsigned i = 0; i < n->count; i++)
        look_at_device(i, &n->device[i]);
    return true;
}

int64_t nvml_process_bytes(const char *uuid, int64_t pid) {
    static struct process processes[1024];
    unsigned count = sizeof processes / sizeof *processes;
    void *device;
    if (!ready() || nvml.by_uuid(uuid, &device) != SUCCESS)
        return -1;
    int result = nvml.processes(device, &count, processes);
    if (result != SUCCESS && result != MORE_THAN_ROOM)
        return -1;
    for (unsigned i = 0; i < count && i < sizeof processes / sizeof *processes; i++) {
        if (processes[i].pid == pid && processes[i].bytes <= INT64_MAX) /* more: not available */
            return (int64_t)processes[i].bytes;
    }
    return -1;
}
