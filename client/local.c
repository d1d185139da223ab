#include "client/local.h"

#include "kernels/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct local {
    const struct kernels_library *library;
    pthread_mutex_t lock;
    struct cpu_runner *runner; /* NULL: not started yet */
};

struct local_stream {
    struct cuda_local *cuda; /* NULL: host memory, whose jobs are done when they were submitted */
    const struct kernels_library *library;
    struct cpu_runner *runner;
    bool bad[WIRE_STREAM_SLOTS];
    char why[PROBLEM_WHY]; /* of the last one that was bad */
    kdad_ticket bad_ticket;
};

/* --- the library --------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct kernels_library *loaded;
static char failure[PROBLEM_WHY];

/* Opens the file in a folder, given from that of this library or program. */
static void *open_in(const char *directory, const char *below) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s%s%s", directory, below, KERNELS_LIBRARY_FILE);
    return length > 0 && (size_t)length < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* The file that this code is in: libkdad.so, or a program, which the loader knows by its first argument
 * alone. */
static bool find_self(char path[PATH_MAX]) {
    Dl_info here;
    if (dladdr(&loaded, &here) && here.dli_fname && strchr(here.dli_fname, '/') &&
        strlen(here.dli_fname) < PATH_MAX) {
        strcpy(path, here.dli_fname);
        return true;
    }
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* In the folder kdad beside libkdad.so, or, in a build, beside it, or beside the folder of a program that is
 * linked with its objects; or where the loader looks. */
static void *open_library(void) {
    char directory[PATH_MAX];
    void *library = NULL;
    if (find_self(directory)) {
        strrchr(directory, '/')[1] = 0;
        library = open_in(directory, "kdad/");
        if (!library)
            library = open_in(directory, "");
        if (!library)
            library = open_in(directory, "../lib/");
    }
    return library ? library : dlopen(KERNELS_LIBRARY_FILE, RTLD_NOW | RTLD_LOCAL);
}

static void load(void) {
    void *library = open_library();
    if (!library) {
        snprintf(failure, sizeof failure, "local: %s", dlerror());
        return;
    }
    const struct kernels_library *table = dlsym(library, KERNELS_LIBRARY_SYMBOL);
    if (!table)
        snprintf(failure, sizeof failure, "local: %s", dlerror());
    else if (strcmp(table->version, KDAD_VERSION) != 0)
        snprintf(failure, sizeof failure,
                 "local: " KERNELS_LIBRARY_FILE " is of version %s, but libkdad of %s", table->version,
                 KDAD_VERSION);
    else
        loaded = table;
}

kdad_status local_open(struct local **opened) {
    pthread_once(&once, load);
    if (!loaded)
        return error_set(KDAD_UNSUPPORTED, "%s", failure);
    struct local *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(KDAD_NO_MEMORY, "local: out of memory");
    l->library = loaded;
    pthread_mutex_init(&l->lock, NULL);
    *opened = l;
    return KDAD_OK;
}

void local_close(struct local *l) {
    if (!l)
        return;
    l->library->cpu_stop(l->runner);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* --- streams ------------------------------------------------------------------------------------------- */

static struct cpu_runner *find_runner(struct local *l) {
    pthread_mutex_lock(&l->lock);
    if (!l->runner)
        l->runner = l->library->cpu_start();
    struct cpu_runner *runner = l->runner;
    pthread_mutex_unlock(&l->lock);
    return runner;
}

kdad_status local_stream_open(struct local *l, struct cuda_stream *cuda, struct local_stream **opened) {
    struct local_stream *s = calloc(1, sizeof *s);
    kdad_status status = KDAD_OK;
    if (!s)
        return error_set(KDAD_NO_MEMORY, "stream: out of memory");
    s->library = l->library;
    if (cuda)
        status = cuda_local_open(cuda, l->library, &s->cuda);
    else if (!(s->runner = find_runner(l)))
        status = error_set(KDAD_NO_MEMORY, "stream: its threads cannot be started: %m");
    if (status != KDAD_OK) {
        free(s);
        return status;
    }
    *opened = s;
    return KDAD_OK;
}

void local_stream_close(struct local_stream *s) {
    if (!s)
        return;
    if (s->cuda)
        cuda_local_close(s->cuda);
    free(s);
}

static void run_on_host(struct local_stream *s, const struct problem *problem, kdad_ticket ticket) {
    void *data[OPERAND_COUNT];
    char why[PROBLEM_WHY];
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        data[o] = problem_has(problem, o) ? (void *)(uintptr_t)problem->at[o].offset : NULL;
    bool good = s->library->cpu_run(s->runner, problem, data, why);
    s->bad[ticket % WIRE_STREAM_SLOTS] = !good;
    if (!good) {
        s->bad_ticket = ticket;
        memcpy(s->why, why, sizeof s->why);
    }
}

kdad_status local_submit(struct local_stream *s, const struct problem *problem,
                         const uint64_t extent[OPERAND_COUNT], kdad_ticket ticket, bool *captured) {
    *captured = false;
    if (s->cuda)
        return cuda_local_launch(s->cuda, problem, extent, ticket, captured);
    run_on_host(s, problem, ticket);
    return KDAD_OK;
}

kdad_status local_look(struct local_stream *s, kdad_ticket ticket, kdad_ticket last) {
    kdad_status status = s->cuda ? cuda_local_look(s->cuda, ticket, last) : KDAD_OK;
    return status == KDAD_OK ? local_verdict(s, ticket) : status;
}

kdad_status local_verdict(const struct local_stream *s, kdad_ticket ticket) {
    bool bad = s->cuda ? cuda_local_sentence(s->cuda, ticket) != NULL : s->bad[ticket % WIRE_STREAM_SLOTS];
    return bad ? KDAD_BAD_DATA : KDAD_OK;
}

const char *local_sentence(const struct local_stream *s, kdad_ticket ticket) {
    if (s->cuda)
        return cuda_local_sentence(s->cuda, ticket);
    return ticket == s->bad_ticket ? s->why : "cu_seqlens: was bad";
}

void local_clear(struct local_stream *s, kdad_ticket ticket) {
    if (s->cuda)
        cuda_local_clear(s->cuda, ticket);
}
