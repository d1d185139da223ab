/*
 * main.c - kdad-bench: the cpu kernel against the direct formula, and the daemon's overhead.
 */
#include "tests/bench/bench_kernel.h"
#include "tests/bench/bench_overhead.h"

#include <stdio.h>
#include <string.h>

static int usage(void) {
    fputs("Usage: kdad-bench [--json] [kernel | overhead]...\n"
          "  kernel    the cpu kernel against the direct formula, a memory copy and its own arithmetic\n"
          "  overhead  the smallest job through a daemon, against a raw ping-pong between two processes\n"
          "Without a name, both. With --json, one object a line.\n",
          stderr);
    return 2;
}

int main(int argc, char **argv) {
    bool json = false, kernel = false, overhead = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "kernel") == 0)
            kernel = true;
        else if (strcmp(argv[i], "overhead") == 0)
            overhead = true;
        else
            return usage();
    }
    bool both = !kernel && !overhead;
    int failed = 0;
    if (kernel || both)
        failed |= bench_kernel(json);
    if (overhead || both)
        failed |= bench_overhead(KDAD_BINARY, json);
    return failed;
}
