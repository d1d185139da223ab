/*
 * connection.h - what kdad_connect gives: the daemon's address, its streams and memory, and the session of
 * the moment.
 *
 * A session that was lost is replaced by the next call that needs one. Locks are taken in the order: a
 * stream's, connecting, lock, the memory's, the session's.
 */
#ifndef CLIENT_CONNECTION_H
#define CLIENT_CONNECTION_H

#include "client/cuda.h"
#include "client/error.h"
#include "client/local.h"
#include "client/memory.h"
#include "client/session.h"

struct kdad_connection {
    uint32_t forked; /* forked_count() of the process that made it */
    pid_t pid;
    struct sockaddr_un address;
    socklen_t address_size;
    int timeout_ms;  /* for each answer of the daemon's */
    bool in_process; /* to "local:": there is no daemon, and never a session */
    bool spins;      /* more than one processor: a wait may spin for a while */
    struct memory memory;
    struct cuda_memory cuda_memory;

    pthread_mutex_t connecting; /* held while a session is made */
    uint64_t serial;            /* of the last session */
    pthread_mutex_t lock;       /* for what follows */
    struct session *session;    /* may be lost */
    struct local *local;        /* NULL: not needed yet */
    struct kdad_stream *streams;

    _Atomic uint64_t jobs_daemon, jobs_in_process, jobs_captured; /* as in kdad_stats */
};

/* KDAD_OK, or KDAD_INVALID for NULL, or KDAD_FORKED in a child. */
kdad_status connection_check(const struct kdad_connection *connection);

/* A reference to a session that is not known to be lost: connects anew if need be. */
kdad_status connection_session(struct kdad_connection *connection, struct session **session);

/* A reference to the session as it is. */
struct session *connection_current(struct kdad_connection *connection);

/* What jobs in this process need: opened when it is first asked for. */
kdad_status connection_local(struct kdad_connection *connection, struct local **local);

/* One request on the connection, for programs built with the library's objects. If KDAD_OK is returned, the
 * reply is to be freed by session_reply_free. */
kdad_status connection_request(struct kdad_connection *connection, struct wire_message *request,
                               int timeout_ms, struct session_reply *reply);

#endif
