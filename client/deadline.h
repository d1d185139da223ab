/*
 * deadline.h - points in time that waits end at: nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef CLIENT_DEADLINE_H
#define CLIENT_DEADLINE_H

#include <stdint.h>
#include <time.h>

#define DEADLINE_NEVER INT64_MAX

static inline int64_t deadline_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A negative time-out never ends. */
static inline int64_t deadline_in(int timeout_ms) {
    return timeout_ms < 0 ? DEADLINE_NEVER : deadline_now() + (int64_t)timeout_ms * 1000000;
}

/* Nanoseconds left, at least 0. */
static inline int64_t deadline_left(int64_t deadline) {
    if (deadline == DEADLINE_NEVER)
        return DEADLINE_NEVER;
    int64_t left = deadline - deadline_now();
    return left > 0 ? left : 0;
}

/* Milliseconds for poll(2), rounded up: it does not return before the deadline. At most a minute. */
static inline int deadline_poll(int64_t deadline) {
    int64_t left = deadline_left(deadline);
    return left > INT64_C(60000000000) ? 60000 : (int)((left + 999999) / 1000000);
}

#endif
