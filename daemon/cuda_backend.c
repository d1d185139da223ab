/*
 * cuda_backend.c - jobs on GPUs: CUDA streams of its own for each client's stream.
 *
 * The watcher is the one thread that launches. A job is launched once its client's ready word has reached its
 * ticket; behind it the device advances the timeline's done, and a word of the daemon's own that the watcher
 * believes. No GPU queue ever waits for a client: one that is stopped or never signals holds back nobody.
 *
 * A device that cannot write words tells by events, which the watcher asks for; done is the host's then.
 *
 * Of a queue, launched jobs come first, in order, then waiting ones. A job that is not to run (refused,
 * cancelled) is ended by the host once all before it are done: so done is written by the device or by the
 * host, never by both at once.
 *
 * A queue has two CUDA streams, of ordinary and of high priority: jobs of a client that has had less of the
 * device than another (share.h) go by the latter, so the GPU takes them up as soon as a block of the other's
 * kernel ends. Little is launched ahead, for as little is decided ahead.
 *
 * The watcher spins while a job is launched or waiting and something happened lately, then naps, longer and
 * longer; without jobs it sleeps. A device error is sticky: the process ends at once, since no word of that
 * context can be believed any more; its clients see the daemon lost.
 */
#include "daemon/cuda_memory.h"
#include "daemon/job.h"
#include "daemon/share.h"
#include "daemon/stream.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    DEPTH = 16,         /* jobs of a queue that are on the device at once, at most; a power of two */
    AHEAD = 2,          /* of them, at least … */
    AHEAD_NS = 1000000, /* … else as many as the device is done with in that time */
    SPIN_NS = 200000,   /* the watcher spins that long after something happened … */
    NAP_MIN_NS = 20000, /* … then naps */
    NAP_MAX_NS = 1000000,
    QUERY_NS = 2000000, /* a device that says nothing for that long is asked for errors */
};

struct cuda_backend {
    struct backend base;
    const struct cuda_driver *driver;
    struct cuda_devices devices;
    void (*idle)(void *argument);
    void *argument;
    pthread_t watcher;
    bool watching;
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct cuda_queue *active; /* queues with jobs */
    uint64_t asked, answered;  /* a watchdog's questions: the watcher answers each, asleep or not */
    bool stopping;
};

/* The words that the device writes for the daemon alone, in host memory. */
struct private_words {
    uint64_t done;
    int32_t verdict[DEPTH];
};

struct cuda_group {
    struct group base;
    struct share share; /* of all devices; under the backend's lock */
};

enum lane { LANE_ORDINARY, LANE_HIGH, LANES };

struct cuda_queue {
    struct queue base;
    struct cuda_device *on;
    CUstream stream[LANES];
    CUevent turn;       /* where a lane ends, for the other one to go on behind it */
    CUevent end[DEPTH]; /* of launched jobs, where the device cannot write words */
    struct timeline *timeline;
    CUdeviceptr timeline_address;
    struct private_words *words;
    CUdeviceptr words_address;
    CUdeviceptr scratch; /* of jobs with cu_seqlens */
    uint64_t scratch_size;
    /* Under the backend's lock. */
    struct job *first, *last; /* launched ones, then waiting ones */
    struct job *waiting;      /* the first that is not launched; NULL if all are */
    int launched;
    enum lane lane;                 /* of the launched ones */
    uint64_t cost[DEPTH], ahead_ns; /* that launched ones may take, and all together */
    bool active, closing;
    struct cuda_queue *next; /* active */
};

static struct cuda_backend *cuda_of(struct backend *backend) {
    return (struct cuda_backend *)backend;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *why) {
    char quoted[2 * CUDA_WHY];
    log_event(LOG_ERROR, "device_error", "why=%s", log_quote(quoted, sizeof quoted, why));
    _exit(1);
}

/* --- the watcher: launching ---------------------------------------------------------------------------- */

/* Room for a job's copy of cu_seqlens. False if a larger one must wait until the queue's jobs are done. */
static bool have_scratch(struct cuda_backend *b, struct cuda_queue *q, struct job *job) {
    uint64_t size = cuda_scratch_size(&job->problem);
    char why[CUDA_WHY];
    if (size <= q->scratch_size)
        return true;
    if (q->launched > 0)
        return false;
    if (q->scratch)
        b->driver->MemFree(q->scratch);
    __atomic_fetch_sub(&q->on->own_bytes, q->scratch_size, __ATOMIC_RELAXED);
    q->scratch = 0;
    q->scratch_size = 0;
    if (!cuda_ok(b->driver->MemAlloc(&q->scratch, size), "cuMemAlloc", why)) {
        job_refuse(job, WIRE_NO_MEMORY, "cu_seqlens: no device memory for its copy: %s", why);
        return true;
    }
    q->scratch_size = size;
    __atomic_fetch_add(&q->on->own_bytes, size, __ATOMIC_RELAXED);
    return true;
}

