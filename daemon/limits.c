#include "daemon/limits.h"

#include <stdio.h>
#include <stdlib.h>

/* What an error's sentence calls each, and the option that sets it. */
static const struct {
    const char *what, *option;
} names[LIMIT_COUNT] = {
    [LIMIT_CONNECTIONS] = {"connections", "max-connections"},
    [LIMIT_STREAMS] = {"streams", "max-streams"},
    [LIMIT_BUFFERS] = {"buffers", "max-buffers"},
    [LIMIT_BYTES] = {"mapped bytes", "max-bytes"},
    [LIMIT_JOBS] = {"jobs", "max-jobs"},
};

struct user *limits_user(struct user **users, uid_t uid) {
    for (struct user *u = *users; u; u = u->next) {
        if (u->uid == uid)
            return u;
    }
    struct user *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    u->uid = uid;
    u->next = *users;
    *users = u;
    return u;
}

uint64_t limits_used(const struct user *user, enum limit limit) {
    return __atomic_load_n(&user->used[limit], __ATOMIC_RELAXED);
}

void limits_count(struct user *user, enum limit limit, uint64_t amount) {
    __atomic_fetch_add(&user->used[limit], amount, __ATOMIC_RELAXED);
}

bool limits_take(struct user *user, enum limit limit, uint64_t amount, const struct limits *limits,
                 const char *what, char why[PROBLEM_WHY]) {
    uint64_t used = limits_used(user, limit), max = limits->max[limit];
    if (used < max && amount <= max - used) { /* it can only become less meanwhile */
        limits_count(user, limit, amount);
        return true;
    }
    snprintf(why, PROBLEM_WHY, "%s: uid %u has %llu of at most %llu %s (option %s), and wants %llu more",
             what, (unsigned)user->uid, (unsigned long long)used, (unsigned long long)max, names[limit].what,
             names[limit].option, (unsigned long long)amount);
    return false;
}

void limits_give(struct user *user, enum limit limit, uint64_t amount) {
    __atomic_fetch_sub(&user->used[limit], amount, __ATOMIC_RELAXED);
}

void limits_forget(struct user **users) {
    while (*users) {
        struct user *u = *users;
        if (limits_used(u, LIMIT_CONNECTIONS) > 0) {
            users = &u->next;
            continue;
        }
        *users = u->next;
        free(u);
    }
}
