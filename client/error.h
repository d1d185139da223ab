/*
 * error.h - the sentence behind kdad_error, one for each thread, and statuses that come from the daemon.
 */
#ifndef CLIENT_ERROR_H
#define CLIENT_ERROR_H

#include "client/kdad.h"

/* Sets the calling thread's sentence; has the value of status. %m works: errno is read before all else. A
 * macro, so that the compiler and the analysers see which status it is. */
#define error_set(status, ...) (error_say(__VA_ARGS__), (status))

__attribute__((format(printf, 1, 2))) void error_say(const char *format, ...);

/* A number of the wire or of a timeline as a status; one that this version does not know is KDAD_INTERNAL. */
kdad_status error_status(int64_t wire);

#endif