static struct cuda_group *group_of(const struct cuda_queue *q) {
    return (struct cuda_group *)q->base.group;
}

/* The device's time that a job takes at the least. */
static uint64_t cost_of(const struct cuda_device *d, const struct job *job) {
    const double rate = d->copy_rate ? (double)d->copy_rate : 1e12;
    return (uint64_t)((double)problem_traffic(&job->problem) * 1e9 / rate);
}

/* The lane that the queue's next job takes: high for a client that is behind one with jobs on the device. */
static enum lane choose_lane(const struct cuda_backend *b, const struct cuda_queue *q, int64_t now) {
    uint64_t most = 0;
    for (const struct cuda_queue *other = b->active; other; other = other->next) {
        uint64_t had = other->on == q->on ? share_now(&group_of(other)->share, now) : 0;
        most = had > most ? had : most;
    }
    return share_is_behind(share_now(&group_of(q)->share, now), most) ? LANE_HIGH : LANE_ORDINARY;
}

/* Changes lanes behind what is launched. */
static bool take_lane(struct cuda_backend *b, struct cuda_queue *q, enum lane lane, char why[CUDA_WHY]) {
    enum lane from = q->lane;
    q->lane = lane;
    return from == lane || q->launched == 0 ||
           (cuda_ok(b->driver->EventRecord(q->turn, q->stream[from]), "cuEventRecord", why) &&
            cuda_ok(b->driver->StreamWaitEvent(q->stream[lane], q->turn, 0), "cuStreamWaitEvent", why));
}

