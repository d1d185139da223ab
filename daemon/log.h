/*
 * log.h - one line an event, on standard error, as logfmt: key=value pairs, of which level and event come
 * first.
 */
#ifndef DAEMON_LOG_H
#define DAEMON_LOG_H

#include <stdbool.h>

enum log_level {
    LOG_ERROR,
    LOG_WARNING,
    LOG_INFO,
    LOG_DEBUG,
};

void log_set_level(enum log_level level); /* at any time */
bool log_level_parse(const char *name, enum log_level *level);
const char *log_level_name(enum log_level level);

/* Logs an event. format gives its pairs, as in log_event(LOG_INFO, "start", "socket=%s", path): values that
 * come from elsewhere go through log_quote. May be called on any thread. */
__attribute__((format(printf, 3, 4))) void log_event(enum log_level level, const char *event,
                                                     const char *format, ...);

/* Quotes a value that may hold blanks, quotes or control characters: into out, of size bytes, and returns it.
 */
const char *log_quote(char *out, unsigned size, const char *value);

#endif
