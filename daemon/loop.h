/*
 * loop.h - the event loop's beginning and end. See loop.c for what happens when memory runs out.
 */
#ifndef DAEMON_LOOP_H
#define DAEMON_LOOP_H

#include "kernels/problem.h"

#include <uv.h>

/* Before any other use of libuv. False with a sentence in why. */
bool loop_open(uv_loop_t *loop, char why[PROBLEM_WHY]);
void loop_close(uv_loop_t *loop);

/* The socket's file, to be removed if the daemon must end at once; NULL: none. The path must stay valid. */
void loop_owns_socket(const char *path);

#endif
