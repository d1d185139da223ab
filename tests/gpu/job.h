/*
 * job.h - a fixture's problem as a job of libkdad's: on a daemon, or in this process.
 *
 * One connection and one stream at a time. All functions fail the running test when something else happens
 * than they say.
 */
#ifndef TESTS_GPU_JOB_H
#define TESTS_GPU_JOB_H

#include "client/kdad.h"
#include "tests/gpu/gpu.h"
#include "tests/harness.h"

extern struct harness job_server;
extern struct kdad_connection *job_connection;
extern struct kdad_stream *job_stream;

/* For check's fixtures: a daemon with the CUDA backend of its own, or none, and a stream on gpu_open's. */
void job_setup_daemon(void);
void job_teardown_daemon(void);
void job_setup_local(void);
void job_teardown_local(void);

/* Submits; waits for nothing. */
kdad_ticket job_submit(const struct gpu_fixture *g);
kdad_status job_try(const struct gpu_fixture *g); /* may be refused */

/* For fixture_runner: results are read in the stream's order, and only then kdad_wait is asked. */
void job_run(struct fixture *f);

/* A few small jobs with values to compare, by job_run. */
void job_compare_some(uint64_t number);

/* A suite of cases, each test of its own name so that CK_RUN_CASE can name it. Returns main's exit status. */
struct job_test {
    const TTest *test;
    SFun setup, teardown;
};
int job_suite(const char *name, const struct job_test *tests, size_t count);

#endif
