/*
 * cuda_memory.h - clients' GPU memory, mapped into the daemon's context of its device.
 */
#ifndef DAEMON_CUDA_MEMORY_H
#define DAEMON_CUDA_MEMORY_H

#include "daemon/backend.h"
#include "daemon/cuda_device.h"

/* True if the kind of buffer is one of those mapped here. */
bool cuda_memory_maps(uint32_t kind);

/* As map and unmap of backend_ops. */
enum wire_status cuda_memory_map(const struct cuda_devices *devices, const struct wire_register *request,
                                 const int *fds, struct mapping *mapping, char why[PROBLEM_WHY]);
void cuda_memory_unmap(const struct cuda_devices *devices, struct mapping *mapping);

#endif
