/*
 * cpu_backend.c - the embedded default: kernels/cpu on the pool's threads, host memory in sealed memfds.
 *
 * A job too small to be worth a thread's wake-up is run at once on the loop's thread, if its stream is idle;
 * all others are cut into slices of about SLICE_NS, which the pool deals out fairly between clients.
 *
 * A memfd must be sealed against shrinking, else its owner could truncate it under a running job (SIGBUS),
 * and all of its pages must be allocated, so that they are charged to their owner and not to the daemon.
 */
#include "daemon/copy_rate.h"
#include "daemon/job.h"
#include "daemon/meter.h"
#include "daemon/options.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#define SLICE_NS 100000
#define INLINE_NS 5000
#define INLINE_SEQUENCES 64

static const char device_name[] = "cpu";

struct cpu_backend {
    struct backend base;
    struct pool *pool;
    void *scratch; /* of jobs that run on the loop's thread */
    struct pace pace;
    struct copy_rate copy;
};

struct cpu_group {
    struct group base;
    struct pool_group pool;
};

struct cpu_queue {
    struct queue base;
    struct pool *pool;
    struct pool_lane lane;
};

/* A job's private part. */
struct cpu_task {
    struct pool_task task;
    struct cpu_job cpu;
    bool begun; /* cpu is to be ended */
};

static struct job *job_of(struct pool_task *task) {
    return (struct job *)((char *)task - offsetof(struct job, private));
}

static struct cpu_task *task_of(struct job *job) {
    return (struct cpu_task *)job->private;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* --- a task's life, as the pool calls it --------------------------------------------------------------- */

static void task_begin(struct pool_task *task) {
    struct job *job = job_of(task);
    struct cpu_task *own = task_of(job);
    task->items = 0;
    task->grain = 1;
    own->begun = false;
    if (!job_runnable(job))
        return;
    job->started_ns = now_ns();
    if (problem_is_empty(&job->problem))
        return;
    void *data[OPERAND_COUNT];
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        data[o] = (void *)(uintptr_t)job->address[o];
    if (!cpu_job_begin(&own->cpu, &job->problem, data, job->why)) {
        job->status = WIRE_BAD_DATA;
        cpu_job_copy_through(&job->problem, data);
        return;
    }
    own->begun = true;
    int64_t cost = cpu_item_cost(&job->problem);
    task->items = own->cpu.items;
    task->grain = cost < SLICE_NS ? SLICE_NS / (cost > 0 ? cost : 1) : 1;
}

/* On the pool's threads. A job on the loop's thread is not timed by itself: the loop times whole batches. */
static void task_run(struct pool_task *task, int64_t first, int64_t count, void *scratch) {
    struct job *job = job_of(task);
    uint64_t start = now_ns();
    cpu_job_run(&task_of(job)->cpu, first, count, scratch);
    __atomic_fetch_add(&job->busy_ns, now_ns() - start, __ATOMIC_RELAXED);
}

static void task_end(struct pool_task *task) {
    struct job *job = job_of(task);
    if (task_of(job)->begun)
        cpu_job_end(&task_of(job)->cpu);
    job_end(job);
}

/* --- the table ----------------------------------------------------------------------------------------- */

static void cpu_close(struct backend *backend) {
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    copy_rate_stop(&cpu->copy);
    pool_stop(cpu->pool);
    free(cpu->scratch);
    free(cpu);
}

static struct backend *cpu_open(const struct options *options, void (*idle)(void *argument), void *argument,
                                char why[PROBLEM_WHY]) {
    struct cpu_backend *cpu = calloc(1, sizeof *cpu);
    if (cpu && posix_memalign(&cpu->scratch, 64, cpu_scratch_size()) != 0)
        cpu->scratch = NULL;
    if (cpu && cpu->scratch)
        cpu->pool = pool_start(options->threads, cpu_scratch_size(), idle, argument);
    if (!cpu || !cpu->pool) {
        snprintf(why, PROBLEM_WHY, "backend cpu: cannot start its threads: %s", strerror(errno));
        if (cpu)
            cpu_close(&cpu->base);
        return NULL;
    }
    cpu->base.ops = &cpu_backend;
    return &cpu->base;
}

static const char *cpu_detail(const struct backend *backend) {
    (void)backend;
    return cpu_isa_name();
}

static uint32_t cpu_threads(const struct backend *backend) {
    return (uint32_t)pool_threads(((const struct cpu_backend *)backend)->pool);
}

static bool cpu_lives(struct backend *backend, char why[PROBLEM_WHY]) {
    bool lives = pool_lives(((struct cpu_backend *)backend)->pool);
    if (!lives)
        snprintf(why, PROBLEM_WHY, "backend cpu: a thread does not get on with its part of a job");
    return lives;
}

static uint32_t cpu_devices(struct backend *backend, struct wire_status_device *rows, uint32_t most) {
    struct cpu_backend *cpu = (struct cpu_backend *)backend;
    if (most == 0)
        return 0;
    rows[0] = (struct wire_status_device){
        .device = wire_string(device_name),
        .name = wire_string(cpu_isa_name()),
        .mps = WIRE_MPS_UNKNOWN,
        .copy_rate = copy_rate_get(&cpu->copy),
    };
    pace_sum(&cpu->pace, &rows[0].last_bytes, &rows[0].last_ns);
    return 1;
}

static bool cpu_serves(const struct backend *backend, struct wire_string device) {
    (void)backend;
    return device.size == 0 ||
           (device.size == strlen(device_name) && memcmp(device.data, device_name, device.size) == 0);
}

static bool cpu_maps(const struct backend *backend, uint32_t kind) {
    (void)backend;
    return kind == WIRE_BUFFER_HOST;
}

static enum wire_status cpu_map(struct backend *backend, const struct wire_register *request, const int *fds,
                                int fd_count, struct mapping *mapping, char why[PROBLEM_WHY]) {
    (void)backend;
    (void)fd_count; /* is 1 */
    int fd = fds[0];
    uint64_t size = request->size;
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstatfs(fd, &fs) < 0 || fstat(fd, &st) < 0 || fs.f_type != TMPFS_MAGIC)
        return backend_refuse(why, WIRE_INVALID, "buffer: the descriptor is not a memfd of ordinary pages");
    if (!(seals & F_SEAL_SHRINK))
        return backend_refuse(why, WIRE_INVALID, "buffer: the memfd is not sealed with F_SEAL_SHRINK");
    if (size == 0 || size > (uint64_t)st.st_size || size > SIZE_MAX / 2)
        return backend_refuse(why, WIRE_INVALID, "buffer: size is %llu, but the memfd has %llu bytes",
                              (unsigned long long)size, (unsigned long long)st.st_size);
    if ((uint64_t)st.st_blocks * 512 < size)
        return backend_refuse(why, WIRE_INVALID,
                              "buffer: only %llu of %llu bytes are allocated: fallocate the memfd first",
                              (unsigned long long)st.st_blocks * 512, (unsigned long long)size);
    void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return backend_refuse(why, errno == ENOMEM ? WIRE_NO_MEMORY : WIRE_INVALID,
                              "buffer: cannot be mapped: %s", strerror(errno));
    *mapping = (struct mapping){(uintptr_t)address, size, device_name, {st.st_dev, st.st_ino}, NULL};
    return WIRE_OK;
}

