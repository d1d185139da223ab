/*
 * histogram.h - how many durations were about how long: counts in buckets that grow with what they count.
 *
 * The daemon counts, its clients read. An octave has four buckets, from 256 ns on; the first one holds all
 * that is shorter, the last one all from 2^38 ns (275 s) on. So a quantile is off by an eighth or so at most.
 */
#ifndef PROTO_HISTOGRAM_H
#define PROTO_HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_BUCKETS = 122 };

struct histogram {
    uint64_t count[HISTOGRAM_BUCKETS];
};

/* The bucket of a duration: the first whose limit is above it. */
static inline unsigned histogram_bucket(uint64_t ns) {
    if (ns < 256)
        return 0;
    unsigned octave = 63 - (unsigned)__builtin_clzll(ns);
    unsigned bucket = 1 + 4 * (octave - 8) + (unsigned)(ns >> (octave - 2) & 3);
    return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* On any thread. */
static inline void histogram_add(struct histogram *histogram, uint64_t ns) {
    __atomic_fetch_add(&histogram->count[histogram_bucket(ns)], 1, __ATOMIC_RELAXED);
}

/* What all durations in a bucket are below, in ns; UINT64_MAX for the last. */
uint64_t histogram_limit(unsigned bucket);

uint64_t histogram_total(const struct histogram *histogram);

/* The duration, in ns, that a share (0 to 1) of those counted do not exceed, by interpolation; 0 if there are
 * none. The last bucket counts as its lower limit. */
uint64_t histogram_quantile(const struct histogram *histogram, double share);

#endif
