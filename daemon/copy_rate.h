/*
 * copy_rate.h - how fast this machine copies memory: what the speed of jobs is held against.
 *
 * When it is first asked for, a thread of its own copies for some ten milliseconds, and ends. It counts its
 * processor time, so that others' work does not make the machine look slow.
 */
#ifndef DAEMON_COPY_RATE_H
#define DAEMON_COPY_RATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct copy_rate {
    pthread_t thread;
    bool started;
    bool stopping;             /* atomic */
    uint64_t bytes_per_second; /* atomic */
};

/* Bytes that one thread's memcpy reads and writes in a second; 0: not known yet, or there was no memory. */
uint64_t copy_rate_get(struct copy_rate *rate);

void copy_rate_stop(struct copy_rate *rate);

#endif
