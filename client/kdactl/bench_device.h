/*
 * bench_device.h - where a client of the bench has its tensors: the processor, or a GPU with a stream and a
 * small kernel of the client's own.
 *
 * A GPU is touched by the client's process alone, never before fork. Functions that return false have put a
 * sentence into why.
 */
#ifndef CLIENT_KDACTL_BENCH_DEVICE_H
#define CLIENT_KDACTL_BENCH_DEVICE_H

#include "client/kdad.h"

#include <stdbool.h>
#include <stddef.h>

enum { BENCH_WHY = 256 };

struct bench_gpu;

struct bench_device {
    struct bench_gpu *gpu; /* NULL: the processor */
};

/* gpu: the name of a GPU as the daemon gives it, or "" for the processor. Makes the context. */
bool bench_device_open(struct bench_device *device, const char *gpu, char why[BENCH_WHY]);

kdad_status bench_device_stream(const struct bench_device *device, struct kdad_connection *connection,
                                struct kdad_stream **stream);

/* On a GPU the connection may be NULL. */
void *bench_device_alloc(const struct bench_device *device, struct kdad_connection *connection, size_t bytes,
                         char why[BENCH_WHY]);
void bench_device_free(const struct bench_device *device, struct kdad_connection *connection, void *memory);

/* Copies from the host, and waits for it. */
bool bench_device_write(const struct bench_device *device, void *to, const void *from, size_t bytes,
                        char why[BENCH_WHY]);

/* The rest is for GPUs. A kernel of one thread on the client's stream, which writes the word at an address
 * back as it was; waits for nothing. */
bool bench_device_touch(const struct bench_device *device, void *at, char why[BENCH_WHY]);

/* Waits for the stream. */
bool bench_device_finish(const struct bench_device *device, char why[BENCH_WHY]);

/* Waits until the stream has come to the mark before this one. What is submitted between two marks is twice
 * in flight at most, and the GPU never waits for this process. */
bool bench_device_mark(const struct bench_device *device, char why[BENCH_WHY]);

/* What is put on the stream between hold and release does not begin before release. */
bool bench_device_hold(const struct bench_device *device, char why[BENCH_WHY]);
bool bench_device_release(const struct bench_device *device, char why[BENCH_WHY]);

#endif
