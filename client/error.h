/*
 * error.h - the sentence behind kdad_error, one for each thread, and statuses that come from the daemon.
 */
#ifndef CLIENT_ERROR_H
#define CLIENT_ERROR_H

#include "client/kdad.h"

/* Sets the calling thread's sentence and returns the status. %m works: errno is read before all else. */
__attribute__((format(printf, 2, 3))) kdad_status error_set(kdad_status status, const char *format, ...);

/* A number of the wire or of a timeline as a status; one that this version does not know is KDAD_INTERNAL. */
kdad_status error_status(int64_t wire);

#endif
