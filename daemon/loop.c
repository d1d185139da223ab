/*
 * loop.c - the event loop's beginning, and its memory.
 *
 * libuv aborts where it cannot grow its table of descriptors. So that no new client costs all others their
 * daemon, memory for that is kept in reserve; without it the daemon ends in words, as it would by abort, and
 * is started again.
 */
#include "daemon/loop.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RESERVE = 512 << 10 }; /* bytes: the table of 65,536 descriptors */

static void *reserve;
static const char *socket_path; /* NULL: none to be removed */

_Noreturn static void give_up(const char *sentence, size_t size) {
    ssize_t written = write(STDERR_FILENO, sentence, size);
    (void)written;
    if (socket_path)
        unlink(socket_path);
    _exit(1);
}

/* Called when libuv was refused memory. */
static void use_reserve(void) {
    static const char sentence[] = "kdad: out of memory: the event loop cannot go on\n";
    if (!reserve)
        give_up(sentence, sizeof sentence - 1);
    free(reserve);
    reserve = NULL;
}

static void *loop_realloc(void *old, size_t size) {
    void *block;
    while (!(block = realloc(old, size)))
        use_reserve();
    if (!reserve)
        reserve = malloc(RESERVE);
    return block;
}

static void *loop_malloc(size_t size) {
    return loop_realloc(NULL, size);
}

static void *loop_calloc(size_t count, size_t size) {
    size_t bytes = count * size; /* libuv's own numbers: small */
    void *block = loop_malloc(bytes);
    return memset(block, 0, bytes);
}

static void on_abort(int number) {
    static const char sentence[] = "kdad: the event loop cannot be made: too few descriptors, or no memory\n";
    (void)number;
    give_up(sentence, sizeof sentence - 1);
}

bool loop_open(uv_loop_t *loop, char why[PROBLEM_WHY]) {
    reserve = malloc(RESERVE);
    uv_replace_allocator(loop_malloc, loop_realloc, loop_calloc, free);
    signal(SIGABRT, on_abort); /* libuv's answer if a pipe cannot be made, the first time */
    int error = uv_loop_init(loop);
    signal(SIGABRT, SIG_DFL);
    if (error)
        snprintf(why, PROBLEM_WHY, "the event loop cannot be made: %s", uv_strerror(error));
    return error == 0;
}

void loop_owns_socket(const char *path) {
    socket_path = path;
}

void loop_close(uv_loop_t *loop) {
    uv_loop_close(loop);
    free(reserve);
    reserve = NULL;
}
