/*
 * limits.h - what the processes of one user may hold of the daemon, all of their connections together.
 *
 * Users are told apart by the uid that the kernel gives for a connection. A user is kept while one of its
 * connections is. On the loop's thread, but for limits_give: jobs end, and the last of them unmaps a buffer,
 * on any thread.
 */
#ifndef DAEMON_LIMITS_H
#define DAEMON_LIMITS_H

#include "kernels/problem.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum limit {
    LIMIT_CONNECTIONS,
    LIMIT_STREAMS,
    LIMIT_BUFFERS,
    LIMIT_BYTES, /* mapped, by all buffers */
    LIMIT_JOBS,  /* submitted and not ended */
    LIMIT_COUNT,
};

struct limits {
    uint64_t max[LIMIT_COUNT];
};

struct user {
    uid_t uid;
    uint64_t used[LIMIT_COUNT]; /* atomic */
    struct user *next;
};

/* The user of that uid in a list of users; a new one if it is not there; NULL: out of memory. */
struct user *limits_user(struct user **users, uid_t uid);

/* Takes an amount for a user. False with a sentence in why, which begins with what, if more than the limit
 * would be used then: nothing is taken. */
bool limits_take(struct user *user, enum limit limit, uint64_t amount, const struct limits *limits,
                 const char *what, char why[PROBLEM_WHY]);

/* Counts an amount that is held all the same, be it beyond the limit. */
void limits_count(struct user *user, enum limit limit, uint64_t amount);

/* Gives an amount back. On any thread. */
void limits_give(struct user *user, enum limit limit, uint64_t amount);

uint64_t limits_used(const struct user *user, enum limit limit);

/* Frees the users that hold no connection. */
void limits_forget(struct user **users);

#endif
