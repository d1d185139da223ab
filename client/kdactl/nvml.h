/*
 * nvml.h - what NVIDIA's management library tells of GPUs and of the memory of processes on them.
 *
 * It comes with the driver, and is loaded when it is first asked for: nothing links it. Asking it makes no
 * CUDA context.
 */
#ifndef CLIENT_KDACTL_NVML_H
#define CLIENT_KDACTL_NVML_H

#include <stdbool.h>
#include <stdint.h>

enum { NVML_TEXT = 96, NVML_DEVICES = 64 };

enum nvml_mode { /* NVML's numbers */
                 NVML_MODE_UNKNOWN = -1,
                 NVML_MODE_DEFAULT = 0,
                 NVML_MODE_PROHIBITED = 2,
                 NVML_MODE_EXCLUSIVE = 3,
};

struct nvml_device {
    char uuid[NVML_TEXT], name[NVML_TEXT];
    enum nvml_mode mode;
};

struct nvml {
    char driver[NVML_TEXT]; /* its version */
    int cuda_version;       /* that the driver serves: 1000 * major + 10 * minor; 0 if it is not known */
    uint32_t count;
    struct nvml_device device[NVML_DEVICES];
};

/* Fills in what there is. False with a sentence in why if there is no driver, or it does not answer. */
bool nvml_look(struct nvml *nvml, char why[256]);

/* Bytes of a GPU's memory that a process takes in all; -1 if it is not known. */
int64_t nvml_process_bytes(const char *uuid, int64_t pid);

#endif
