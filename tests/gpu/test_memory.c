/*
 * test_memory.c - a trainer's memory on a GPU: freed, allocated anew, and of kinds that cannot be exported.
 */
#ifdef HAVE_CUDA

#include "tests/gpu/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A job whose output dq lies at the end of a large allocation. */
static void run_into(const struct gpu_fixture *small, CUdeviceptr large, size_t bytes) {
    struct gpu_fixture g = *small;
    g.address[OPERAND_DQ_OUT] = large + bytes - problem_extent(&g.host->p, OPERAND_DQ_OUT);
    ck_assert_int_eq(kdad_wait(job_stream, job_submit(&g), KDAD_DEFAULT_TIMEOUT), KDAD_OK);
}

/* What the trainer has freed goes back to the GPU with kdad_trim: most of the card, again and again. */
START_TEST(trimmed_memory_goes_back) {
    const struct gpu *gpu = gpu_open();
    size_t available, total;
    struct gpu_fixture g;
    reseed(11);
    struct fixture f = make(&plain);
    gpu_fixture_open(&g, &f);
    job_submit(&g);
    gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    gpu_ok(gpu->driver->MemGetInfo(&available, &total));
    size_t bytes = available / 10 * 8;
    for (int i = 0; i < 100; i++) {
        CUdeviceptr large = gpu_alloc(bytes);
        run_into(&g, large, bytes);
        gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
        gpu_free(large);
        ck_assert_int_eq(kdad_trim(job_connection), KDAD_OK);
    }
    gpu_fixture_close(&g);
    destroy(&f);
}
END_TEST

/* Without it, once it was not used for a while. */
START_TEST(idle_memory_goes_back) {
    const struct gpu *gpu = gpu_open();
    enum { POLLS = 100, POLL_MS = 100 };
    size_t available, now, total;
    struct gpu_fixture g;
    reseed(12);
    struct fixture f = make(&plain);
    gpu_fixture_open(&g, &f);
    job_submit(&g);
    gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    gpu_ok(gpu->driver->MemGetInfo(&available, &total));
    size_t bytes = available / 10 * 8;
    CUdeviceptr large = gpu_alloc(bytes);
    run_into(&g, large, bytes);
    gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    gpu_free(large);
    int polls = 0;
    do {
        usleep(POLL_MS * 1000);
        gpu_ok(gpu->driver->MemGetInfo(&now, &total));
    } while (now < bytes && ++polls < POLLS);
    ck_assert_int_lt(polls, POLLS);
    printf("freed memory that nothing trims went back after %.1f s\n", (polls + 1) * POLL_MS * 1e-3);
    gpu_fixture_close(&g);
    destroy(&f);
}
END_TEST

/* Memory of a pool cannot be exported: such a job runs in this process. */
START_TEST(memory_of_a_pool_is_worked_on_here) {
    struct kdad_stats stats;
    gpu_use_allocator(GPU_POOL);
    job_compare_some(800);
    kdad_get_stats(job_connection, &stats);
    ck_assert_uint_eq(stats.jobs_in_process, 3);
    gpu_use_allocator(GPU_PLAIN);
    job_compare_some(800);
    kdad_get_stats(job_connection, &stats);
    ck_assert_uint_eq(stats.jobs_daemon, 3);
}
END_TEST

/* As PyTorch's expandable segments: the daemon maps them side by side. Addresses come again with other
 * segments behind them. */
START_TEST(segments_are_mapped_side_by_side) {
    enum { JOBS = 3, ROUNDS = 5 };
    struct kdad_stats stats;
    gpu_use_allocator(GPU_SEGMENTS);
    for (int i = 0; i < ROUNDS; i++)
        job_compare_some(900);
    kdad_get_stats(job_connection, &stats);
    ck_assert_uint_eq(stats.jobs_daemon, ROUNDS * JOBS);
    ck_assert_uint_eq(stats.jobs_in_process, 0);
}
END_TEST

/* Beyond the limit all is given back after each job, and mapped again for the next. */
static void setup_tight(void) {
    setenv("KDAD_MAPPED_BYTES", "1", 1);
    job_setup_daemon();
}

START_TEST(a_limit_of_what_is_mapped_holds) {
    const struct gpu *gpu = gpu_open();
    size_t available, total;
    struct gpu_fixture g;
    reseed(13);
    struct fixture f = make(&plain);
    gpu_fixture_open(&g, &f);
    job_submit(&g);
    gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    gpu_ok(gpu->driver->MemGetInfo(&available, &total));
    const size_t bytes = available / 10 * 8;
    for (int i = 0; i < 20; i++) {
        CUdeviceptr large = gpu_alloc(bytes);
        run_into(&g, large, bytes);
        gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
        gpu_free(large);
        job_submit(&g); /* without a trim: the release went before it */
        gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    }
    gpu_fixture_close(&g);
    destroy(&f);
}
END_TEST

int main(void) {
    const struct job_test tests[] = {
        {trimmed_memory_goes_back, job_setup_daemon, job_teardown_daemon},
        {idle_memory_goes_back, job_setup_daemon, job_teardown_daemon},
        {segments_are_mapped_side_by_side, job_setup_daemon, job_teardown_daemon},
        {a_limit_of_what_is_mapped_holds, setup_tight, job_teardown_daemon},
        {memory_of_a_pool_is_worked_on_here, job_setup_daemon, job_teardown_daemon},
    };
    return job_suite("gpu memory", tests, sizeof tests / sizeof tests[0]);
}

#else
int main(void) {
    return 77; /* skipped: a build without CUDA */
}
#endif
