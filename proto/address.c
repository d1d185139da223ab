#include "proto/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What was given, or set; "" if neither. */
static const char *given(const char *path) {
    if (!path || !*path)
        path = getenv("KDAD_SOCKET");
    return path ? path : "";
}

bool address_is_local(const char *path) {
    return strcmp(given(path), "local:") == 0;
}

bool address_resolve(const char *path, struct sockaddr_un *address, socklen_t *size, char why[PROBLEM_WHY]) {
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const char *directory = "", *file = given(path);
    if (address_is_local(path)) {
        snprintf(why, PROBLEM_WHY, "socket: \"local:\" names no socket, but the client's own process");
        return false;
    }
    if (!*file) {
        directory = runtime && *runtime ? runtime : "/run";
        file = "/kdad/kdad.sock";
    }
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path, sizeof address->sun_path, "%s%s", directory, file);
    if (length < 0 || (size_t)length >= sizeof address->sun_path) {
        snprintf(why, PROBLEM_WHY, "socket: path has %d bytes, but may have at most %zu", length,
                 sizeof address->sun_path - 1);
        return false;
    }
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length + 1);
    return true;
}
