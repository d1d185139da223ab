/*
 * test_jobs.c - jobs on a GPU, through a real daemon and in this process: values, the order of the trainer's
 * stream, refusals, CUDA graphs.
 */
#ifdef HAVE_CUDA

#include "tests/gpu/job.h"

#include <math.h>
#include <string.h>

START_TEST(values_are_right) {
    for (int i = 0; i < 12; i++) {
        struct shape s = plain;
        s.C = chunk_sizes[i % CHUNK_SIZES];
        s.layout = (enum layout)(i % 4);
        s.in_place = i % 3 == 1;
        s.K = i % 5 == 0 ? 100 : 128;
        if (s.in_place && s.layout == BROADCAST)
            s.layout = GAPS;
        if (i % 4 == 3) {
            s.N = 3;
            s.ends[0] = 40;
            s.ends[1] = 40;
            s.ends[2] = s.T - 5;
            s.B = 1;
            s.cu = DTYPE_I64;
        }
        compare(&s, 100 + (uint64_t)i);
    }
    print_worst("jobs");
}
END_TEST

/* Each job adds to its own outputs: 200 in place, one behind the other, with nothing waited for. */
START_TEST(two_hundred_jobs_keep_order) {
    struct shape s = plain;
    struct gpu_fixture g, h;
    s.in_place = true;
    reseed(5);
    struct fixture f = make(&s);
    reseed(5);
    struct fixture alone = make(&s);
    gpu_fixture_open(&g, &f);
    for (kdad_ticket i = 1; i <= 200; i++)
        ck_assert_uint_eq(job_submit(&g), i);
    gpu_fixture_close(&g);
    gpu_fixture_open(&h, &alone);
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(kdad_wait(job_stream, job_submit(&h), KDAD_DEFAULT_TIMEOUT), KDAD_OK);
    }
    gpu_fixture_close(&h);
    struct outputs a = gather(&f, OPERAND_DQ_OUT), b = gather(&alone, OPERAND_DQ_OUT);
    assert_equal(&a, &b);
    free_outputs(&a);
    free_outputs(&b);
    destroy(&f);
    destroy(&alone);
}
END_TEST

/* An input that the trainer's stream writes late: a long series of memsets and copies stands before it. */
START_TEST(a_job_sees_what_was_put_before_it) {
    const struct gpu *gpu = gpu_open();
    struct shape s = plain;
    struct gpu_fixture g;
    reseed(6);
    struct fixture f = make(&s);
    gpu_fixture_open(&g, &f);
    size_t bytes = f.bytes[OPERAND_G];
    CUdeviceptr late = gpu_alloc(bytes), load = gpu_alloc((size_t)1 << 30);
    gpu_write(late, f.memory[OPERAND_G], bytes);
    gpu_ok(gpu->driver->MemsetD8Async(g.memory[OPERAND_G], 0xff, bytes, gpu->stream)); /* NaN until later */
    gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    for (int i = 0; i < 50; i++)
        gpu_ok(gpu->driver->MemsetD8Async(load, (unsigned char)i, (size_t)1 << 30, gpu->stream));
    gpu_ok(gpu->driver->MemcpyDtoDAsync(g.memory[OPERAND_G], late, bytes, gpu->stream));
    job_submit(&g);
    gpu_ok(
        gpu->driver->MemsetD8Async(g.memory[OPERAND_G], 0xff, bytes, gpu->stream)); /* and again behind it */
    gpu_fixture_close(&g);
    struct outputs out = gather(&f, OPERAND_DQ_OUT);
    for (size_t i = 0; i < out.count[0]; i++)
        ck_assert(isfinite(out.of[0][i]));
    free_outputs(&out);
    gpu_free(late);
    gpu_free(load);
    destroy(&f);
}
END_TEST

/* The same address, freed and allocated again, with other contents. */
START_TEST(an_address_may_be_used_again) {
    for (int i = 0; i < 20; i++)
        compare(&plain, 300 + (uint64_t)i);
}
END_TEST

