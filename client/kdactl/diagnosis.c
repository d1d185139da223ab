#include "client/kdactl/diagnosis.h"

#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME = 80 };

static const char *user_name(char text[NAME], int64_t uid) {
    const struct passwd *user = uid < 0 ? NULL : getpwuid((uid_t)uid);
    if (user)
        snprintf(text, NAME, "%.40s (uid %" PRId64 ")", user->pw_name, uid);
    else
        snprintf(text, NAME, "uid %" PRId64, uid);
    return text;
}

static const char *group_name(char text[NAME], gid_t gid) {
    const struct group *group = getgrgid(gid);
    if (group)
        snprintf(text, NAME, "%.40s", group->gr_name);
    else
        snprintf(text, NAME, "%u", (unsigned)gid);
    return text;
}

__attribute__((format(printf, 4, 5))) static struct finding *
add(struct diagnosis *d, const char *subject, enum finding_state state, const char *format, ...) {
    struct finding *f = &d->finding[d->count++];
    va_list arguments;
    *f = (struct finding){.subject = subject, .state = state};
    va_start(arguments, format);
    vsnprintf(f->sentence, sizeof f->sentence, format, arguments);
    va_end(arguments);
    return f;
}

__attribute__((format(printf, 2, 3))) static void remedy(struct finding *f, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f->remedy, sizeof f->remedy, format, arguments);
    va_end(arguments);
}

/* --- the daemon ---------------------------------------------------------------------------------------- */

static void about_no_socket(const struct facts *f, struct diagnosis *d) {
    struct finding *finding =
        add(d, "daemon", FINDING_MISSING, "No daemon runs: there is no socket %s.", f->path);
    if (f->elsewhere[0])
        remedy(finding, "There is one on %s: set KDAD_SOCKET to it. Or start a daemon here: kdad",
               f->elsewhere);
    else
        remedy(finding,
               "Start one as the trainers' user, with the same KDAD_SOCKET and XDG_RUNTIME_DIR: kdad");
}

/* What would have to be allowed: to enter a directory, or to write to the socket. */
static void about_forbidden(const struct facts *f, struct diagnosis *d) {
    char me[NAME], owner[NAME], group[NAME];
    bool directory = S_ISDIR(f->bar.st_mode);
    mode_t for_group = directory ? S_IXGRP : S_IWGRP;
    if (f->bar.st_mode == 0) {
        remedy(add(d, "daemon", FINDING_MISSING, "%s may not use the socket %s.", user_name(me, f->uid),
                   f->path),
               "Run trainers as the daemon's user.");
        return;
    }
    struct finding *finding =
        add(d, "daemon", FINDING_MISSING, "%s may not use %s: %s %s belongs to %s and group %s, mode %04o.",
            user_name(me, f->uid), f->path, directory ? "directory" : "socket", f->barred,
            user_name(owner, f->bar.st_uid), group_name(group, f->bar.st_gid),
            (unsigned)(f->bar.st_mode & 07777));
    if (f->bar.st_mode & for_group)
        remedy(finding,
               "Members of group %s may: usermod -aG %s NAME, and log in again. Or start an own daemon.",
               group, group);
    else
        remedy(finding,
               "Only %s and root may: run trainers as that user, or start an own daemon on another "
               "socket: kdad --socket PATH",
               owner);
}

static void about_daemon(const struct facts *f, struct diagnosis *d) {
    char me[NAME];
    switch (f->reach) {
    case REACH_SERVED:
        add(d, "daemon", FINDING_WELL, "kdad %s answers on %s.", f->version, f->path);
        break;
    case REACH_IN_PROCESS:
        add(d, "daemon", FINDING_NOTE,
            "The address is local: - jobs run in each process itself, with no daemon.");
        break;
    case REACH_NO_SOCKET:
        about_no_socket(f, d);
        break;
    case REACH_STALE:
        remedy(add(d, "daemon", FINDING_MISSING,
                   "No daemon runs: the socket %s was left behind by one that died.", f->path),
               "Start it again, it takes the socket's place: kdad. The old one's log says why it died.");
        break;
    case REACH_FORBIDDEN:
        about_forbidden(f, d);
        break;
    case REACH_REFUSED:
        remedy(add(d, "daemon", FINDING_MISSING,
                   "%s is refused by the daemon on %s: it serves its own user and root.",
                   user_name(me, f->uid), f->path),
               "Start an own daemon as this user, or let a service manager make a socket for a group.");
        break;
    case REACH_SILENT:
        remedy(add(d, "daemon", FINDING_MISSING, "A daemon listens on %s, but does not answer.", f->path),
               "It is stopped or starved of processor time: look at its state and its log.");
        break;
    case REACH_OTHER:
        add(d, "daemon", FINDING_MISSING, "The daemon cannot be used: %s.", f->sentence);
        break;
    }
}

