/*
 * The pool: a lane's tasks run one after the other, lanes side by side, and a full lane does not hold back a
 * group with a single task.
 */
#include "kernels/cpu/pool.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct counted {
    struct pool_task task;
    int64_t items, grain;
    atomic_llong *ran;       /* items, over all tasks that share it */
    atomic_int *order;       /* the lane's: number of tasks ended */
    int number;              /* expected place in that order */
    atomic_bool in_order;    /* false if begin or end came out of turn, or items overlapped */
    pthread_barrier_t *meet; /* run waits here, if given */
    atomic_bool inside;      /* it has come to that */
    atomic_uchar seen[64];
    atomic_int *left; /* tasks not ended yet */
};

static void begin(struct pool_task *task) {
    struct counted *c = (struct counted *)task;
    if (atomic_load(c->order) != c->number)
        c->in_order = false;
    task->items = c->items;
    task->grain = c->grain;
}

static void run(struct pool_task *task, int64_t first, int64_t count, void *scratch) {
    struct counted *c = (struct counted *)task;
    if (((uintptr_t)scratch & 63) != 0)
        c->in_order = false;
    memset(scratch, 1, 4096);
    c->inside = true;
    if (c->meet)
        pthread_barrier_wait(c->meet);
    for (int64_t i = first; i < first + count; i++) {
        if (i < 64 && atomic_exchange(&c->seen[i], 1))
            c->in_order = false;
    }
    atomic_fetch_add(c->ran, count);
}

static void end(struct pool_task *task) {
    struct counted *c = (struct counted *)task;
    if (atomic_fetch_add(c->order, 1) != c->number)
        c->in_order = false;
    atomic_fetch_sub(c->left, 1);
}

static void fill(struct counted *c, int64_t items, int64_t grain, int number, atomic_llong *ran,
                 atomic_int *order, atomic_int *left) {
    memset(c, 0, sizeof *c);
    c->task.begin = begin;
    c->task.run = run;
    c->task.end = end;
    c->items = items;
    c->grain = grain;
    c->number = number;
    c->ran = ran;
    c->order = order;
    c->left = left;
    c->in_order = true;
    atomic_fetch_add(left, 1);
}

struct idle {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls;
};

static void on_idle(void *argument) {
    struct idle *idle = argument;
    pthread_mutex_lock(&idle->lock);
    idle->calls++;
    pthread_cond_signal(&idle->changed);
    pthread_mutex_unlock(&idle->lock);
}

/* Closes a lane and waits, as an owner does, for the call that says it is idle. */
static void close_lane(struct pool *pool, struct pool_lane *lane, struct idle *idle) {
    pthread_mutex_lock(&idle->lock);
    int calls = idle->calls;
    pthread_mutex_unlock(&idle->lock);
    while (!pool_lane_close(pool, lane)) {
        pthread_mutex_lock(&idle->lock);
        while (idle->calls == calls)
            pthread_cond_wait(&idle->changed, &idle->lock);
        calls = idle->calls;
        pthread_mutex_unlock(&idle->lock);
    }
}

START_TEST(lanes_keep_order_and_run_every_item_once) {
    enum { GROUPS = 3, LANES = 4, TASKS = 50 };
    struct idle idle = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct pool *pool = pool_start(4, 4096, on_idle, &idle);
    ck_assert_ptr_nonnull(pool);
    ck_assert_int_eq(pool_threads(pool), 4);
    struct pool_group groups[GROUPS] = {0};
    struct pool_lane *lanes[GROUPS * LANES];
    struct counted *tasks = calloc(GROUPS * LANES * TASKS, sizeof *tasks);
    atomic_int orders[GROUPS * LANES] = {0}, left = 0;
    atomic_llong ran = 0;
    long long expected = 0;
    for (int l = 0; l < GROUPS * LANES; l++) {
        lanes[l] = calloc(1, sizeof *lanes[l]);
        lanes[l]->group = &groups[l % GROUPS];
    }
    for (int t = 0; t < TASKS; t++) {
        for (int l = 0; l < GROUPS * LANES; l++) {
            struct counted *c = &tasks[l * TASKS + t];
            fill(c, (l * 7 + t) % 40, 1 + t % 5, t, &ran, &orders[l], &left);
            expected += c->items;
            pool_submit(pool, lanes[l], &c->task);
        }
    }
    for (int l = 0; l < GROUPS * LANES; l++) {
        close_lane(pool, lanes[l], &idle);
        free(lanes[l]); /* as the contract allows: a sanitizer sees who touches it later */
    }
    ck_assert_int_eq(left, 0);
    ck_assert_int_eq(ran, expected);
    for (int i = 0; i < GROUPS * LANES * TASKS; i++) {
        ck_assert_msg(tasks[i].in_order, "task %d ran out of turn", i);
        for (int64_t item = 0; item < 64; item++)
            ck_assert_int_eq(tasks[i].seen[item], item < tasks[i].items);
    }
    pool_stop(pool);
    free(tasks);
}
END_TEST

/* Both items can only finish if two threads are in the task at once. */
START_TEST(a_task_is_shared_by_threads) {
    struct idle idle = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct pool *pool = pool_start(2, 4096, on_idle, &idle);
    struct pool_group group = {0};
    struct pool_lane lane = {.group = &group};
    pthread_barrier_t meet;
    pthread_barrier_init(&meet, NULL, 2);
    atomic_int order = 0, left = 0;
    atomic_llong ran = 0;
    struct counted c;
    fill(&c, 2, 1, 0, &ran, &order, &left);
    c.meet = &meet;
    pool_submit(pool, &lane, &c.task);
    close_lane(pool, &lane, &idle);
    ck_assert_int_eq(ran, 2);
    pool_stop(pool);
    pthread_barrier_destroy(&meet);
}
END_TEST

