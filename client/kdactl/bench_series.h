/*
 * bench_series.h - samples of one figure, and what is told of them.
 */
#ifndef CLIENT_KDACTL_BENCH_SERIES_H
#define CLIENT_KDACTL_BENCH_SERIES_H

#include <cjson/cJSON.h>
#include <stdbool.h>

struct series {
    double *samples;
    int count, capacity;
};

/* False if memory is short. */
bool series_add(struct series *series, const double *samples, int count);
void series_free(struct series *series);

/* The least sample that a share of them does not exceed; sorts them. 0 if there are none. */
double series_quantile(struct series *series, double share);

/* An object of that name with median and p99; null if there are no samples. */
void series_json(struct series *series, cJSON *object, const char *name);

#endif
