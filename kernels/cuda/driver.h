/*
 * driver.h - the CUDA driver API, loaded when it is first asked for.
 *
 * Nothing links libcuda: the same binary runs on hosts with and without a GPU. The table holds the functions
 * that kdad uses, under their names without "cu" and version suffix. Each call goes through cuda_ok, which
 * turns a failure into a sentence with the call's name.
 */
#ifndef KERNELS_CUDA_DRIVER_H
#define KERNELS_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name in the table, symbol in libcuda, type of the function) */
#define CUDA_DRIVER_FUNCTIONS(X)                                          \
    X(Init, cuInit)                                                       \
    X(DriverGetVersion, cuDriverGetVersion)                               \
    X(GetErrorName, cuGetErrorName)                                       \
    X(GetErrorString, cuGetErrorString)                                   \
    X(DeviceGetCount, cuDeviceGetCount)                                   \
    X(DeviceGet, cuDeviceGet)                                             \
    X(DeviceGetName, cuDeviceGetName)                                     \
    X(DeviceGetUuid, cuDeviceGetUuid_v2)                                  \
    X(DeviceGetAttribute, cuDeviceGetAttribute)                           \
    X(DeviceTotalMem, cuDeviceTotalMem_v2)                                \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                   \
    X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)              \
    X(CtxGetCurrent, cuCtxGetCurrent)                                     \
    X(CtxSetCurrent, cuCtxSetCurrent)                                     \
    X(CtxPushCurrent, cuCtxPushCurrent_v2)                                \
    X(CtxPopCurrent, cuCtxPopCurrent_v2)                                  \
    X(CtxGetDevice, cuCtxGetDevice)                                       \
    X(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange)             \
    X(CtxSynchronize, cuCtxSynchronize)                                   \
    X(ModuleLoadData, cuModuleLoadData)                                   \
    X(ModuleUnload, cuModuleUnload)                                       \
    X(ModuleGetFunction, cuModuleGetFunction)                             \
    X(FuncSetAttribute, cuFuncSetAttribute)                               \
    X(LaunchKernel, cuLaunchKernel)                                       \
    X(LaunchHostFunc, cuLaunchHostFunc)                                   \
    X(StreamCreateWithPriority, cuStreamCreateWithPriority)               \
    X(StreamDestroy, cuStreamDestroy_v2)                                  \
    X(StreamSynchronize, cuStreamSynchronize)                             \
    X(StreamQuery, cuStreamQuery)                                         \
    X(StreamGetCtx, cuStreamGetCtx)                                       \
    X(StreamWaitEvent, cuStreamWaitEvent)                                 \
    X(StreamIsCapturing, cuStreamIsCapturing)                             \
    X(StreamWriteValue64, cuStreamWriteValue64_v2)                        \
    X(StreamWaitValue64, cuStreamWaitValue64_v2)                          \
    X(StreamBatchMemOp, cuStreamBatchMemOp_v2)                            \
    X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode) \
    X(EventCreate, cuEventCreate)                                         \
    X(EventDestroy, cuEventDestroy_v2)                                    \
    X(EventRecord, cuEventRecord)                                         \
    X(EventQuery, cuEventQuery)                                           \
    X(EventSynchronize, cuEventSynchronize)                               \
    X(MemAlloc, cuMemAlloc_v2)                                            \
    X(MemFree, cuMemFree_v2)                                              \
    X(MemAllocAsync, cuMemAllocAsync)                                     \
    X(MemFreeAsync, cuMemFreeAsync)                                       \
    X(MemAllocHost, cuMemAllocHost_v2)                                    \
    X(MemFreeHost, cuMemFreeHost)                                         \
    X(MemHostRegister, cuMemHostRegister_v2)                              \
    X(MemHostUnregister, cuMemHostUnregister)                             \
    X(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)              \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)                              \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)                              \
    X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)                              \
    X(MemsetD8Async, cuMemsetD8Async)                                     \
    X(MemGetAddressRange, cuMemGetAddressRange_v2)                        \
    X(MemGetInfo, cuMemGetInfo_v2)                                        \
    X(PointerGetAttribute, cuPointerGetAttribute)                         \
    X(PointerGetAttributes, cuPointerGetAttributes)                       \
    X(IpcGetMemHandle, cuIpcGetMemHandle)                                 \
    X(IpcOpenMemHandle, cuIpcOpenMemHandle_v2)                            \
    X(IpcCloseMemHandle, cuIpcCloseMemHandle)                             \
    X(MemAddressReserve, cuMemAddressReserve)                             \
    X(MemAddressFree, cuMemAddressFree)                                   \
    X(MemMap, cuMemMap)                                                   \
    X(MemUnmap, cuMemUnmap)                                               \
    X(MemSetAccess, cuMemSetAccess)                                       \
    X(MemRelease, cuMemRelease)                                           \
    X(MemRetainAllocationHandle, cuMemRetainAllocationHandle)             \
    X(MemExportToShareableHandle, cuMemExportToShareableHandle)           \
    X(MemImportFromShareableHandle, cuMemImportFromShareableHandle)       \
    X(MemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle)

struct cuda_driver {
#define CUDA_DRIVER_FIELD(name, symbol) __typeof__(symbol) *(name);
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
    int version; /* of the driver: 13000 for 13.0 */
};

enum {
    CUDA_WHY = 256,     /* bytes of a sentence, as PROBLEM_WHY */
    CUDA_UUID_TEXT = 41 /* "GPU-" and 36 characters, with the end */
};

/* The table, loaded and initialised once for the process; NULL with a sentence in why, now and for ever
 * after, where there is no driver, no device, or a function is missing. Safe on any thread. */
const struct cuda_driver *cuda_driver(char why[CUDA_WHY]);

/* True if result is success; else a sentence in why: the call's name and the driver's word for the error. */
bool cuda_ok(CUresult result, const char *call, char why[CUDA_WHY]);

/* The name by which client and daemon know a device: "GPU-…", as nvidia-smi -L prints it; "MIG-…" is not
 * made. */
bool cuda_uuid(CUdevice device, char text[CUDA_UUID_TEXT], char why[CUDA_WHY]);

/* True if streams of the device read and write words of memory by themselves (stream memory operations);
 * false too while the environment's KDAD_STREAM_MEMORY is "no". */
bool cuda_streams_words(CUdevice device);

#ifdef __cplusplus
}
#endif
#endif
