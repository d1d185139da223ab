#include "daemon/meter.h"

#include <stdlib.h>

static void add(uint64_t *counter, uint64_t value) {
    __atomic_fetch_add(counter, value, __ATOMIC_RELAXED);
}

static uint64_t load(const uint64_t *counter) {
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

void meter_add(struct meter *meter, uint64_t queue_ns, uint64_t run_ns) {
    histogram_add(&meter->queue, queue_ns);
    histogram_add(&meter->run, run_ns);
    histogram_add(&meter->whole, queue_ns + run_ns);
    add(&meter->queue_ns, queue_ns);
    add(&meter->run_ns, run_ns);
}

void recent_add(struct recent *recent, uint64_t ns) {
    uint64_t at = __atomic_fetch_add(&recent->count, 1, __ATOMIC_RELAXED) % RECENT_JOBS;
    __atomic_store_n(&recent->ns[at], ns, __ATOMIC_RELAXED);
}

void pace_add(struct pace *pace, uint64_t bytes, uint64_t ns) {
    uint64_t at = __atomic_fetch_add(&pace->count, 1, __ATOMIC_RELAXED) % PACE_JOBS;
    __atomic_store_n(&pace->last[at].bytes, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&pace->last[at].ns, ns, __ATOMIC_RELAXED);
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void recent_quantiles(const struct recent *recent, uint64_t *p50, uint64_t *p99) {
    uint64_t sorted[RECENT_JOBS], count = load(&recent->count);
    *p50 = *p99 = 0;
    if (count > RECENT_JOBS)
        count = RECENT_JOBS;
    if (count == 0)
        return;
    for (uint64_t i = 0; i < count; i++)
        sorted[i] = load(&recent->ns[i]);
    qsort(sorted, count, sizeof *sorted, by_value);
    *p50 = sorted[(count - 1) / 2];
    *p99 = sorted[(count - 1) * 99 / 100];
}

void pace_sum(const struct pace *pace, uint64_t *bytes, uint64_t *ns) {
    *bytes = *ns = 0;
    for (int i = 0; i < PACE_JOBS; i++) { /* entries that were never written are 0 */
        *bytes += load(&pace->last[i].bytes);
        *ns += load(&pace->last[i].ns);
    }
}
