/*
 * backend.h - what the daemon asks of a backend: to map clients' memory, and to run their jobs in order.
 *
 * The daemon knows no kernel and no device but through this table. It may have several backends: a stream
 * belongs to the one that serves its device, a buffer to the one that maps its kind. All functions are called
 * on the loop's thread where nothing else is said. job_end (job.h) is the backend's answer to submit: on any
 * thread, or from inside submit.
 */
#ifndef DAEMON_BACKEND_H
#define DAEMON_BACKEND_H

#include "proto/timeline.h"
#include "proto/wire.h"

enum { BACKENDS_MAX = 2 };

struct job; /* daemon/job.h */
struct options;

/* What backends embed, first, in structs of their own. */
struct backend { /* its devices and threads */
    const struct backend_ops *ops;
};

struct group { /* a client, to the backend's scheduler */
    struct backend *backend;
};

struct queue { /* a stream */
    struct group *group;
    const char *device; /* its name, the backend's own string: equal for equal devices */
    struct pace *pace;  /* of its device: meter.h */
};

/* Memory of a client, mapped. */
struct mapping {
    uint64_t address;     /* what kernels get: a host or device address */
    uint64_t size;        /* bytes, true ones */
    const char *device;   /* as in queue: where it lies */
    uint64_t identity[2]; /* equal for two mappings only if they share memory */
    void *handle;         /* the backend's own */
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

    /* For a watchdog, at long intervals: false, with a sentence in why, if since the last call a thread that
     * should have moved has not, or a device has finished nothing though it had work all the time. */
    bool (*lives)(struct backend *backend, char why[PROBLEM_WHY]);

    /* Fills in rows of its devices, at most so many; returns how many. Strings are the backend's own. */
    uint32_t (*devices)(struct backend *backend, struct wire_status_device *rows, uint32_t most);

    /* True if streams of that device, or buffers of that kind, are this backend's. */
    bool (*serves)(const struct backend *backend, struct wire_string device);
    bool (*maps)(const struct backend *backend, uint32_t kind);

    /* Maps what a client registers. Takes no ownership of descriptors. */
    enum wire_status (*map)(struct backend *backend, const struct wire_register *request, const int *fds,
                            int fd_count, struct mapping *mapping, char why[PROBLEM_WHY]);
    void (*unmap)(struct backend *backend, struct mapping *mapping); /* on any thread */

    struct group *(*group_open)(struct backend *backend); /* NULL: out of memory */
    void (*group_close)(struct group *group);             /* its queues are closed */

    enum wire_status (*queue_open)(struct group *group, struct wire_string device, struct timeline *timeline,
                                   struct queue **queue, char why[PROBLEM_WHY]);
    /* No job will be submitted any more. True if the queue was idle: it is freed. False: ask again when idle
     * was called. */
    bool (*queue_close)(struct queue *queue);

    /* Runs a job behind those of its queue, and calls job_end. A job whose status is set already, or whose
     * stream is cancelled by the time it comes to run, is ended without being run. */
    void (*submit)(struct queue *queue, struct job *job);
};

/* Writes a sentence to why and returns the status. */
__attribute__((format(printf, 3, 4))) enum wire_status
backend_refuse(char why[PROBLEM_WHY], enum wire_status status, const char *format, ...);

extern const struct backend_ops cpu_backend;
extern const struct backend_ops cuda_backend; /* in builds with CUDA */

#endif