/* Two lanes, even of one group, run side by side: each task waits for the other. */
START_TEST(lanes_run_side_by_side) {
    struct idle idle = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct pool *pool = pool_start(2, 4096, on_idle, &idle);
    struct pool_group group = {0};
    struct pool_lane lanes[2] = {{.group = &group}, {.group = &group}};
    pthread_barrier_t meet;
    pthread_barrier_init(&meet, NULL, 2);
    atomic_int orders[2] = {0}, left = 0;
    atomic_llong ran = 0;
    struct counted c[2];
    for (int i = 0; i < 2; i++) {
        fill(&c[i], 1, 1, 0, &ran, &orders[i], &left);
        c[i].meet = &meet;
    }
    for (int i = 0; i < 2; i++)
        pool_submit(pool, &lanes[i], &c[i].task);
    for (int i = 0; i < 2; i++)
        close_lane(pool, &lanes[i], &idle);
    pool_stop(pool);
    pthread_barrier_destroy(&meet);
}
END_TEST

/* One thread; a group queues 1,000 tasks behind a gate, then another group one: at most a slice comes first.
 */
struct gate {
    struct counted c;
    pthread_barrier_t open;
};

static void run_gate(struct pool_task *task, int64_t first, int64_t count, void *scratch) {
    (void)first;
    (void)count;
    (void)scratch;
    pthread_barrier_wait(&((struct gate *)task)->open);
}

static atomic_int single_came_after;
static atomic_llong crowd_ran;

static void end_single(struct pool_task *task) {
    single_came_after = (int)atomic_load(&crowd_ran);
    end(task);
}

START_TEST(a_crowd_does_not_hold_back_a_single_task) {
    enum { CROWD = 1000, SLICES = 10 };
    struct idle idle = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    struct pool *pool = pool_start(1, 4096, on_idle, &idle);
    struct pool_group crowd = {0}, small = {0}, gatekeeper = {0};
    struct pool_lane many = {.group = &crowd}, one = {.group = &small}, door = {.group = &gatekeeper};
    struct counted *tasks = calloc(CROWD, sizeof *tasks), single;
    atomic_int order_many = 0, order_one = 0, order_door = 0, left = 0;
    atomic_llong ran = 0;
    struct gate gate;
    pthread_barrier_init(&gate.open, NULL, 2);
    fill(&gate.c, 1, 1, 0, &ran, &order_door, &left);
    gate.c.task.run = run_gate;
    pool_submit(pool, &door, &gate.c.task);
    for (int i = 0; i < CROWD; i++) {
        fill(&tasks[i], SLICES, 1, i, &crowd_ran, &order_many, &left);
        pool_submit(pool, &many, &tasks[i].task);
    }
    fill(&single, 3, 1, 0, &ran, &order_one, &left);
    single.task.end = end_single;
    pool_submit(pool, &one, &single.task);
    pthread_barrier_wait(&gate.open);
    close_lane(pool, &one, &idle);
    close_lane(pool, &many, &idle);
    close_lane(pool, &door, &idle);
    ck_assert_int_le(single_came_after, 3); /* its three slices and the crowd's by turns */
    ck_assert_int_eq(crowd_ran, CROWD * SLICES);
    pool_stop(pool);
    pthread_barrier_destroy(&gate.open);
    free(tasks);
}
END_TEST

/* A thread waits inside a slice, as one that hangs would; others' tasks do not hide it, and an idle pool and
 * one that gets on are well. */
START_TEST(a_thread_that_hangs_is_noticed) {
    struct pool_group group = {0};
    struct pool_lane hung = {.group = &group}, other = {.group = &group};
    struct counted stuck, task;
    atomic_llong ran = 0;
    atomic_int order = 0, order_other = 0, left = 0;
    pthread_barrier_t meet;
    struct idle idle = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct pool *pool = pool_start(2, 4096, on_idle, &idle);
    ck_assert(pool_lives(pool) && pool_lives(pool));
    pthread_barrier_init(&meet, NULL, 2);
    fill(&stuck, 1, 1, 0, &ran, &order, &left);
    stuck.meet = &meet;
    pool_submit(pool, &hung, &stuck.task);
    while (!stuck.inside)
        sched_yield();
    pool_lives(pool); /* the first look at that slice */
    for (int i = 0; i < 3; i++) {
        fill(&task, 8, 1, i, &ran, &order_other, &left);
        pool_submit(pool, &other, &task.task);
        while (atomic_load(&left) > 1)
            sched_yield();
        ck_assert(!pool_lives(pool));
    }
    pthread_barrier_wait(&meet);
    close_lane(pool, &hung, &idle);
    close_lane(pool, &other, &idle);
    ck_assert(pool_lives(pool) && pool_lives(pool));
    pool_stop(pool);
    pthread_barrier_destroy(&meet);
}
END_TEST

START_TEST(processors_are_counted) {
    ck_assert_int_ge(pool_processors(), 1);
    struct pool *pool = pool_start(0, 0, NULL, NULL);
    ck_assert_int_eq(pool_threads(pool), pool_processors());
    pool_stop(pool);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pool");
    TCase *c = tcase_create("pool");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, lanes_keep_order_and_run_every_item_once);
    tcase_add_test(c, a_task_is_shared_by_threads);
    tcase_add_test(c, lanes_run_side_by_side);
    tcase_add_test(c, a_crowd_does_not_hold_back_a_single_task);
    tcase_add_test(c, a_thread_that_hangs_is_noticed);
    tcase_add_test(c, processors_are_counted);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