START_TEST(bad_cu_seqlens_are_told) {
    struct shape s = plain;
    struct gpu_fixture g;
    const int64_t bad[3][4] = {{1, 2, 3, 4}, {0, 50, 40, 60}, {0, 1, 2, 100000}};
    const char *const sentences[3] = {"job 1: cu_seqlens: does not start at 0", "job 2: cu_seqlens: falls",
                                      "job 3: cu_seqlens: ends beyond T"};
    s.B = 1;
    s.N = 3;
    s.ends[0] = 10;
    s.ends[1] = 20;
    s.ends[2] = 30;
    s.cu = DTYPE_I64;
    for (int i = 0; i < 3; i++) {
        reseed(7);
        struct fixture f = make(&s);
        memcpy(f.cu, bad[i], sizeof bad[i]);
        gpu_fixture_open(&g, &f);
        ck_assert_int_eq(kdad_wait(job_stream, job_submit(&g), KDAD_DEFAULT_TIMEOUT), KDAD_BAD_DATA);
        ck_assert_str_eq(kdad_error(), sentences[i]);
        gpu_fixture_close(&g);
        struct outputs in = gather(&f, OPERAND_DQ), out = gather(&f, OPERAND_DQ_OUT);
        assert_equal(&in, &out);
        free_outputs(&in);
        free_outputs(&out);
        destroy(&f);
    }
}
END_TEST

/* A graph of three jobs in place, launched ten times with changed inputs, is thirty jobs. */
START_TEST(a_graph_is_its_jobs) {
    enum { CAPTURED = 3, LAUNCHES = 10 };
    const struct gpu *gpu = gpu_open();
    struct shape s = plain;
    struct gpu_fixture g, h;
    struct kdad_stats stats;
    CUgraph graph;
    CUgraphExec exec;
    s.in_place = true;
    reseed(8);
    struct fixture f = make(&s);
    reseed(8);
    struct fixture alone = make(&s);
    reseed(9);
    struct fixture other = make(&s);
    gpu_fixture_open(&g, &f);
    gpu_fixture_open(&h, &alone);
    gpu_ok(gpu->driver->StreamSynchronize(gpu->stream));
    gpu_graph_begin();
    for (int i = 0; i < CAPTURED; i++)
        ck_assert_uint_eq(job_submit(&g), 0);
    gpu_graph_end(&graph, &exec);
    kdad_get_stats(job_connection, &stats);
    ck_assert_uint_eq(stats.jobs_captured, CAPTURED);
    for (int i = 0; i < LAUNCHES; i++) {
        if (i == LAUNCHES / 2) { /* another g from here on */
            gpu_write(g.memory[OPERAND_G], other.memory[OPERAND_G], f.bytes[OPERAND_G]);
            gpu_write(h.memory[OPERAND_G], other.memory[OPERAND_G], f.bytes[OPERAND_G]);
        }
        gpu_graph_launch(exec);
        for (int j = 0; j < CAPTURED; j++)
            job_submit(&h);
    }
    gpu_fixture_close(&g);
    gpu_fixture_close(&h);
    gpu_graph_free(graph, exec);
    struct outputs a = gather(&f, OPERAND_DQ_OUT), b = gather(&alone, OPERAND_DQ_OUT);
    assert_equal(&a, &b);
    free_outputs(&a);
    free_outputs(&b);
    destroy(&f);
    destroy(&alone);
    destroy(&other);
}
END_TEST

/* No other process can work inside a graph. The stream is as it was afterwards. */
START_TEST(a_daemon_takes_no_part_in_a_graph) {
    struct gpu_fixture g;
    CUgraph graph;
    CUgraphExec exec;
    reseed(10);
    struct fixture f = make(&plain);
    gpu_fixture_open(&g, &f);
    gpu_ok(gpu_open()->driver->StreamSynchronize(gpu_open()->stream));
    gpu_graph_begin();
    ck_assert_int_eq(job_try(&g), KDAD_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(kdad_error(), "local:"));
    gpu_graph_end(&graph, &exec);
    gpu_graph_free(graph, exec);
    gpu_fixture_close(&g);
    destroy(&f);
    job_compare_some(600);
}
END_TEST

int main(void) {
    const struct {
        const TTest *test;
        bool daemon, local;
    } tests[] = {
        {values_are_right, true, true},
        {two_hundred_jobs_keep_order, true, true},
        {a_job_sees_what_was_put_before_it, true, true},
        {an_address_may_be_used_again, true, true},
        {bad_cu_seqlens_are_told, true, true},
        {a_graph_is_its_jobs, false, true},
        {a_daemon_takes_no_part_in_a_graph, true, false},
    };
    struct job_test list[2 * (sizeof tests / sizeof tests[0])];
    size_t count = 0;
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (tests[i].daemon)
            list[count++] = (struct job_test){tests[i].test, job_setup_daemon, job_teardown_daemon};
        if (tests[i].local)
            list[count++] = (struct job_test){tests[i].test, job_setup_local, job_teardown_local};
    }
    return job_suite("gpu jobs", list, count);
}

#else
int main(void) {
    return 77; /* skipped: a build without CUDA */
}
#endif
