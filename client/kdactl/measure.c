#include "client/kdactl/measure.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

double measure_error(const float *out, const double *ref, const float *incoming, size_t n) {
    double off = 0, whole = 0, added = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(ref[i]) != !isfinite(out[i]))
            return INFINITY;
        if (!isfinite(ref[i]))
            continue;
        const double difference = (double)out[i] - ref[i], part = ref[i] - (double)incoming[i];
        off += difference * difference;
        whole += ref[i] * ref[i];
        added += part * part;
    }
    if (added == 0)
        return n == 0 || memcmp(out, incoming, n * sizeof *out) == 0 ? 0 : INFINITY;
    return fmax(0, (sqrt(off) - 6e-8 * sqrt(whole)) / sqrt(added));
}

bool measure_exact(const float *out, const double *ref, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float rounded = (float)ref[i];
        uint32_t got, want;
        memcpy(&got, &out[i], sizeof got);
        memcpy(&want, &rounded, sizeof want);
        if (got != want)
            return false;
    }
    return true;
}
