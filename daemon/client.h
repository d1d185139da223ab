/*
 * client.h - one connection: what it has said, what it owns, what it still has to be told.
 *
 * All on the loop's thread, but for the counters and job_error, which jobs use from where they end. A client
 * that ends gives back its socket at once; its memory stays until the last of its jobs has ended.
 */
#ifndef DAEMON_CLIENT_H
#define DAEMON_CLIENT_H

#include "daemon/limits.h"
#include "daemon/meter.h"
#include "daemon/stream.h"
#include "daemon/table.h"

#include <sys/types.h>
#include <uv.h>

struct daemon;
struct job;

struct client {
    struct daemon *daemon;
    struct client *previous, *next; /* daemon's list */
    int socket;
    int pidfd; /* of the process that connected; -1 if it cannot be had */
    pid_t pid;
    uid_t uid;
    struct user *user; /* who is charged; NULL: a connection that is refused, and not counted */
    char name[WIRE_NAME_MAX + 1];
    uint64_t number; /* of the daemon's connections */
    uint64_t since;  /* uv_hrtime */
    bool greeted, ending;
    bool traces; /* has asked for a trace */
    int handles; /* open libuv handles */
    uv_poll_t poll, pid_poll;
    int watched; /* events that poll waits for */
    int burst;   /* packets to ask for at once: as many as lately came at once */
    uv_timer_t hello_timer;
    struct outgoing *out, **out_end;    /* packets that the socket did not take yet */
    int out_errors;                     /* JOB_ERRORs among them */
    struct group *groups[BACKENDS_MAX]; /* one for each of the daemon's backends */
    struct table streams, buffers;
    uint64_t buffer_bytes;
    struct buffer *released; /* by the client, but not by its jobs yet: not answered so far */
    /* Counters, atomic. */
    uint64_t jobs_submitted, jobs_done, jobs_failed, busy_ns, bytes_moved;
    struct recent recent;
};

/* Tells who has connected that it is not served and why, and closes. */
void client_refuse(struct daemon *daemon, int socket, enum wire_status status, const char *why);

/* Serves a connection that was accepted; takes the socket in any case. */
void client_open(struct daemon *daemon, int socket);

/* Ends a connection. reason: a literal, for the log. */
void client_end(struct client *client, const char *reason);

/* Tells a client that the connection closes and why, then ends it. */
__attribute__((format(printf, 4, 5))) void client_fail(struct client *client, enum wire_status status,
                                                       const char *reason, const char *format, ...);

/* Reads a batch of what has arrived. False if nothing was there, or the client is ending. */
bool client_read(struct client *client);

/* True if all submitted jobs are told of in their timelines. */
bool client_is_settled(const struct client *client);

/* Goes on with what waited for jobs to end. May free the client if it is ending. */
void client_settle(struct client *client);

/* Cancels all queued jobs of all streams. why: a literal. */
void client_cancel(struct client *client, const char *why);

uint64_t client_jobs_queued(const struct client *client);

/* Tells a client the sentence of a job that failed. On any thread; lost if the client does not read. */
void client_job_error(struct client *client, uint64_t stream, uint64_t ticket, enum wire_status status,
                      const char *why);

#endif
