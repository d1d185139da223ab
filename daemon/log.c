#include "daemon/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum log_level threshold = LOG_INFO; /* atomic */

static const char *const names[] = {"error", "warning", "info", "debug"};

void log_set_level(enum log_level level) {
    __atomic_store_n(&threshold, level, __ATOMIC_RELAXED);
}

bool log_level_parse(const char *name, enum log_level *level) {
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *level = (enum log_level)i;
            return true;
        }
    }
    return false;
}

const char *log_level_name(enum log_level level) {
    return names[level];
}

void log_event(enum log_level level, const char *event, const char *format, ...) {
    char line[1024];
    if (level > __atomic_load_n(&threshold, __ATOMIC_RELAXED))
        return;
    int n = snprintf(line, sizeof line, "level=%s event=%s ", names[level], event);
    va_list list;
    va_start(list, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n, format, list);
    va_end(list);
    n += m < 0 ? 0 : m;
    if (n > (int)sizeof line - 2)
        n = (int)sizeof line - 2;
    line[n++] = '\n';
    /* One write a line, so that lines of several threads do not mix. A log that cannot be written is lost. */
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

const char *log_quote(char *out, unsigned size, const char *value) {
    unsigned n = 0;
    out[n++] = '"';
    for (; *value && n + 3 < size; value++) {
        unsigned char c = (unsigned char)*value;
        if (c == '"' || c == '\\')
            out[n++] = '\\';
        if (c < 0x20 || c == 0x7f)
            out[n++] = '?';
        else
            out[n++] = *value;
    }
    out[n++] = '"';
    out[n] = 0;
    return out;
}
