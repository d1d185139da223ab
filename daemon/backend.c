#include "daemon/backend.h"

#include <stdarg.h>
#include <stdio.h>

enum wire_status backend_refuse(char why[PROBLEM_WHY], enum wire_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(why, PROBLEM_WHY, format, list);
    va_end(list);
    return status;
}
