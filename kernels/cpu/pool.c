#include "kernels/cpu/pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct pool_group *first, *last; /* listed groups, in the order of their turns */
    int sleeping;
    uint64_t turns, turns_seen; /* taken so far; when pool_lives last looked */
    bool listed_seen;
    bool stopping;
    void (*idle)(void *argument);
    void *argument;
    int threads; /* that run */
    struct pool_thread {
        struct pool *pool;
        pthread_t id;
        void *scratch;
        uint64_t turn, turn_seen; /* its number; 0: in none */
    } thread[];
};

/* --- queues: under the lock ---------------------------------------------------------------------------- */

static void list_group(struct pool *pool, struct pool_group *group) {
    group->listed = true;
    group->next = NULL;
    if (pool->first)
        pool->last->next = group;
    else
        pool->first = group;
    pool->last = group;
}

static void list_lane(struct pool *pool, struct pool_lane *lane) {
    struct pool_group *group = lane->group;
    lane->listed = true;
    lane->next = NULL;
    if (group->first)
        group->last->next = lane;
    else
        group->first = lane;
    group->last = lane;
    if (!group->listed)
        list_group(pool, group);
}

/* Takes out the lane whose turn it is; its group, if it has more lanes, goes to the end of the ring. */
static struct pool_lane *next_lane(struct pool *pool) {
    struct pool_group *group = pool->first;
    if (!group)
        return NULL;
    struct pool_lane *lane = group->first;
    pool->first = group->next;
    group->first = lane->next;
    lane->listed = false;
    group->listed = false;
    if (group->first)
        list_group(pool, group);
    return lane;
}

static void wake(struct pool *pool, bool all) {
    if (pool->sleeping == 0)
        return;
    if (all)
        pthread_cond_broadcast(&pool->work);
    else
        pthread_cond_signal(&pool->work);
}

/* --- threads ------------------------------------------------------------------------------------------- */

static void begin_task(struct pool *pool, struct pool_lane *lane) {
    struct pool_task *task = lane->first;
    lane->first = task->next;
    lane->current = task;
    pthread_mutex_unlock(&pool->lock);
    task->handed = task->finished = 0;
    task->begin(task);
    pthread_mutex_lock(&pool->lock);
}

static void run_slice(struct pool *pool, struct pool_lane *lane, void *scratch) {
    struct pool_task *task = lane->current;
    int64_t first = task->handed, left = task->items - first;
    int64_t count = left < task->grain ? left : task->grain;
    task->handed += count;
    if (task->handed < task->items) {
        list_lane(pool, lane);
        wake(pool, first == 0);
    }
    pthread_mutex_unlock(&pool->lock);
    task->run(task, first, count, scratch);
    pthread_mutex_lock(&pool->lock);
    task->finished += count;
}

/* Nothing may touch the lane after this if it became idle and closing: its owner may free it. */
static void end_task(struct pool *pool, struct pool_lane *lane) {
    struct pool_task *task = lane->current;
    pthread_mutex_unlock(&pool->lock);
    task->end(task);
    pthread_mutex_lock(&pool->lock);
    lane->current = NULL;
    if (lane->first) {
        __atomic_fetch_sub(&lane->count, 1, __ATOMIC_RELEASE);
        list_lane(pool, lane);
        return;
    }
    bool closing = lane->closing;
    __atomic_fetch_sub(&lane->count, 1, __ATOMIC_RELEASE);
    if (closing && pool->idle)
        pool->idle(pool->argument);
}

/* One turn. A lane that is not listed and has a current task belongs to the threads that run its last slices;
 * the one that finishes last ends the task. */
static void take_turn(struct pool *pool, struct pool_lane *lane, void *scratch) {
    if (!lane->current)
        begin_task(pool, lane);
    struct pool_task *task = lane->current;
    if (task->handed < task->items)
        run_slice(pool, lane, scratch);
    if (task->finished == task->items)
        end_task(pool, lane);
}

