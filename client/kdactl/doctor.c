/*
 * doctor.c - kdactl doctor: collects what diagnosis.h needs to know, and prints what follows.
 */
#include "client/connection.h"
#include "client/kdactl/diagnosis.h"
#include "client/kdactl/json.h"
#include "client/kdactl/mps.h"
#include "proto/address.h"

#ifdef HAVE_CUDA
#include <cuda.h>
#endif

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const int patience_ms = 5000; /* with a daemon that does not answer */

/* --- the socket ---------------------------------------------------------------------------------------- */

static bool is_socket(const char *path) {
    struct stat file;
    return stat(path, &file) == 0 && S_ISSOCK(file.st_mode);
}

/* Where a daemon may be beside where it was looked for. */
static void look_elsewhere(struct facts *f) {
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char own[sizeof f->elsewhere];
    const char *const paths[] = {own, "/run/kdad/kdad.sock"};
    int size = snprintf(own, sizeof own, "%s/kdad/kdad.sock", runtime ? runtime : "");
    for (size_t i = (size_t)(!runtime || size >= (int)sizeof own); i < 2 && !f->elsewhere[0]; i++)
        if (strcmp(paths[i], f->path) != 0 && is_socket(paths[i]))
            snprintf(f->elsewhere, sizeof f->elsewhere, "%s", paths[i]);
}

