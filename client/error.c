/*
 * error.c - what kdad_error says. A thread's sentence is its own: no lock, no memory to free.
 */
#include "client/error.h"

#include "proto/wire.h"

#include <stdarg.h>
#include <stdio.h>

/* The same numbers stand in kdad.h, which must not include the wire's header. */
_Static_assert((int)KDAD_OK == (int)WIRE_OK, "status");
_Static_assert((int)KDAD_INVALID == (int)WIRE_INVALID, "status");
_Static_assert((int)KDAD_BAD_DATA == (int)WIRE_BAD_DATA, "status");
_Static_assert((int)KDAD_LIMIT == (int)WIRE_LIMIT, "status");
_Static_assert((int)KDAD_NO_MEMORY == (int)WIRE_NO_MEMORY, "status");
_Static_assert((int)KDAD_UNSUPPORTED == (int)WIRE_UNSUPPORTED, "status");
_Static_assert((int)KDAD_NOT_FOUND == (int)WIRE_NOT_FOUND, "status");
_Static_assert((int)KDAD_DENIED == (int)WIRE_DENIED, "status");
_Static_assert((int)KDAD_CANCELLED == (int)WIRE_CANCELLED, "status");
_Static_assert((int)KDAD_PROTOCOL == (int)WIRE_PROTOCOL, "status");
_Static_assert((int)KDAD_INTERNAL == (int)WIRE_INTERNAL, "status");
_Static_assert((int)KDAD_BF16 == (int)DTYPE_BF16 && (int)KDAD_F16 == (int)DTYPE_F16, "dtype");
_Static_assert((int)KDAD_F32 == (int)DTYPE_F32 && (int)KDAD_I32 == (int)DTYPE_I32, "dtype");
_Static_assert((int)KDAD_I64 == (int)DTYPE_I64, "dtype");

#define STRING(x) #x
#define VERSION(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

static _Thread_local char sentence[512];

void error_say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
}

kdad_status error_status(int64_t wire) {
    return wire >= WIRE_OK && wire <= WIRE_INTERNAL ? (kdad_status)wire : KDAD_INTERNAL;
}

KDAD_API const char *kdad_error(void) {
    return sentence;
}

KDAD_API const char *kdad_status_string(kdad_status status) {
    switch (status) {
    case KDAD_OK:
        return "success";
    case KDAD_INVALID:
        return "invalid argument";
    case KDAD_BAD_DATA:
        return "bad data";
    case KDAD_LIMIT:
        return "limit reached";
    case KDAD_NO_MEMORY:
        return "out of memory";
    case KDAD_UNSUPPORTED:
        return "not supported";
    case KDAD_NOT_FOUND:
        return "not found";
    case KDAD_DENIED:
        return "permission denied";
    case KDAD_CANCELLED:
        return "cancelled";
    case KDAD_PROTOCOL:
        return "protocol error";
    case KDAD_INTERNAL:
        return "internal error";
    case KDAD_NO_DAEMON:
        return "no daemon";
    case KDAD_DAEMON_LOST:
        return "daemon lost";
    case KDAD_TIMEOUT:
        return "timed out";
    case KDAD_PENDING:
        return "pending";
    case KDAD_FORKED:
        return "connection of the parent process";
    }
    return "unknown status";
}

KDAD_API const char *kdad_version(void) {
    return VERSION(KDAD_VERSION_MAJOR, KDAD_VERSION_MINOR, KDAD_VERSION_PATCH);
}
