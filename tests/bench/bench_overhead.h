/*
 * bench_overhead.h - what the way through the daemon costs the smallest real job (B, T, H 1, K 16).
 */
#ifndef TESTS_BENCH_OVERHEAD_H
#define TESTS_BENCH_OVERHEAD_H

#include <stdbool.h>

/* Starts the daemon at kdad_path for itself. In turns: a raw SOCK_SEQPACKET ping-pong of packets of the same
 * size between two processes, submit + kdad_wait, and what the daemon counts of a job by itself; then
 * pipelined submissions, counted by completions seen here, for each second of the daemon's processor time.
 * Returns 0, or 1 after a message. */
int bench_overhead(const char *kdad_path, bool json);

#endif