/* The first directory on the way that may not be entered, else the file itself. */
static void look_at_bar(struct facts *f) {
    snprintf(f->barred, sizeof f->barred, "%s", f->path);
    for (char *slash = strchr(f->barred + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (faccessat(AT_FDCWD, f->barred, X_OK, AT_EACCESS) < 0)
            break;
        *slash = '/';
    }
    if (stat(f->barred, &f->bar) < 0)
        f->bar.st_mode = 0;
}

static enum reach reach_of(const struct facts *f, kdad_status status) {
    switch (status) {
    case KDAD_NO_DAEMON:
        return access(f->path, F_OK) == 0 ? REACH_STALE : REACH_NO_SOCKET;
    case KDAD_DENIED:
        return faccessat(AT_FDCWD, f->path, W_OK, AT_EACCESS) == 0 ? REACH_REFUSED : REACH_FORBIDDEN;
    case KDAD_TIMEOUT:
        return REACH_SILENT;
    default:
        return REACH_OTHER;
    }
}

static void look_at_peer(struct facts *f, struct kdad_connection *connection) {
    struct session *session = NULL;
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (connection_session(connection, &session) != KDAD_OK)
        return;
    if (getsockopt(session->socket.fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
        f->daemon_uid = peer.uid; /* who made the socket listen: a service manager may have */
        f->daemon_pid = peer.pid;
    }
    session_drop(session);
}

static kdad_status look_at_status(struct facts *f, struct kdad_connection *connection) {
    static struct snapshot snapshot; /* too large for a stack */
    int64_t uid;
    kdad_status status = snapshot_take(&snapshot, connection);
    if (status != KDAD_OK)
        return status;
    snprintf(f->version, sizeof f->version, "%s", snapshot.version);
    look_at_peer(f, connection);
    f->daemon_pid = snapshot.reply.pid;
    if (process_look(f->daemon_pid, &uid, &f->daemon_started))
        f->daemon_uid = uid;
    for (uint32_t i = snapshot.reply.device_count; i-- > 0;) {
        if (!snapshot_is_gpu(&snapshot, i))
            continue;
        f->gpus_served++;
        f->mps_of_daemon = snapshot.reply.device[i].mps;
    }
    snapshot_free(&snapshot);
    return KDAD_OK;
}

static void look_at_daemon(struct facts *f, const char *socket) {
    struct kdad_connection *connection;
    struct sockaddr_un address;
    socklen_t size;
    char why[PROBLEM_WHY];
    if (address_is_local(socket)) {
        f->reach = REACH_IN_PROCESS;
        return;
    }
    if (address_resolve(socket, &address, &size, why))
        memcpy(f->path, address.sun_path, sizeof f->path);
    kdad_status status = kdad_connect(socket, patience_ms, &connection);
    if (status == KDAD_OK) {
        status = look_at_status(f, connection);
        if (status != KDAD_OK)
            snprintf(f->sentence, sizeof f->sentence, "%s", kdad_error());
        kdad_disconnect(connection);
    } else {
        snprintf(f->sentence, sizeof f->sentence, "%s", kdad_error());
    }
    f->reach = status == KDAD_OK ? REACH_SERVED : reach_of(f, status);
    if (f->reach == REACH_NO_SOCKET)
        look_elsewhere(f);
    if (f->reach == REACH_FORBIDDEN)
        look_at_bar(f);
}

/* --- driver and MPS ------------------------------------------------------------------------------------ */

/* Machine code runs on drivers of its CUDA's major release, and later ones. */
static int cuda_needed(void) {
#ifdef HAVE_CUDA
    return CUDA_VERSION / 1000 * 1000 > DIAGNOSIS_CUDA_LEAST ? CUDA_VERSION / 1000 * 1000
                                                             : DIAGNOSIS_CUDA_LEAST;
#else
    return DIAGNOSIS_CUDA_LEAST;
#endif
}

/* libcuda tells its version without being initialised: it makes no context, and needs no GPU. */
static void look_at_driver(struct facts *f) {
    int (*version)(int *) = NULL;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    f->driver = library != NULL;
    if (!library)
        snprintf(f->no_driver, sizeof f->no_driver, "%s", dlerror());
    void *symbol = library ? dlsym(library, "cuDriverGetVersion") : NULL;
    memcpy(&version, &symbol, sizeof version);
    if (version)
        version(&f->cuda_version);
    f->nvml_answers = nvml_look(&f->nvml, f->no_nvml);
    f->cuda_needed = cuda_needed();
}

static void look_at_mps(struct facts *f) {
    snprintf(f->mps_directory, sizeof f->mps_directory, "%s", mps_directory());
    f->mps_pid = mps_control_pid();
    f->mps_runs = process_look(f->mps_pid, &f->mps_uid, &f->mps_started);
}

/* --- the command --------------------------------------------------------------------------------------- */

static const char *state_name(enum finding_state state) {
    static const char *const names[] = {"well", "note", "missing"};
    return names[state];
}

static void print_text(const struct diagnosis *d) {
    for (uint32_t i = 0; i < d->count; i++) {
        const struct finding *f = &d->finding[i];
        printf("%-8s %-13s %s\n", state_name(f->state), f->subject, f->sentence);
        if (f->remedy[0])
            printf("%-22s %s\n", "", f->remedy);
    }
}

static enum exit_code print_json(const struct diagnosis *d) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddBoolToObject(object, "well", diagnosis_is_well(d));
    cJSON *findings = cJSON_AddArrayToObject(object, "findings");
    for (uint32_t i = 0; i < d->count; i++) {
        const struct finding *f = &d->finding[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "subject", f->subject);
        cJSON_AddStringToObject(row, "state", state_name(f->state));
        cJSON_AddStringToObject(row, "sentence", f->sentence);
        cJSON_AddStringToObject(row, "remedy", f->remedy);
        cJSON_AddItemToArray(findings, row);
    }
    enum exit_code code = json_print(object);
    cJSON_Delete(object);
    return code;
}

enum exit_code command_doctor(const struct options *options) {
    static struct facts facts; /* these two are large */
    static struct diagnosis diagnosis;
    enum exit_code code = EXIT_DONE;
    facts = (struct facts){.uid = geteuid(), .daemon_uid = -1, .daemon_pid = -1, .mps_uid = -1};
    look_at_daemon(&facts, options->socket);
    look_at_driver(&facts);
    look_at_mps(&facts);
    diagnose(&facts, &diagnosis);
    if (options->json)
        code = print_json(&diagnosis);
    else
        print_text(&diagnosis);
    return code == EXIT_DONE && !diagnosis_is_well(&diagnosis) ? EXIT_NO : code;
}
