#include "kernels/cpu/runner.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <stdlib.h>

enum { SLICE_NS = 100000 };

struct cpu_runner {
    struct pool *pool;
    pthread_mutex_t lock; /* for what follows; the pool's own is taken before it */
    pthread_cond_t changed;
    uint64_t idle; /* how often a lane became idle */
};

/* A caller's job, in its frame. */
struct run {
    struct pool_task task;
    struct cpu_job job;
};

static void begin(struct pool_task *task) {
    const struct cpu_job *job = &((struct run *)task)->job;
    int64_t cost = cpu_item_cost(&job->problem);
    task->items = job->items;
    task->grain = cost > 0 && cost < SLICE_NS ? SLICE_NS / cost : 1;
}

static void run_items(struct pool_task *task, int64_t first, int64_t count, void *scratch) {
    cpu_job_run(&((struct run *)task)->job, first, count, scratch);
}

static void end(struct pool_task *task) {
    cpu_job_end(&((struct run *)task)->job);
}

static void lane_idle(void *argument) {
    struct cpu_runner *r = argument;
    pthread_mutex_lock(&r->lock);
    r->idle++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static uint64_t count_idle(struct cpu_runner *r) {
    pthread_mutex_lock(&r->lock);
    uint64_t idle = r->idle;
    pthread_mutex_unlock(&r->lock);
    return idle;
}

static void wait_idle(struct cpu_runner *r, uint64_t before) {
    pthread_mutex_lock(&r->lock);
    while (r->idle == before)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

struct cpu_runner *cpu_runner_start(void) {
    struct cpu_runner *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->pool = pool_start(0, cpu_scratch_size(), lane_idle, r);
    if (r->pool)
        return r;
    cpu_runner_stop(r);
    return NULL;
}

void cpu_runner_stop(struct cpu_runner *r) {
    if (!r)
        return;
    pool_stop(r->pool);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

bool cpu_runner_run(struct cpu_runner *r, const struct problem *p, void *const data[OPERAND_COUNT],
                    char why[PROBLEM_WHY]) {
    struct run run = {.task = {.begin = begin, .run = run_items, .end = end}};
    struct pool_group group = {0};
    struct pool_lane lane = {.group = &group};
    if (problem_is_empty(p))
        return true;
    if (!cpu_job_begin(&run.job, p, data, why)) {
        cpu_job_copy_through(p, data);
        return false;
    }
    pool_submit(r->pool, &lane, &run.task);
    uint64_t before = count_idle(r);
    while (!pool_lane_close(r->pool, &lane)) {
        wait_idle(r, before);
        before = count_idle(r);
    }
    return true;
}
