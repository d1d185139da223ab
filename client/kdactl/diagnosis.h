/*
 * diagnosis.h - what is missing for the fast path, in sentences, from facts about daemon, driver and MPS.
 *
 * It looks at nothing itself: doctor.c collects the facts.
 */
#ifndef CLIENT_KDACTL_DIAGNOSIS_H
#define CLIENT_KDACTL_DIAGNOSIS_H

#include "client/kdactl/nvml.h"
#include "client/kdactl/snapshot.h"

#include <sys/stat.h>
#include <sys/un.h>

enum {
    DIAGNOSIS_TEXT = 640,
    DIAGNOSIS_FINDINGS = 8 + NVML_DEVICES,
    DIAGNOSIS_CUDA_LEAST = 11070, /* the newest functions that kdad calls are of CUDA 11.7 */
};

enum reach {
    REACH_SERVED,
    REACH_IN_PROCESS, /* the address is "local:" */
    REACH_NO_SOCKET,
    REACH_STALE,     /* a socket that nobody listens on */
    REACH_FORBIDDEN, /* its mode, or that of a directory */
    REACH_REFUSED,   /* the daemon does not serve this user */
    REACH_SILENT,
    REACH_OTHER,
};

struct facts {
    uint32_t uid; /* of this process */

    enum reach reach;
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    char elsewhere[sizeof((struct sockaddr_un *)0)->sun_path]; /* another default path with a socket, or "" */
    char sentence[DIAGNOSIS_TEXT / 2];                         /* the library's, if it is not served */
    char barred[sizeof((struct sockaddr_un *)0)->sun_path]; /* FORBIDDEN: the directory or file that does */
    struct stat bar;                                        /* and its owner and mode; mode 0: not known */
    char version[WIRE_NAME_MAX + 1];                        /* SERVED: this and what follows */
    int64_t daemon_uid, daemon_pid;                         /* -1: not known */
    uint64_t daemon_started;                                /* clock ticks since boot; 0: not known */
    uint32_t gpus_served;
    enum wire_mps mps_of_daemon; /* on its first GPU */

    bool driver; /* libcuda.so.1 can be loaded */
    char no_driver[DIAGNOSIS_TEXT / 2];
    int cuda_version, cuda_needed; /* 1000 * major + 10 * minor; the driver's is 0 if it is not known */
    bool nvml_answers;
    char no_nvml[256];
    struct nvml nvml;

    char mps_directory[256];
    int64_t mps_pid; /* that its control daemon left there; 0: none */
    bool mps_runs;
    int64_t mps_uid; /* -1: not known */
    uint64_t mps_started;
};

enum finding_state { FINDING_WELL, FINDING_NOTE, FINDING_MISSING };

struct diagnosis {
    uint32_t count;
    struct finding {
        const char *subject;
        enum finding_state state;
        char sentence[DIAGNOSIS_TEXT];
        char remedy[DIAGNOSIS_TEXT]; /* "" if there is nothing to do */
    } finding[DIAGNOSIS_FINDINGS];
};

void diagnose(const struct facts *facts, struct diagnosis *diagnosis);

/* True if nothing is missing. */
bool diagnosis_is_well(const struct diagnosis *diagnosis);

#endif
