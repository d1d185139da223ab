/*
 * connection.c - kdad_connect, kdad_disconnect, and connecting again. Runs on the caller's threads.
 */
#include "client/connection.h"

#include "client/deadline.h"
#include "client/stream.h"
#include "proto/address.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS 30000

static bool has_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) < 0 || CPU_COUNT(&set) > 1;
}

kdad_status connection_check(const struct kdad_connection *connection) {
    if (!connection)
        return error_set(KDAD_INVALID, "connection: is NULL");
    if (connection->forked != forked_count())
        return error_set(KDAD_FORKED, "connection: belongs to the parent process %d; connect anew here",
                         (int)connection->pid);
    return KDAD_OK;
}

struct session *connection_current(struct kdad_connection *connection) {
    pthread_mutex_lock(&connection->lock);
    struct session *session = connection->session ? session_hold(connection->session) : NULL;
    pthread_mutex_unlock(&connection->lock);
    return session;
}

kdad_status connection_local(struct kdad_connection *connection, struct local **local) {
    kdad_status status = KDAD_OK;
    pthread_mutex_lock(&connection->connecting);
    if (!connection->local)
        status = local_open(&connection->local);
    *local = connection->local;
    pthread_mutex_unlock(&connection->connecting);
    return status;
}

/* Replaces the session by a new one. With the connecting lock. */
static kdad_status connect_anew(struct kdad_connection *connection, int timeout_ms,
                                struct session **session) {
    struct session *fresh, *old;
    kdad_status status = session_open(&connection->address, connection->address_size, deadline_in(timeout_ms),
                                      connection->serial + 1, &fresh);
    if (status != KDAD_OK)
        return status;
    connection->serial++;
    *session = session_hold(fresh);
    pthread_mutex_lock(&connection->lock);
    old = connection->session;
    connection->session = fresh;
    pthread_mutex_unlock(&connection->lock);
    if (old)
        session_stop(old);
    session_drop(old);
    return KDAD_OK;
}

kdad_status connection_session(struct kdad_connection *connection, struct session **session) {
    kdad_status status = KDAD_OK;
    if (connection->in_process)
        return error_set(KDAD_UNSUPPORTED, "connection: to \"local:\" has no daemon");
    pthread_mutex_lock(&connection->connecting);
    *session = connection_current(connection);
    if (!*session || session_is_lost(*session)) {
        session_drop(*session);
        *session = NULL;
        status = connect_anew(connection, connection->timeout_ms, session);
    }
    pthread_mutex_unlock(&connection->connecting);
    return status;
}

kdad_status connection_request(struct kdad_connection *connection, struct wire_message *request,
                               int timeout_ms, struct session_reply *reply) {
    struct session *session;
    kdad_status status = connection_check(connection);
    if (status == KDAD_OK)
        status = connection_session(connection, &session);
    if (status != KDAD_OK)
        return status;
    int64_t deadline = deadline_in(timeout_ms < 0 ? connection->timeout_ms : timeout_ms);
    status = session_request(session, request, NULL, 0, deadline, reply);
    session_drop(session);
    return status;
}

KDAD_API kdad_status kdad_connect(const char *address, int timeout_ms, struct kdad_connection **connection) {
    char why[PROBLEM_WHY];
    if (!connection)
        return error_set(KDAD_INVALID, "connection: is NULL");
    *connection = NULL;
    struct kdad_connection *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(KDAD_NO_MEMORY, "connection: out of memory");
    c->in_process = address_is_local(address);
    if (!c->in_process && !address_resolve(address, &c->address, &c->address_size, why)) {
        free(c);
        return error_set(KDAD_INVALID, "%s", why);
    }
    c->forked = forked_count();
    c->pid = getpid();
    c->timeout_ms = timeout_ms < 0 ? DEFAULT_TIMEOUT_MS : timeout_ms;
    c->spins = has_processors();
    memory_init(&c->memory);
    cuda_memory_init(&c->cuda_memory);
    pthread_mutex_init(&c->connecting, NULL);
    pthread_mutex_init(&c->lock, NULL);
    struct session *session = NULL;
    struct local *local;
    kdad_status status =
        c->in_process ? connection_local(c, &local) : connect_anew(c, c->timeout_ms, &session);
    if (status != KDAD_OK) {
        kdad_disconnect(c);
        return status;
    }
    session_drop(session);
    *connection = c;
    return KDAD_OK;
}

KDAD_API void kdad_get_stats(const struct kdad_connection *connection, struct kdad_stats *stats) {
    *stats = (struct kdad_stats){0};
    if (connection_check(connection) != KDAD_OK)
        return;
    stats->jobs_daemon = connection->jobs_daemon;
    stats->jobs_in_process = connection->jobs_in_process;
    stats->jobs_captured = connection->jobs_captured;
}

KDAD_API void kdad_disconnect(struct kdad_connection *connection) {
    if (!connection || connection_check(connection) != KDAD_OK)
        return;
    if (connection->session)
        session_stop(connection->session);
    while (connection->streams)
        stream_free(connection->streams);
    session_drop(connection->session);
    local_close(connection->local);
    memory_destroy(&connection->memory);
    cuda_memory_destroy(&connection->cuda_memory);
    pthread_mutex_destroy(&connection->connecting);
    pthread_mutex_destroy(&connection->lock);
    free(connection);
}
