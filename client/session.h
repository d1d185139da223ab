/*
 * session.h - one connected socket to the daemon, from HELLO to its end.
 *
 * A connection that loses its daemon gets a new session; the old one stays, lost, as long as a stream still
 * looks at its timeline, so that no descriptor's number and no page is taken for another's.
 *
 * A reader thread receives all packets: it hands replies to those who asked, keeps sentences of failed jobs,
 * and at the end of the socket takes back what each timeline says, marks the session as lost and wakes all
 * who wait. Whoever finds the peer gone or broken shuts the socket down and leaves the rest to the reader.
 */
#ifndef CLIENT_SESSION_H
#define CLIENT_SESSION_H

#include "client/error.h"
#include "client/forked.h"
#include "proto/packet.h"
#include "proto/timeline.h"

#include <pthread.h>
#include <sys/un.h>

enum { SESSION_SENTENCES = 16 }; /* of failed jobs, kept for each stream */

/* A stream's part in a session: its timeline. Made and freed by the stream; the reader writes lost and
 * done_at_end, and, with the session's lock, the sentences. */
struct track {
    struct track *next;
    struct session *session; /* a reference */
    struct timeline *timeline;
    struct cuda_stream *cuda; /* the trainer's stream, or NULL: then also */
    uint64_t cuda_address;    /* the timeline's, as the GPU sees it */
    uint64_t wire_stream;
    uint64_t base; /* the stream's tickets before this session: ticket base + n is the wire's n */
    _Atomic bool lost;
    uint64_t done_at_end; /* once lost: the wire's last job that was done */
    uint64_t failed;      /* the last job that a sentence came of: they come in order */
    unsigned sentences;
    struct {
        uint64_t ticket;
        char text[WIRE_SENTENCE_MAX + 1];
    } sentence[SESSION_SENTENCES];
};

struct session {
    _Atomic unsigned references;
    uint64_t serial; /* of the connection's sessions: 1, 2, 3 … */
    struct forked_fd socket;
    pthread_t reader;
    _Atomic bool lost;
    _Atomic uint64_t last_id;
    struct wire_codec *codec; /* the reader's, as is the packet; before it starts, HELLO's */
    struct packet packet;
    struct wire_message message;

    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t changed;
    struct cuda_memory *cuda_memory; /* the connection's, once a GPU's memory is registered: the reader lets
                                      * go of what is not used any more */
    struct session_request *requests;
    struct track *tracks;
    char end[PROBLEM_WHY]; /* why it ended */
};

/* A reply, with the packet that its strings and descriptors are in. */
struct session_reply {
    struct wire_message message;
    struct packet packet;
};

/* Connects and greets the daemon; starts the reader. */
kdad_status session_open(const struct sockaddr_un *address, socklen_t size, int64_t deadline, uint64_t serial,
                         struct session **session);

/* Shuts the socket down, unless it is lost already, and waits until all is marked as lost. */
void session_end(struct session *session);

/* Ends it and the reader: once, by its connection, before it gives up its reference. */
void session_stop(struct session *session);

struct session *session_hold(struct session *session);
void session_drop(struct session *session); /* NULL is allowed */

bool session_is_lost(const struct session *session);

/* Sets the error that says that the daemon was lost, and what it said when it closed the connection. */
kdad_status session_lost_error(struct session *session, const char *what);

/* Sends one packet if the socket takes it: else KDAD_PENDING. KDAD_DAEMON_LOST once the session is lost. */
kdad_status session_try_send(struct session *session, const void *data, size_t size, const int *fds,
                             int fd_count);

/* Waits until the socket takes packets, or the session is lost: KDAD_OK, or KDAD_TIMEOUT. */
kdad_status session_wait_writable(struct session *session, int64_t deadline);

/* Sends a request, whose id it sets, and waits for its reply: an error of the daemon's is returned as its
 * status and sentence. The reply is to be freed by session_reply_free if KDAD_OK is returned. */
kdad_status session_request(struct session *session, struct wire_message *request, const int *fds,
                            int fd_count, int64_t deadline, struct session_reply *reply);
void session_reply_free(struct session_reply *reply);

/* Registers a memfd; gives it up again (a reply is not waited for). */
kdad_status session_register(struct session *session, int fd, size_t size, int64_t deadline,
                             uint64_t *buffer);
void session_release(struct session *session, uint64_t buffer, int64_t deadline);

/* Lists a stream's track, so that the reader cares for it. False if the session is lost. */
bool session_attach(struct session *session, struct track *track);
void session_detach(struct session *session, struct track *track);

/* Copies the daemon's sentence about a failed job, waiting a moment for it: it is sent before the timeline
 * says that the job is done, but the reader may be behind. False if there is none. */
bool session_sentence(struct session *session, const struct track *track, uint64_t wire_ticket,
                      char text[WIRE_SENTENCE_MAX + 1]);

#endif
