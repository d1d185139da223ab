#include "client/kdactl/bench_series.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool series_add(struct series *s, const double *samples, int count) {
    if (s->count + count > s->capacity) {
        const int capacity = 2 * (s->count + count);
        double *grown = realloc(s->samples, (size_t)capacity * sizeof *grown);
        if (!grown)
            return false;
        s->samples = grown;
        s->capacity = capacity;
    }
    if (count > 0)
        memcpy(s->samples + s->count, samples, (size_t)count * sizeof *samples);
    s->count += count;
    return true;
}

void series_free(struct series *s) {
    free(s->samples);
    *s = (struct series){0};
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double series_quantile(struct series *s, double share) {
    if (s->count == 0)
        return 0;
    qsort(s->samples, (size_t)s->count, sizeof *s->samples, by_value);
    const int rank = (int)ceil(share * s->count);
    return s->samples[rank > 0 ? rank - 1 : 0];
}

void series_json(struct series *s, cJSON *object, const char *name) {
    if (s->count == 0) {
        cJSON_AddNullToObject(object, name);
        return;
    }
    cJSON *json = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(json, "median", series_quantile(s, 0.5));
    cJSON_AddNumberToObject(json, "p99", series_quantile(s, 0.99));
}
