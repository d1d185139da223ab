/*
 * backend.h - what the daemon asks of a backend: to map clients' memory, and to run their jobs in order.
 *
 * The daemon knows no kernel and no device but through this table. All functions are called on the loop's
 * thread. job_end (job.h) is the backend's answer to submit: on any thread, or from inside submit.
 */
#ifndef DAEMON_BACKEND_H
#define DAEMON_BACKEND_H

#include "proto/timeline.h"
#include "proto/wire.h"

struct backend; /* the device and its threads */
struct group;   /* a client, to the backend's scheduler */
struct queue;   /* a stream */
struct job;     /* daemon/job.h */
struct options;

/* Memory of a client, mapped. */
struct mapping {
    void *address;          /* what kernels get: a host or device address */
    uint64_t size;          /* bytes, true ones */
    uint64_t device, inode; /* identity: equal for two mappings only if they share memory */
};

struct backend_ops {
    const char *name;
    size_t job_size; /* bytes of a job's private part */

    /* Starts the backend: afterwards the first job is as fast as any. idle (with argument) is called, on any
     * thread, when a queue that is closing has become idle. NULL with a sentence in why. */
    struct backend *(*open)(const struct options *options, void (*idle)(void *argument), void *argument,
                            char why[PROBLEM_WHY]);
    void (*close)(struct backend *backend); /* all queues are closed */
    const char *(*detail)(const struct backend *backend);
    uint32_t (*threads)(const struct backend *backend);

    /* Maps what a client registers. Takes no ownership of fd. */
    enum wire_status (*map)(struct backend *backend, uint32_t kind, uint64_t size, int fd,
                            struct mapping *mapping, char why[PROBLEM_WHY]);
    void (*unmap)(struct mapping *mapping); /* on any thread */

    struct group *(*group_open)(struct backend *backend); /* NULL: out of memory */
    void (*group_close)(struct group *group);             /* its queues are closed */

    enum wire_status (*queue_open)(struct group *group, struct wire_string device, struct queue **queue,
                                   char why[PROBLEM_WHY]);
    /* No job will be submitted any more. True if the queue was idle: it is freed. False: ask again when idle
     * was called. */
    bool (*queue_close)(struct queue *queue);

    /* Runs a job behind those of its queue, and calls job_end. A job whose status is set already, or whose
     * stream is cancelled by the time it comes to run, is ended without being run. */
    void (*submit)(struct queue *queue, struct job *job);
};

extern const struct backend_ops cpu_backend;

/* The table for a name ("auto", "cpu", "cuda"); NULL with a sentence in why if this build lacks it. */
const struct backend_ops *backend_find(const char *name, char why[PROBLEM_WHY]);

#endif
