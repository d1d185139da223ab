#include "client/kdactl/text.h"

#include <stdio.h>

const char *text_of_bytes(char text[TEXT_MAX], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(text, TEXT_MAX, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

const char *text_of_ns(char text[TEXT_MAX], uint64_t ns) {
    double s = (double)ns / 1e9;
    if (s < 1e-3)
        snprintf(text, TEXT_MAX, "%.1f us", s * 1e6);
    else if (s < 1)
        snprintf(text, TEXT_MAX, "%.1f ms", s * 1e3);
    else if (s < 120)
        snprintf(text, TEXT_MAX, "%.1f s", s);
    else if (s < 7200)
        snprintf(text, TEXT_MAX, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(text, TEXT_MAX, "%.1f h", s / 3600);
    else
        snprintf(text, TEXT_MAX, "%.1f days", s / 86400);
    return text;
}

const char *text_of_share(char text[TEXT_MAX], double share) {
    if (share < 0)
        snprintf(text, TEXT_MAX, "-");
    else
        snprintf(text, TEXT_MAX, "%.0f %%", share * 100);
    return text;
}
