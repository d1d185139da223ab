/*
 * address.h - where the daemon's socket is: the same rule for the daemon and every client.
 */
#ifndef PROTO_ADDRESS_H
#define PROTO_ADDRESS_H

#include "kernels/problem.h"

#include <sys/socket.h>
#include <sys/un.h>

/* The socket's path: path if given, else KDAD_SOCKET, else $XDG_RUNTIME_DIR/kdad/kdad.sock, else
 * /run/kdad/kdad.sock. Fills address and size. Returns false with a sentence in why if it is too long. */
bool address_resolve(const char *path, struct sockaddr_un *address, socklen_t *size, char why[PROBLEM_WHY]);

/* True if path, or else KDAD_SOCKET, is "local:": no daemon, but the kernels in the client's own process. */
bool address_is_local(const char *path);

#endif
