#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cuda_driver table;
static char failure[CUDA_WHY];
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool cuda_ok(CUresult result, const char *call, char why[CUDA_WHY]) {
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS)
        return true;
    if (table.GetErrorName)
        table.GetErrorName(result, &name);
    if (table.GetErrorString)
        table.GetErrorString(result, &text);
    snprintf(why, CUDA_WHY, "%s: %s (%s)", call, name ? name : "unknown error", text ? text : "?");
    return false;
}

static bool load(void *library) {
    static const struct {
        const char *symbol;
        size_t offset;
    } functions[] = {
#define STRING(text) STRING_(text)
#define STRING_(text) #text
#define CUDA_DRIVER_SYMBOL(name, symbol) {STRING(symbol), offsetof(struct cuda_driver, name)},
        CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_SYMBOL)
#undef CUDA_DRIVER_SYMBOL
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = dlsym(library, functions[i].symbol);
        if (!function) {
            snprintf(failure, sizeof failure, "libcuda.so.1 has no %s: the driver is too old",
                     functions[i].symbol);
            return false;
        }
        memcpy((char *)&table + functions[i].offset, &function, sizeof function);
    }
    return true;
}

static void initialise(void) {
    int devices = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(failure, sizeof failure, "no CUDA driver: %s", dlerror());
        return;
    }
    if (!load(library) || !cuda_ok(table.Init(0), "cuInit", failure) ||
        !cuda_ok(table.DriverGetVersion(&table.version), "cuDriverGetVersion", failure) ||
        !cuda_ok(table.DeviceGetCount(&devices), "cuDeviceGetCount", failure))
        return;
    if (devices == 0)
        snprintf(failure, sizeof failure, "no CUDA device is visible");
}

const struct cuda_driver *cuda_driver(char why[CUDA_WHY]) {
    pthread_once(&once, initialise);
    if (!failure[0])
        return &table;
    memcpy(why, failure, sizeof failure);
    return NULL;
}

bool cuda_uuid(CUdevice device, char text[CUDA_UUID_TEXT], char why[CUDA_WHY]) {
    CUuuid uuid;
    if (!cuda_ok(table.DeviceGetUuid(&uuid, device), "cuDeviceGetUuid", why))
        return false;
    const unsigned char *b = (const unsigned char *)uuid.bytes;
    snprintf(text, CUDA_UUID_TEXT, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
    return true;
}

bool cuda_streams_words(CUdevice device) {
    int can = 0;
    const char *text = getenv("KDAD_STREAM_MEMORY");
    return (!text || strcmp(text, "no") != 0) &&
           table.DeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) ==
               CUDA_SUCCESS &&
           can;
}
