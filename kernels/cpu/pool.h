/*
 * pool.h - threads that share tasks out among groups of lanes.
 *
 * A task is cut into items that are independent of each other. A lane (a stream) runs its tasks one after the
 * other; lanes run side by side; a group (a client) holds lanes. A thread takes one slice at a time, a few
 * items of a lane's current task; the pool gives slices to the groups in turn, and inside a group to its
 * lanes in turn. So a group with a thousand tasks queued delays another's single task by at most a slice a
 * group.
 *
 * One mutex guards all queues; it is not held while begin, run or end are called. begin and end are called
 * once for each task, on whichever thread; a lane's next task begins after end of the one before it has
 * returned.
 */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pool;

struct pool_task {
    /* Set by the submitter. */
    void (*begin)(struct pool_task *task); /* sets items and grain; 0 items: straight to end */
    void (*run)(struct pool_task *task, int64_t first, int64_t count, void *scratch);
    void (*end)(struct pool_task *task); /* the task's memory is its owner's again */
    /* Set by begin. */
    int64_t items;
    int64_t grain; /* items of a slice, > 0 */
    /* The pool's. */
    struct pool_task *next;
    int64_t handed, finished; /* items */
};

/* Zero but for group when new. All else is the pool's. */
struct pool_lane {
    struct pool_group *group;
    struct pool_task *current;
    struct pool_task *first, *last; /* behind it */
    uint32_t count; /* tasks, the current one included; read without the lock by pool_lane_idle */
    bool listed;    /* in its group's ring: a thread may take a turn on it */
    bool closing;
    struct pool_lane *next;
};

/* Zero when new. */
struct pool_group {
    struct pool_lane *first, *last; /* listed lanes */
    bool listed;                    /* in the pool's ring */
    struct pool_group *next;
};

/* Starts threads, each with scratch bytes of its own aligned to 64. threads 0: one for each processor that
 * this process may use. idle (may be NULL) is called on a thread of the pool, with argument, whenever a
 * closing lane became idle. Returns NULL with errno. */
struct pool *pool_start(int threads, size_t scratch, void (*idle)(void *argument), void *argument);

/* Ends the threads and frees the pool. No task may be queued. */
void pool_stop(struct pool *pool);

int pool_threads(const struct pool *pool);

/* For a watchdog, at long intervals: false if since the last call a thread has been in one and the same turn,
 * or no turn was taken though lanes were listed. By one thread. */
bool pool_lives(struct pool *pool);

/* Processors that this process may use: by its affinity and, rounded up, by its cgroup's quota. */
int pool_processors(void);

/* Queues a task behind those of its lane. */
void pool_submit(struct pool *pool, struct pool_lane *lane, struct pool_task *task);

/* True if the lane has no task. Its only submitter may then run one itself, without the pool. */
bool pool_lane_idle(const struct pool_lane *lane);

/* Says that no task will be queued any more. Returns true if the lane is idle: the pool has forgotten it, its
 * memory and (once all its lanes are) its group's may be freed. Else idle will be called: ask again then. */
bool pool_lane_close(struct pool *pool, struct pool_lane *lane);

#ifdef __cplusplus
}
#endif
#endif
