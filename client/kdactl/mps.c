#include "client/kdactl/mps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *mps_directory(void) {
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return directory && *directory ? directory : "/tmp/nvidia-mps";
}

int64_t mps_control_pid(void) {
    char path[4096], line[32] = "";
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", mps_directory());
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    int64_t pid = read ? strtoll(line, NULL, 10) : 0;
    return pid > 0 ? pid : 0;
}

/* The 22nd field; the second, a name in parentheses, may hold blanks and parentheses itself. */
static uint64_t start_of(char *stat) {
    char *rest = strrchr(stat, ')'), *field, *state;
    if (!rest)
        return 0;
    field = strtok_r(rest, " ", &state);
    for (int i = 2; field && i < 22; i++)
        field = strtok_r(NULL, " ", &state);
    return field ? strtoull(field, NULL, 10) : 0;
}

bool process_look(int64_t pid, int64_t *uid, uint64_t *started) {
    char path[64], text[1024];
    struct stat owner;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    size_t size = fread(text, 1, sizeof text - 1, file);
    bool seen = size > 0 && fstat(fileno(file), &owner) == 0;
    fclose(file);
    if (!seen)
        return false;
    text[size] = '\0';
    *uid = owner.st_uid;
    *started = start_of(text);
    return true;
}
