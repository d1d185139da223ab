/*
 * bench_worker.h - a client of the bench: a forked process with a device, a connection to the daemon and one
 * to "local:", which does what it is ordered over a socket pair.
 *
 * kdactl itself touches no GPU and holds no connection while it forks. A client ends when kdactl does, or
 * lets go of it. An order that is not answered in time ends the client, and the bench.
 */
#ifndef CLIENT_KDACTL_BENCH_WORKER_H
#define CLIENT_KDACTL_BENCH_WORKER_H

#include "client/kdactl/bench_job.h"
#include "client/kdactl/kdactl.h"

#include <sys/types.h>

enum bench_verb {
    BENCH_OPEN,       /* the device: sample 0 is how long its context took, in ms */
    BENCH_FIRST,      /* connects: ms until the first result, and until connected. Once for each route */
    BENCH_CONNECT,    /* connects, if the route is not yet */
    BENCH_ONE_BY_ONE, /* count jobs, each waited for: us of each */
    BENCH_PAIRS,      /* GPU: batches of count times own kernel and job: us of a pair, of each batch */
    BENCH_SUBMIT,     /* batches of count submissions: us of CPU time of one, of each batch */
    BENCH_THROUGHPUT, /* from start_ns for window_ns, some in flight: what was done */
    BENCH_LOAD,       /* the same, until BENCH_STOP, and answered then */
    BENCH_STOP,       /* not answered by itself */
    BENCH_HOLD,       /* GPU: a job behind what does not end */
    BENCH_RELEASE,    /* and its end */
};

enum { BENCH_SAMPLES = 256 };

struct bench_order {
    enum bench_verb verb;
    bool local; /* the route: in this process, not through the daemon */
    struct bench_shape shape;
    int count, batches; /* at most BENCH_SAMPLES of what is a sample */
    int64_t start_ns, window_ns;
};

struct bench_work {
    int64_t jobs, start_ns, end_ns;
};

struct bench_answer {
    kdad_status status;
    char why[BENCH_WHY];
    struct bench_work work; /* of BENCH_THROUGHPUT and BENCH_LOAD */
    int count;
    double samples[BENCH_SAMPLES];
};

struct bench_worker {
    pid_t pid;
    int fd;
};

/* socket: NULL for the default. gpu: as for bench_device_open. Both must outlive the process. */
enum exit_code bench_worker_start(struct bench_worker *worker, const char *socket, const char *gpu);

/* Lets go, and waits for its end; kills it if it is stuck. A worker of zeros is allowed. */
void bench_worker_stop(struct bench_worker *worker);

/* Complain if the client is gone, has failed, or does not answer. */
enum exit_code bench_worker_tell(const struct bench_worker *worker, const struct bench_order *order);
enum exit_code bench_worker_hear(const struct bench_worker *worker, struct bench_answer *answer);
enum exit_code bench_worker_ask(const struct bench_worker *worker, const struct bench_order *order,
                                struct bench_answer *answer);

#endif
