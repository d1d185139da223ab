/*
 * daemon.h - the process: its loop, its backend, its listener and its clients.
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "daemon/client.h"
#include "daemon/options.h"
#include "daemon/trace.h"
#include "proto/packet.h"

#include <sys/un.h>
#include <uv.h>

enum { DAEMON_BATCH = 16 }; /* packets that are read from one client before it is another's turn */

struct listener {
    int socket;
    int reserve;    /* a descriptor kept free, so that a connection can be refused when none is left */
    int socket_max; /* connections with a larger descriptor are refused */
    bool own;       /* bound here: its file is removed at the end */
    bool inherited; /* from the service manager: who may connect is decided by the socket's file */
    struct sockaddr_un address;
    uv_poll_t poll;
};

struct daemon {
    struct options options; /* in force */
    int argc;
    char **argv;
    uv_loop_t loop;
    uv_thread_t thread; /* the loop's */
    struct listener listener;
    struct backend *backends[BACKENDS_MAX]; /* the first one gives the daemon its name */
    int backend_count;
    struct client *clients; /* newest first */
    uint32_t client_count;
    struct user *users; /* of these clients */
    uv_async_t settle;  /* a closing queue became idle */
    uv_timer_t soon;    /* looks again for what no thread tells of */
    uv_timer_t watchdog;
    bool stuck; /* the watchdog found a backend that does not get on, and has said so */
    uv_signal_t terminate, interrupt, hangup;
    bool stopping;
    uint64_t since; /* uv_hrtime */
    uint64_t now;   /* uv_hrtime when the packets were read that are being handled */
    uint64_t connections;
    uint64_t allocations; /* ids given so far */
    /* Of clients that have ended. */
    uint64_t jobs_done, jobs_failed, busy_ns, bytes_moved;
    struct meter meter; /* of all clients; atomic */
    struct trace trace; /* likewise */
    /* For all that is received and sent on the loop's thread. */
    struct wire_codec *codec;
    struct wire_message message;
    struct packet batch[DAEMON_BATCH];
};

/* Opens the listening socket and starts to accept. False with a sentence in why. */
bool listener_open(struct daemon *daemon, const char *path, char why[PROBLEM_WHY]);

/* Stops accepting and removes the socket's file, if the daemon made it. */
void listener_close(struct daemon *daemon);

/* Fills in the daemon's side of a STATUS_REPLY, with rows of clients whose number is below before (0: of
 * all). Strings point into clients. */
void status_fill(const struct daemon *daemon, uint64_t before, struct wire_status_reply *reply);

/* Tells the service manager something (sd_notify), if there is one. */
void manager_tell(const char *state);

/* Starts to tell the service manager, if it asks for that, that the loop and the backends get on. */
void manager_watchdog(struct daemon *daemon);

/* Has clients settled again within a millisecond or two. */
void daemon_settle_soon(struct daemon *daemon);

/* Ends the loop once it is stopping and no client is left. */
void daemon_check_end(struct daemon *daemon);

#endif
