/*
 * share.h - how much of a device each client has had lately, and whose job goes ahead.
 *
 * A job is charged when it is launched, with the time that its bytes take at the speed of a copy. What was
 * charged is halved every SHARE_HALF_NS: who has had nothing for a while is as good as new. A client that has
 * had clearly less than another goes ahead of it: one with small jobs is not held up by one with large jobs,
 * until it has had as much.
 */
#ifndef DAEMON_SHARE_H
#define DAEMON_SHARE_H

#include <stdbool.h>
#include <stdint.h>

enum { SHARE_HALF_NS = 50000000 };

struct share {
    uint64_t ns; /* of the device's time, as of `at` */
    int64_t at;  /* on the monotonic clock */
};

/* What it has had, halved up to now. */
uint64_t share_now(struct share *share, int64_t now);

void share_charge(struct share *share, int64_t now, uint64_t ns);

/* True if who has had `own` goes ahead, where the one with the most has had `most`: by a margin, so that
 * equals do not take turns in being preferred. */
bool share_is_behind(uint64_t own, uint64_t most);

#endif