/* The timeline's done, and then the daemon's own; or an event. */
static bool put_done(struct cuda_backend *b, struct cuda_queue *q, uint64_t ticket, char why[CUDA_WHY]) {
    CUstreamBatchMemOpParams write[2] = {0};
    if (!q->on->words)
        return cuda_ok(b->driver->EventRecord(q->end[ticket % DEPTH], q->stream[q->lane]), "cuEventRecord",
                       why);
    for (int i = 0; i < 2; i++) {
        write[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        write[i].writeValue.value64 = ticket;
    }
    write[0].writeValue.address = q->timeline_address + offsetof(struct timeline, done);
    write[1].writeValue.address = q->words_address + offsetof(struct private_words, done);
    return cuda_ok(b->driver->StreamBatchMemOp(q->stream[q->lane], 2, write, 0), "cuStreamBatchMemOp", why);
}

static void put_on_device(struct cuda_backend *b, struct cuda_queue *q, struct job *job) {
    char why[CUDA_WHY];
    int64_t now = now_ns();
    size_t slot = job->ticket % DEPTH;
    struct cuda_sequences sequences = {
        .scratch = q->scratch,
        .verdict = q->words_address + offsetof(struct private_words, verdict) + slot * sizeof(int32_t),
        .status = q->timeline_address + offsetof(struct timeline, status) +
                  job->ticket % WIRE_STREAM_SLOTS * sizeof(int32_t),
        .bad_status = WIRE_BAD_DATA,
    };
    job->started_ns = (uint64_t)now;
    q->words->verdict[slot] = CUDA_VERDICT_OK;
    timeline_set_status(q->timeline, job->ticket, WIRE_OK);
    bool good =
        take_lane(b, q, choose_lane(b, q, now), why) &&
        (problem_is_empty(&job->problem) ||
         cuda_launch(q->on->kernels, q->stream[q->lane], &job->problem, job->address, &sequences, why)) &&
        put_done(b, q, job->ticket, why);
    if (!good)
        die(why);
    job->shown = q->on->words;
    q->cost[slot] = cost_of(q->on, job);
    q->ahead_ns += q->cost[slot];
    share_charge(&group_of(q)->share, now, q->cost[slot]);
}

/* Launches, or ends, the queue's first waiting job if its turn has come. Under the lock, which job_end is
 * called without. */
static bool launch_one(struct cuda_backend *b, struct cuda_queue *q) {
    struct job *job = q->waiting;
    if (!job || q->launched == DEPTH || (q->launched >= AHEAD && q->ahead_ns > AHEAD_NS))
        return false;
    bool runs = job_runnable(job);
    if (runs && (atomic_load_explicit(&q->timeline->ready, memory_order_acquire) < job->ticket ||
                 !have_scratch(b, q, job)))
        return false;
    if (job->status == WIRE_OK) {
        put_on_device(b, q, job);
        q->waiting = job->next;
        q->launched++;
        q->on->launched++;
        return true;
    }
    if (q->launched > 0)
        return false;
    q->first = q->waiting = job->next; /* nothing is launched: it is the first */
    pthread_mutex_unlock(&b->lock);
    job_end(job);
    pthread_mutex_lock(&b->lock);
    return true;
}

/* True once the device is done with a launched job. */
static bool is_done(const struct cuda_backend *b, const struct cuda_queue *q, const struct job *job) {
    char why[CUDA_WHY];
    if (q->on->words)
        return __atomic_load_n(&q->words->done, __ATOMIC_ACQUIRE) >= job->ticket;
    CUresult result = b->driver->EventQuery(q->end[job->ticket % DEPTH]);
    if (result != CUDA_ERROR_NOT_READY && !cuda_ok(result, "cuEventQuery", why))
        die(why);
    return result == CUDA_SUCCESS;
}

/* Ends the queue's first launched job if the device is done with it. */
static bool finish_one(struct cuda_backend *b, struct cuda_queue *q) {
    struct job *job = q->first;
    if (q->launched == 0 || !is_done(b, q, job))
        return false;
    int32_t verdict = __atomic_load_n(&q->words->verdict[job->ticket % DEPTH], __ATOMIC_RELAXED);
    if (verdict != CUDA_VERDICT_OK)
        job_refuse(job, WIRE_BAD_DATA, "%s", cuda_verdict_sentence(verdict));
    q->ahead_ns -= q->cost[job->ticket % DEPTH];
    q->first = job->next;
    q->launched--;
    q->on->launched--;
    q->on->finished++;
    pthread_mutex_unlock(&b->lock);
    job_end(job);
    pthread_mutex_lock(&b->lock);
    return true;
}

/* A device that failed says nothing any more. */
static void ask_for_errors(struct cuda_backend *b) {
    char why[CUDA_WHY];
    for (struct cuda_queue *q = b->active; q; q = q->next) {
        CUresult result = q->launched > 0 ? b->driver->StreamQuery(q->stream[q->lane]) : CUDA_SUCCESS;
        if (result != CUDA_ERROR_NOT_READY && !cuda_ok(result, "cuStreamQuery", why))
            die(why);
    }
}

/* The lock was let go meanwhile, and queues may have been entered before this one. Behind this a closing
 * queue is its owner's. */
static void deactivate(struct cuda_backend *b, struct cuda_queue *q) {
    struct cuda_queue **link = &b->active;
    while (*link != q)
        link = &(*link)->next;
    *link = q->next;
    q->active = false;
    if (q->closing)
        b->idle(b->argument);
}

/* One look at all active queues, one job of each at a time. True if something happened. */
static bool look_around(struct cuda_backend *b) {
    bool happened = false;
    for (struct cuda_queue *q = b->active, *next; q; q = next) {
        if (q->waiting || !q->on->words)
            b->driver->CtxSetCurrent(q->on->context);
        while (finish_one(b, q))
            happened = true;
        happened |= launch_one(b, q);
        next = q->next;
        if (!q->first)
            deactivate(b, q);
    }
    return happened;
}

static void rest(int64_t quiet) {
    if (quiet < SPIN_NS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    int64_t nap = quiet / 16;
    nap = nap < NAP_MIN_NS ? NAP_MIN_NS : nap > NAP_MAX_NS ? NAP_MAX_NS : nap;
    nanosleep(&(struct timespec){0, nap}, NULL);
}

static void *watch(void *argument) {
    struct cuda_backend *b = argument;
    int64_t last = now_ns(), asked = last;
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        b->answered = b->asked;
        if (!b->active) {
            pthread_cond_wait(&b->work, &b->lock);
            last = now_ns();
            continue;
        }
        bool happened = look_around(b);
        int64_t now = now_ns();
        if (happened)
            last = now;
        if (now - last > QUERY_NS && now - asked > QUERY_NS) {
            ask_for_errors(b);
            asked = now;
        }
        pthread_mutex_unlock(&b->lock);
        rest(now - last);
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* --- start and end ------------------------------------------------------------------------------------- */

static void cuda_close(struct backend *backend) {
    struct cuda_backend *b = cuda_of(backend);
    if (b->watching) {
        pthread_mutex_lock(&b->lock);
        b->stopping = true;
        pthread_cond_signal(&b->work);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->watcher, NULL);
    }
    cuda_devices_close(&b->devices);
    free(b);
}

static bool start_watcher(struct cuda_backend *b, char why[CUDA_WHY]) {
    sigset_t all, old;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the loop's */
    int error = pthread_create(&b->watcher, NULL, watch, b);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    b->watching = error == 0;
    if (b->watching)
        pthread_setname_np(b->watcher, "kdad-cuda");
    else
        snprintf(why, CUDA_WHY, "its thread cannot be started: %s", strerror(error));
    return b->watching;
}

static struct backend *cuda_open(const struct options *options, void (*idle)(void *argument), void *argument,
                                 char why[PROBLEM_WHY]) {
    char text[CUDA_WHY];
    struct cuda_backend *b = calloc(1, sizeof *b);
    if (!b) {
        snprintf(why, PROBLEM_WHY, "backend cuda: out of memory");
        return NULL;
    }
    b->base.ops = &cuda_backend;
    b->idle = idle;
    b->argument = argument;
    bool opened = cuda_devices_open(&b->devices, options, text);
    b->driver = b->devices.driver;
    if (opened && start_watcher(b, text))
        return &b->base;
    snprintf(why, PROBLEM_WHY, "backend cuda: %.230s", text);
    cuda_close(&b->base);
    return NULL;
}

static const char *cuda_detail(const struct backend *backend) {
    return ((const struct cuda_backend *)backend)->devices.detail;
}

/* A watcher that hangs in the driver holds the lock: then this does not return, and the loop hangs too. */
static bool cuda_lives(struct backend *backend, char why[PROBLEM_WHY]) {
    struct cuda_backend *b = cuda_of(backend);
    pthread_mutex_lock(&b->lock);
    bool lives = b->answered == b->asked++;
    if (!lives)
        snprintf(why, PROBLEM_WHY, "backend cuda: the thread that launches does not get on");
    for (int i = 0; i < b->devices.count; i++) {
        struct cuda_device *d = &b->devices.device[i];
        if (d->launched > 0 && d->busy_seen && d->finished == d->finished_seen) {
            snprintf(why, PROBLEM_WHY, "backend cuda: %s has %llu jobs, and does not get on with them",
                     d->uuid, (unsigned long long)d->launched);
            lives = false;
        }
        d->busy_seen = d->launched > 0;
        d->finished_seen = d->finished;
    }
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
    return lives;
}

static uint32_t cuda_threads(const struct backend *backend) {
    (void)backend;
    return 1;
}

static uint32_t cuda_device_rows(struct backend *backend, struct wire_status_device *rows, uint32_t most) {
    const struct cuda_devices *devices = &cuda_of(backend)->devices;
    uint32_t count = (uint32_t)devices->count < most ? (uint32_t)devices->count : most;
    for (uint32_t i = 0; i < count; i++) {
        const struct cuda_device *d = &devices->device[i];
        rows[i] = (struct wire_status_device){
            .device = wire_string(d->uuid),
            .name = wire_string(d->name),
            .mps = d->mps,
            .own_bytes = __atomic_load_n(&d->own_bytes, __ATOMIC_RELAXED),
            .copy_rate = d->copy_rate,
        };
        pace_sum(&d->pace, &rows[i].last_bytes, &rows[i].last_ns);
    }
    return count;
}

static bool cuda_serves(const struct backend *backend, struct wire_string device) {
    return cuda_devices_find(&((const struct cuda_backend *)backend)->devices, device) != NULL;
}

static bool cuda_maps(const struct backend *backend, uint32_t kind) {
    (void)backend;
    return cuda_memory_maps(kind);
}

static enum wire_status cuda_map(struct backend *backend, const struct wire_register *request, const int *fds,
                                 int fd_count, struct mapping *mapping, char why[PROBLEM_WHY]) {
    (void)fd_count; /* one a segment, or none */
    return cuda_memory_map(&cuda_of(backend)->devices, request, fds, mapping, why);
}

static void cuda_unmap(struct backend *backend, struct mapping *mapping) {
    cuda_memory_unmap(&cuda_of(backend)->devices, mapping);
}

/* --- queues -------------------------------------------------------------------------------------------- */

static struct group *cuda_group_open(struct backend *backend) {
    struct cuda_group *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->base.backend = backend;
    return &group->base;
}

static void cuda_group_close(struct group *group) {
    free(group);
}

/* Accepts a queue that was opened in part. */
static void free_queue(struct cuda_backend *b, struct cuda_queue *q) {
    b->driver->CtxSetCurrent(q->on->context);
    for (enum lane lane = 0; lane < LANES; lane++)
        if (q->stream[lane])
            b->driver->StreamDestroy(q->stream[lane]);
    if (q->turn)
        b->driver->EventDestroy(q->turn);
    for (int i = 0; i < DEPTH; i++)
        if (q->end[i])
            b->driver->EventDestroy(q->end[i]);
    if (q->timeline_address)
        b->driver->MemHostUnregister(q->timeline);
    if (q->words)
        b->driver->MemFreeHost(q->words);
    if (q->scratch)
        b->driver->MemFree(q->scratch);
    __atomic_fetch_sub(&q->on->own_bytes, q->scratch_size, __ATOMIC_RELAXED);
    free(q);
}

static bool open_queue(struct cuda_backend *b, struct cuda_queue *q, char why[CUDA_WHY]) {
    const struct cuda_driver *driver = b->driver;
    void *words = NULL;
    int priority[LANES]; /* the least is 0 */
    if (!cuda_ok(driver->CtxSetCurrent(q->on->context), "cuCtxSetCurrent", why) ||
        !cuda_ok(driver->CtxGetStreamPriorityRange(&priority[LANE_ORDINARY], &priority[LANE_HIGH]),
                 "cuCtxGetStreamPriorityRange", why) ||
        !cuda_ok(driver->EventCreate(&q->turn, CU_EVENT_DISABLE_TIMING), "cuEventCreate", why))
        return false;
    for (enum lane lane = 0; lane < LANES; lane++)
        if (!cuda_ok(
                driver->StreamCreateWithPriority(&q->stream[lane], CU_STREAM_NON_BLOCKING, priority[lane]),
                "cuStreamCreateWithPriority", why))
            return false;
    for (int i = 0; i < DEPTH && !q->on->words; i++)
        if (!cuda_ok(driver->EventCreate(&q->end[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate", why))
            return false;
    if (!cuda_ok(driver->MemAllocHost(&words, sizeof *q->words), "cuMemAllocHost", why))
        return false;
    q->words = words;
    memset(words, 0, sizeof *q->words);
    if (!cuda_ok(driver->MemHostGetDevicePointer(&q->words_address, words, 0), "cuMemHostGetDevicePointer",
                 why) ||
        !cuda_ok(driver->MemHostRegister(q->timeline, sizeof *q->timeline, CU_MEMHOSTREGISTER_DEVICEMAP),
                 "cuMemHostRegister", why))
        return false;
    return cuda_ok(driver->MemHostGetDevicePointer(&q->timeline_address, q->timeline, 0),
                   "cuMemHostGetDevicePointer", why);
}

static enum wire_status cuda_queue_open(struct group *group, struct wire_string device,
                                        struct timeline *timeline, struct queue **queue,
                                        char why[PROBLEM_WHY]) {
    struct cuda_backend *b = cuda_of(group->backend);
    struct cuda_queue *q = calloc(1, sizeof *q);
    char text[CUDA_WHY];
    if (!q)
        return backend_refuse(why, WIRE_NO_MEMORY, "stream: the daemon is out of memory");
    q->on = cuda_devices_find(&b->devices, device);
    q->base = (struct queue){group, q->on->uuid, &q->on->pace};
    q->timeline = timeline;
    if (!open_queue(b, q, text)) {
        free_queue(b, q);
        return backend_refuse(why, WIRE_NO_MEMORY, "stream: %.200s", text);
    }
    *queue = &q->base;
    return WIRE_OK;
}

static bool cuda_queue_close(struct queue *queue) {
    struct cuda_backend *b = cuda_of(queue->group->backend);
    struct cuda_queue *q = (struct cuda_queue *)queue;
    pthread_mutex_lock(&b->lock);
    q->closing = true;
    bool idle = !q->active;
    pthread_mutex_unlock(&b->lock);
    if (idle)
        free_queue(b, q);
    return idle;
}

static void cuda_submit(struct queue *queue, struct job *job) {
    struct cuda_backend *b = cuda_of(queue->group->backend);
    struct cuda_queue *q = (struct cuda_queue *)queue;
    job->next = NULL;
    pthread_mutex_lock(&b->lock);
    if (q->first)
        q->last->next = job;
    else
        q->first = job;
    q->last = job;
    if (!q->waiting)
        q->waiting = job;
    if (!q->active) {
        if (!b->active)
            pthread_cond_signal(&b->work);
        q->active = true;
        q->next = b->active;
        b->active = q;
    }
    pthread_mutex_unlock(&b->lock);
}

const struct backend_ops cuda_backend = {
    .name = "cuda",
    .job_size = 0,
    .open = cuda_open,
    .close = cuda_close,
    .detail = cuda_detail,
    .threads = cuda_threads,
    .lives = cuda_lives,
    .devices = cuda_device_rows,
    .serves = cuda_serves,
    .maps = cuda_maps,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .group_open = cuda_group_open,
    .group_close = cuda_group_close,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .submit = cuda_submit,
};
