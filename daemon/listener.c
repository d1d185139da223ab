/*
 * listener.c - the daemon's socket: bound here, or handed over by the service manager.
 *
 * A socket file on which nobody answers is stale and is replaced; one on which a daemon answers is left
 * alone. The socket's directory is locked meanwhile, so that of two daemons that start together one wins.
 */
#include "daemon/daemon.h"
#include "daemon/loop.h"
#include "proto/address.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>
#endif

#define BACKLOG 1024

/* Descriptors that are kept for what clients send and get: one for each packet of a batch, and a few. A new
 * one has the smallest number that is free, so that of a connection tells how many are left. */
enum { DESCRIPTORS_SPARE = DAEMON_BATCH + 8 };

static bool fail(char why[PROBLEM_WHY], const char *path, const char *what) {
    snprintf(why, PROBLEM_WHY, "socket: %s: %s: %s", path, what, strerror(errno));
    return false;
}

/* Splits off the directory of a path; makes it if it is missing. Returns a locked descriptor of it, or -1. */
static int lock_directory(const char *path) {
    char directory[sizeof((struct sockaddr_un *)0)->sun_path];
    const char *slash = strrchr(path, '/');
    if (slash == path)
        strcpy(directory, "/");
    else if (slash)
        snprintf(directory, sizeof directory, "%.*s", (int)(slash - path), path);
    else
        strcpy(directory, ".");
    if (mkdir(directory, 0700) < 0 && errno != EEXIST)
        return -1;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* True if a daemon answers, or may answer: then the file stays. */
static bool is_served(const struct sockaddr_un *address, socklen_t size) {
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return true;
    bool refused = connect(probe, (const struct sockaddr *)address, size) < 0 &&
                   (errno == ECONNREFUSED || errno == ENOENT);
    close(probe);
    return !refused;
}

static bool remove_stale(const struct sockaddr_un *address, socklen_t size, char why[PROBLEM_WHY]) {
    struct stat st;
    if (lstat(address->sun_path, &st) < 0)
        return errno == ENOENT || fail(why, address->sun_path, "cannot be looked at");
    if (!S_ISSOCK(st.st_mode)) {
        snprintf(why, PROBLEM_WHY, "socket: %s: exists and is not a socket", address->sun_path);
        return false;
    }
    if (is_served(address, size)) {
        snprintf(why, PROBLEM_WHY, "socket: %s: another daemon serves it", address->sun_path);
        return false;
    }
    if (unlink(address->sun_path) < 0 && errno != ENOENT)
        return fail(why, address->sun_path, "is stale and cannot be removed");
    return true;
}

static bool bind_here(struct listener *l, const char *path, char why[PROBLEM_WHY]) {
    socklen_t size;
    if (!address_resolve(path, &l->address, &size, why))
        return false;
    const char *name = l->address.sun_path;
    int directory = lock_directory(name);
    if (directory < 0)
        return fail(why, name, "its directory cannot be made or opened");
    bool bound = false;
    if (remove_stale(&l->address, size, why)) {
        mode_t mask = umask(0177);
        l->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (l->socket < 0 || bind(l->socket, (struct sockaddr *)&l->address, size) < 0)
            fail(why, name, "cannot be bound");
        else if (l->own = true, loop_owns_socket(name), listen(l->socket, BACKLOG) < 0)
            fail(why, name, "cannot be listened on");
        else
            bound = true;
        umask(mask);
    }
    close(directory);
    return bound;
}

/* Takes over a socket of the service manager's. 1: taken, 0: there is none, -1: it is of no use. */
static int inherit(struct listener *l, char why[PROBLEM_WHY]) {
#ifdef HAVE_LIBSYSTEMD
    int count = sd_listen_fds(1);
    if (count == 0)
        return 0;
    if (count < 0 || count > 1 || sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_SEQPACKET, 1, NULL, 0) <= 0) {
        snprintf(why, PROBLEM_WHY,
                 "socket: LISTEN_FDS hands over %d descriptors, but must be one listening "
                 "SOCK_SEQPACKET socket",
                 count);
        return -1;
    }
    socklen_t size = sizeof l->address;
    l->socket = SD_LISTEN_FDS_START;
    l->inherited = true;
    if (getsockname(l->socket, (struct sockaddr *)&l->address, &size) < 0 ||
        fcntl(l->socket, F_SETFL, O_NONBLOCK) < 0) {
        fail(why, "inherited", "cannot be used");
        return -1;
    }
    return 1;
#else
    (void)l;
    if (!getenv("LISTEN_FDS"))
        return 0;
    snprintf(why, PROBLEM_WHY, "socket: LISTEN_FDS is set, but this build of kdad has no libsystemd");
    return -1;
#endif
}

static void refuse(struct daemon *daemon, int socket) {
    client_refuse(daemon, socket, WIRE_LIMIT, "connection: the daemon has no descriptors left (LimitNOFILE)");
}

/* No descriptor is left: the reserve takes the connection, so that it is refused and does not wait for ever.
 */
static void refuse_one(struct daemon *daemon) {
    struct listener *l = &daemon->listener;
    close(l->reserve);
    int socket = accept4(l->socket, NULL, NULL, SOCK_CLOEXEC);
    if (socket >= 0)
        refuse(daemon, socket);
    l->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_connection(uv_poll_t *poll, int status, int events) {
    struct daemon *daemon = poll->data;
    struct listener *l = &daemon->listener;
    (void)status;
    (void)events;
    for (int i = 0; i < DAEMON_BATCH; i++) {
        int socket = accept4(l->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket >= 0 && socket <= l->socket_max)
            client_open(daemon, socket);
        else if (socket >= 0)
            refuse(daemon, socket);
        else if (errno == EMFILE || errno == ENFILE)
            refuse_one(daemon);
        else if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

bool listener_open(struct daemon *daemon, const char *path, char why[PROBLEM_WHY]) {
    struct listener *l = &daemon->listener;
    int inherited = inherit(l, why);
    if (inherited < 0 || (inherited == 0 && !bind_here(l, path, why)))
        return false;
    struct rlimit limit = {.rlim_cur = INT_MAX};
    getrlimit(RLIMIT_NOFILE, &limit);
    l->socket_max = (limit.rlim_cur > INT_MAX ? INT_MAX : (int)limit.rlim_cur) - 1 - DESCRIPTORS_SPARE;
    l->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int error = uv_poll_init(&daemon->loop, &l->poll, l->socket);
    if (error == 0) {
        l->poll.data = daemon;
        error = uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
    if (error)
        snprintf(why, PROBLEM_WHY, "socket: cannot be watched: %s", uv_strerror(error));
    return error == 0;
}

void listener_close(struct daemon *daemon) {
    struct listener *l = &daemon->listener;
    if (l->socket < 0)
        return;
    if (l->poll.data && !uv_is_closing((uv_handle_t *)&l->poll))
        uv_close((uv_handle_t *)&l->poll, NULL);
    if (l->own)
        unlink(l->address.sun_path);
    loop_owns_socket(NULL);
    close(l->socket);
    if (l->reserve >= 0)
        close(l->reserve);
    l->socket = l->reserve = -1;
}