static void *thread_main(void *argument) {
    struct pool_thread *thread = argument;
    struct pool *pool = thread->pool;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct pool_lane *lane = next_lane(pool);
        if (lane) {
            thread->turn = ++pool->turns;
            take_turn(pool, lane, thread->scratch);
            thread->turn = 0;
        } else if (pool->stopping) {
            break;
        } else {
            pool->sleeping++;
            pthread_cond_wait(&pool->work, &pool->lock);
            pool->sleeping--;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* --- the owner's side ---------------------------------------------------------------------------------- */

/* The cgroup's quota in processors, rounded up; a large number without one. */
static int cgroup_processors(void) {
    char line[512], path[600];
    int processors = 1 << 20;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return processors;
    *path = 0;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", line + 3);
        }
    }
    fclose(f);
    f = *path ? fopen(path, "re") : NULL;
    if (!f)
        return processors;
    if (fgets(line, sizeof line, f)) {
        char *end;
        long long quota = strtoll(line, &end, 10);
        long long period = strtoll(end, NULL, 10);
        if (end != line && quota > 0 && period > 0 && (quota + period - 1) / period < processors)
            processors = (int)((quota + period - 1) / period);
    }
    fclose(f);
    return processors;
}

int pool_processors(void) {
    cpu_set_t set;
    int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = cgroup_processors();
    return affinity < quota ? affinity : quota;
}

static int start_thread(struct pool *pool, struct pool_thread *thread, size_t scratch) {
    thread->pool = pool;
    int error = posix_memalign(&thread->scratch, 64, scratch ? scratch : 64);
    if (error)
        return error;
    error = pthread_create(&thread->id, NULL, thread_main, thread);
    if (error)
        free(thread->scratch);
    else
        pthread_setname_np(thread->id, "kdad-pool");
    return error;
}

struct pool *pool_start(int threads, size_t scratch, void (*idle)(void *argument), void *argument) {
    if (threads <= 0)
        threads = pool_processors();
    struct pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof pool->thread[0]);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->idle = idle;
    pool->argument = argument;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the owner's */
    int error = 0;
    while (pool->threads < threads && !error) {
        error = start_thread(pool, &pool->thread[pool->threads], scratch);
        pool->threads += !error;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error) {
        pool_stop(pool);
        errno = error;
        return NULL;
    }
    return pool;
}

void pool_stop(struct pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->threads; i++) {
        pthread_join(pool->thread[i].id, NULL);
        free(pool->thread[i].scratch);
    }
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

bool pool_lives(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    bool lives = !pool->first || !pool->listed_seen || pool->turns != pool->turns_seen;
    pool->listed_seen = pool->first != NULL;
    pool->turns_seen = pool->turns;
    for (int i = 0; i < pool->threads; i++) {
        struct pool_thread *thread = &pool->thread[i];
        lives &= thread->turn == 0 || thread->turn != thread->turn_seen;
        thread->turn_seen = thread->turn;
    }
    pthread_mutex_unlock(&pool->lock);
    return lives;
}

int pool_threads(const struct pool *pool) {
    return pool->threads;
}

void pool_submit(struct pool *pool, struct pool_lane *lane, struct pool_task *task) {
    pthread_mutex_lock(&pool->lock);
    __atomic_fetch_add(&lane->count, 1, __ATOMIC_RELAXED);
    task->next = NULL;
    if (lane->first)
        lane->last->next = task;
    else
        lane->first = task;
    lane->last = task;
    if (!lane->current && !lane->listed) {
        list_lane(pool, lane);
        wake(pool, false);
    }
    pthread_mutex_unlock(&pool->lock);
}

bool pool_lane_idle(const struct pool_lane *lane) {
    return __atomic_load_n(&lane->count, __ATOMIC_ACQUIRE) == 0;
}

bool pool_lane_close(struct pool *pool, struct pool_lane *lane) {
    pthread_mutex_lock(&pool->lock);
    lane->closing = true;
    bool idle = lane->count == 0;
    pthread_mutex_unlock(&pool->lock);
    return idle;
}
