#include "proto/histogram.h"

uint64_t histogram_limit(unsigned bucket) {
    if (bucket >= HISTOGRAM_BUCKETS - 1)
        return UINT64_MAX;
    return (uint64_t)(4 + bucket % 4) << (6 + bucket / 4);
}

uint64_t histogram_total(const struct histogram *histogram) {
    uint64_t total = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        total += histogram->count[i];
    return total;
}

uint64_t histogram_quantile(const struct histogram *histogram, double share) {
    double rank = share * (double)histogram_total(histogram), below = 0;
    uint64_t low = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        double count = (double)histogram->count[i];
        uint64_t high = histogram_limit(i);
        if (count > 0 && below + count >= rank) {
            if (i == HISTOGRAM_BUCKETS - 1)
                return low;
            return low + (uint64_t)((double)(high - low) * (rank - below) / count);
        }
        below += count;
        low = high;
    }
    return 0;
}
