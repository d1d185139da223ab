/*
 * Each allocation, descriptor, mapping, send, receive and thread of a daemon's life, and then of a client's,
 * fails at its n-th call, for all n until a run passes. The other side gets a clear error or notices nothing;
 * a daemon that goes on serves the next client and keeps no descriptor and no block; a client's library comes
 * out of it as good as new.
 *
 * test_faults [SIDE:KIND [CALL]], as "client:alloc 17". Unless KDAD_FULL is set, of the calls behind the
 * first 24 of a kind each fourth fails.
 */
#include "tests/fault/faulty.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const kinds[] = {"alloc", "descriptor", "map", "send", "receive", "thread"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int descriptors; /* of a daemon that serves nobody */
static long blocks;     /* at the end of one that nothing befell */

/* How runs ended. */
struct tally {
    int runs, unnoticed, told, ended;
};

static void measure_daemon(void) {
    struct faulty_daemon daemon;
    faulty_daemon_start(&daemon, (struct fault){0});
    if (!daemon.served) {
        faulty_problem("kdad does not start");
        return;
    }
    faulty_session_good("without a fault");
    faulty_session_good("without a fault");
    for (int i = 0; i < 500; i++) { /* until both have gone */
        int now = faulty_daemon_descriptors(&daemon);
        if (i == 0 || now < descriptors)
            descriptors = now;
        usleep(1000);
    }
    faulty_daemon_stop(&daemon, "without a fault");
    blocks = faulty_live();
}

/* One run with a fault in the daemon. False if the call did not come. */
static bool run_daemon(struct fault fault, struct tally *tally) {
    char what[300] = "the run behind the last fault";
    struct faulty_daemon daemon;
    int code = 0;
    faulty_daemon_start(&daemon, fault);
    if (daemon.served)
        code = faulty_session_end(faulty_session_start((struct fault){0}, false), "beside a fault", 0);
    bool hit = faulty_hit(what, sizeof what);
    if (faulty_daemon_ended(&daemon)) {
        faulty_daemon_check_exit(&daemon, what);
        tally->ended++;
    } else {
        if (code == 4)
            faulty_problem("%s: the session does not come out of it", what);
        if (hit)
            faulty_session_good(what);
        faulty_daemon_settles(&daemon, descriptors, what);
        faulty_daemon_stop(&daemon, what);
        hit = faulty_hit(what, sizeof what); /* or when it stopped */
        if (faulty_live() != blocks)
            faulty_problem("%s: the daemon stops with %ld blocks, not %ld", what, faulty_live(), blocks);
        tally->told += hit && code != 0;
        tally->unnoticed += hit && code == 0;
    }
    tally->runs += hit;
    return hit;
}

/* One run with a fault in the client. */
static bool run_client(struct faulty_daemon *daemon, struct fault fault, struct tally *tally) {
    char what[300] = "the run behind the last fault";
    int code = faulty_session_end(faulty_session_start(fault, false), "with a fault", 0);
    bool hit = faulty_hit(what, sizeof what);
    if (code == 1 || code > 128)
        faulty_problem("… that was %s", what);
    if (code == 4)
        faulty_problem("%s: the session does not come out of it", what);
    faulty_daemon_settles(daemon, descriptors, what);
    tally->runs += hit;
    tally->told += hit && code != 0;
    tally->unnoticed += hit && code == 0;
    return hit;
}

static void print_tally(const char *side, const char *kind, const struct tally *t) {
    printf("%-8s %-12s %7d %10d %7d %7d\n", side, kind, t->runs, t->unnoticed, t->told, t->ended);
}

static bool is_chosen(const char *only, const char *side, const char *kind) {
    char both[32];
    snprintf(both, sizeof both, "%s:%s", side, kind);
    return !only || strcmp(only, both) == 0;
}

static unsigned long step(unsigned long n) {
    return n < 24 || getenv("KDAD_FULL") ? 1 : 4;
}

int main(int argc, char **argv) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    puts("skipped: sanitizers have functions of their own in these places");
    return 77;
#endif
    const char *only = argc > 1 ? argv[1] : NULL;
    unsigned long first = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    if (!faulty_begin())
        return 1;
    measure_daemon();
    printf("%-8s %-12s %7s %10s %7s %7s\n", "side", "calls", "failed", "unnoticed", "told", "ended");
    for (int k = 0; k < KINDS; k++) {
        struct tally tally = {0};
        unsigned long n = first ? first : 1;
        if (!is_chosen(only, "daemon", kinds[k]))
            continue;
        while (run_daemon((struct fault){kinds[k], n, "fail"}, &tally) && !first)
            n += step(n);
        print_tally("daemon", kinds[k], &tally);
    }
    struct faulty_daemon daemon;
    faulty_daemon_start(&daemon, (struct fault){0});
    for (int k = 0; k < KINDS; k++) {
        struct tally tally = {0};
        unsigned long n = first ? first : 1;
        if (!is_chosen(only, "client", kinds[k]))
            continue;
        while (run_client(&daemon, (struct fault){kinds[k], n, "fail"}, &tally) && !first)
            n += step(n);
        print_tally("client", kinds[k], &tally);
    }
    faulty_daemon_stop(&daemon, "at the end");
    return faulty_end() != 0;
}