/* --- driver and GPUs ----------------------------------------------------------------------------------- */

static void about_driver(const struct facts *f, struct diagnosis *d) {
    const char *release = f->nvml_answers ? f->nvml.driver : "libcuda.so.1";
    if (!f->driver) {
        remedy(add(d, "driver", FINDING_MISSING, "There is no NVIDIA driver: %s.", f->no_driver),
               "Install NVIDIA's driver, or give the container the GPU (docker run --gpus all). Without a "
               "GPU kdad "
               "works on the CPU.");
        return;
    }
    if (f->cuda_version > 0 && f->cuda_version < f->cuda_needed)
        remedy(add(d, "driver", FINDING_MISSING,
                   "The driver (%s) is too old: it serves CUDA %d.%d, kdad needs %d.%d.", release,
                   f->cuda_version / 1000, f->cuda_version % 1000 / 10, f->cuda_needed / 1000,
                   f->cuda_needed % 1000 / 10),
               "Install a newer driver, or a kdad that was built with an older CUDA.");
    else if (f->cuda_version > 0)
        add(d, "driver", FINDING_WELL, "The driver (%s) serves CUDA %d.%d.", release, f->cuda_version / 1000,
            f->cuda_version % 1000 / 10);
    else
        add(d, "driver", FINDING_NOTE, "libcuda.so.1 is there, but which CUDA it serves is not known.");
}

static void about_gpus(const struct facts *f, struct diagnosis *d) {
    const char *first = f->nvml.count > 0 ? f->nvml.device[0].name : "";
    if (!f->driver)
        return; /* it was said */
    if (!f->nvml_answers)
        remedy(add(d, "gpu", FINDING_MISSING, "GPUs cannot be seen: %s.", f->no_nvml),
               "nvidia-smi tells more: is the kernel's module loaded, are the devices in this container?");
    else if (f->nvml.count == 0)
        remedy(add(d, "gpu", FINDING_MISSING, "The driver shows no GPU."),
               "nvidia-smi -L lists them: is one there, and given to this container?");
    else if (f->reach == REACH_SERVED && f->gpus_served == 0)
        remedy(add(d, "gpu", FINDING_MISSING, "The daemon has no GPU, though the driver shows %u (%s).",
                   f->nvml.count, first),
               "Start it with --backend cuda: it says why if it cannot.");
    else
        add(d, "gpu", FINDING_WELL, "The driver shows %u GPU%s (%s).", f->nvml.count,
            f->nvml.count > 1 ? "s" : "", first);
}

static void about_modes(const struct facts *f, struct diagnosis *d) {
    uint32_t good = 0;
    for (uint32_t i = 0; i < f->nvml.count; i++) {
        const struct nvml_device *device = &f->nvml.device[i];
        if (device->mode == NVML_MODE_PROHIBITED)
            remedy(add(d, "compute mode", FINDING_MISSING,
                       "%s is in compute mode Prohibited: no process may use it.", device->uuid),
                   "As root: nvidia-smi -i %s -c DEFAULT", device->uuid);
        else if (device->mode == NVML_MODE_EXCLUSIVE && !f->mps_runs)
            remedy(add(d, "compute mode", FINDING_MISSING,
                       "%s is in compute mode Exclusive_Process, and MPS is off: the daemon and a trainer "
                       "cannot both use it.",
                       device->uuid),
                   "Turn MPS on, or as root: nvidia-smi -i %s -c DEFAULT", device->uuid);
        else
            good++;
    }
    if (good > 0 && good == f->nvml.count)
        add(d, "compute mode", FINDING_WELL, "The compute mode lets several processes use the GPU.");
}

/* --- users and MPS ------------------------------------------------------------------------------------- */

