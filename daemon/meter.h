/*
 * meter.h - how long jobs took, and how fast they moved their bytes: of the daemon, of a device, of a client.
 *
 * Jobs add to these where they end, on any thread; the loop reads them for STATUS. All is atomic and relaxed:
 * a reader may see a job in one number and not yet in another.
 */
#ifndef DAEMON_METER_H
#define DAEMON_METER_H

#include "proto/histogram.h"

enum {
    RECENT_JOBS = 128, /* a client's, whose times are kept */
    PACE_JOBS = 64,    /* a device's, likewise */
};

/* All jobs of the daemon that ran. */
struct meter {
    struct histogram queue, run, whole;
    uint64_t queue_ns, run_ns;
};

/* The last jobs of a client: how long they took, from packet to end. */
struct recent {
    uint64_t count;
    uint64_t ns[RECENT_JOBS];
};

/* The last jobs of a device. */
struct pace {
    uint64_t count;
    struct {
        uint64_t bytes, ns;
    } last[PACE_JOBS];
};

void meter_add(struct meter *meter, uint64_t queue_ns, uint64_t run_ns);
void recent_add(struct recent *recent, uint64_t ns);
void pace_add(struct pace *pace, uint64_t bytes, uint64_t ns);

/* The median and the 99th percentile; 0 if there was no job. */
void recent_quantiles(const struct recent *recent, uint64_t *p50, uint64_t *p99);

/* Sums over the last jobs: what they had to move, and how long they ran. */
void pace_sum(const struct pace *pace, uint64_t *bytes, uint64_t *ns);

#endif