static void cpu_unmap(struct backend *backend, struct mapping *mapping) {
    (void)backend;
    munmap((void *)(uintptr_t)mapping->address, mapping->size);
}

static struct group *cpu_group_open(struct backend *backend) {
    struct cpu_group *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->base.backend = backend;
    return &group->base;
}

static void cpu_group_close(struct group *group) {
    free(group);
}

static enum wire_status cpu_queue_open(struct group *group, struct wire_string device,
                                       struct timeline *timeline, struct queue **queue,
                                       char why[PROBLEM_WHY]) {
    (void)timeline; /* is written by job_end alone */
    struct cpu_queue *q = calloc(1, sizeof *q);
    (void)device; /* is this one: serves has said so */
    if (!q)
        return backend_refuse(why, WIRE_NO_MEMORY, "stream: the daemon is out of memory");
    struct cpu_backend *cpu = (struct cpu_backend *)group->backend;
    q->base = (struct queue){group, device_name, &cpu->pace};
    q->pool = cpu->pool;
    q->lane.group = &((struct cpu_group *)group)->pool;
    *queue = &q->base;
    return WIRE_OK;
}

static bool cpu_queue_close(struct queue *queue) {
    struct cpu_queue *q = (struct cpu_queue *)queue;
    if (!pool_lane_close(q->pool, &q->lane))
        return false;
    free(q);
    return true;
}

static bool is_small(const struct problem *p) {
    int64_t in_batch = (p->T + p->C - 1) / p->C;
    double chunks = (double)p->B * (double)p->HV * (double)in_batch;
    return p->N <= INLINE_SEQUENCES && chunks * (double)cpu_item_cost(p) <= INLINE_NS;
}

static void cpu_submit(struct queue *queue, struct job *job) {
    struct cpu_queue *q = (struct cpu_queue *)queue;
    struct pool_task *task = &task_of(job)->task;
    task->begin = task_begin;
    task->run = task_run;
    task->end = task_end;
    if (!pool_lane_idle(&q->lane) || (job->status == WIRE_OK && !is_small(&job->problem))) {
        pool_submit(q->pool, &q->lane, task);
        return;
    }
    task_begin(task);
    if (task->items > 0)
        cpu_job_run(&task_of(job)->cpu, 0, task->items,
                    ((struct cpu_backend *)queue->group->backend)->scratch);
    task_end(task);
}

const struct backend_ops cpu_backend = {
    .name = "cpu",
    .job_size = sizeof(struct cpu_task),
    .open = cpu_open,
    .close = cpu_close,
    .detail = cpu_detail,
    .threads = cpu_threads,
    .lives = cpu_lives,
    .devices = cpu_devices,
    .serves = cpu_serves,
    .maps = cpu_maps,
    .map = cpu_map,
    .unmap = cpu_unmap,
    .group_open = cpu_group_open,
    .group_close = cpu_group_close,
    .queue_open = cpu_queue_open,
    .queue_close = cpu_queue_close,
    .submit = cpu_submit,
};