static void about_user(const struct facts *f, struct diagnosis *d) {
    char me[NAME], other[NAME];
    if (f->reach != REACH_SERVED || f->daemon_uid < 0)
        return;
    user_name(me, f->uid);
    user_name(other, f->daemon_uid);
    if (f->daemon_uid == f->uid)
        add(d, "user", FINDING_WELL, "The daemon runs as this user, %s.", me);
    else if (f->gpus_served == 0)
        add(d, "user", FINDING_NOTE, "The daemon runs as %s, this is %s: on the CPU that does no harm.",
            other, me);
    else
        remedy(add(d, "user", f->uid == 0 ? FINDING_NOTE : FINDING_MISSING,
                   "The daemon runs as %s, this is %s: under MPS a GPU serves one user at a time, and its "
                   "memory "
                   "is not shared between users.",
                   other, me),
               f->uid == 0 ? "Ask as the trainers' user." : "Start an own daemon as this user.");
}

static void about_no_mps(const struct facts *f, struct diagnosis *d) {
    struct finding *finding;
    if (f->mps_pid > 0)
        finding = add(d, "mps", FINDING_MISSING,
                      "MPS is off: the control daemon of %s, process %" PRId64 ", does not run any more.",
                      f->mps_directory, f->mps_pid);
    else
        finding =
            add(d, "mps", FINDING_MISSING, "MPS is off: no control daemon runs in %s.", f->mps_directory);
    remedy(
        finding,
        "As the user of kdad and the trainers: nvidia-cuda-mps-control -d; then start kdad and the trainers "
        "again. In a container, mount the directory. Without MPS a job costs some 0.3 ms more.");
}

static void about_mps(const struct facts *f, struct diagnosis *d) {
    char me[NAME], owner[NAME], other[NAME];
    bool served = f->reach == REACH_SERVED;
    user_name(owner, f->mps_uid);
    if (!f->mps_runs)
        about_no_mps(f, d);
    else if (f->mps_uid > 0 && served && f->daemon_uid >= 0 && f->mps_uid != f->daemon_uid)
        remedy(add(d, "mps", FINDING_MISSING,
                   "The MPS control daemon in %s runs as %s, kdad as %s: it cannot use it.", f->mps_directory,
                   owner, user_name(other, f->daemon_uid)),
               "Start both as the same user, or the control daemon as root.");
    else if (f->mps_uid > 0 && f->mps_uid != f->uid && f->uid != 0)
        remedy(add(d, "mps", FINDING_MISSING,
                   "The MPS control daemon in %s runs as %s, this is %s: it cannot be used.",
                   f->mps_directory, owner, user_name(me, f->uid)),
               "Start one as this user, with CUDA_MPS_PIPE_DIRECTORY set to a directory of its own.");
    else if (served && f->gpus_served > 0 && f->mps_of_daemon == WIRE_MPS_OFF && f->daemon_started > 0 &&
             f->daemon_started < f->mps_started)
        remedy(add(d, "mps", FINDING_MISSING, "The daemon was started before MPS, and so does not use it."),
               "Start kdad again, then the trainers.");
    else if (served && f->gpus_served > 0 && f->mps_of_daemon == WIRE_MPS_OFF)
        remedy(add(d, "mps", FINDING_MISSING, "A control daemon runs in %s, but kdad does not use it.",
                   f->mps_directory),
               "Start kdad again with the same CUDA_MPS_PIPE_DIRECTORY as the control daemon: its log names "
               "its own.");
    else
        add(d, "mps", FINDING_WELL, "The MPS control daemon of %s runs, process %" PRId64 ".",
            f->mps_directory, f->mps_pid);
}

void diagnose(const struct facts *facts, struct diagnosis *diagnosis) {
    diagnosis->count = 0;
    about_daemon(facts, diagnosis);
    about_user(facts, diagnosis);
    about_driver(facts, diagnosis);
    about_gpus(facts, diagnosis);
    about_modes(facts, diagnosis);
    about_mps(facts, diagnosis);
}

bool diagnosis_is_well(const struct diagnosis *diagnosis) {
    for (uint32_t i = 0; i < diagnosis->count; i++)
        if (diagnosis->finding[i].state == FINDING_MISSING)
            return false;
    return true;
}
