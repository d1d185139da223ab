/*
 * soak [OPTION]... SECONDS - many clients with random jobs at one daemon, of whom some are killed now and
 * then; or the daemon is. Every result must have the right bits, every loss must have been told, and the
 * daemon's memory and descriptors must stay as they are. Prints a table with a bar for the daemon's memory.
 *
 *   --clients N            clients at once; default 8
 *   --kill-clients MS      one is killed each so many milliseconds, about; default 500; 0: none
 *   --kill-daemon MS       the daemon likewise; default 0: never
 *   --seed N               of all that is random
 *
 * Exit codes: 0 all as it must be, 1 not so, 2 wrong usage.
 */
#include "tests/soak/trainer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS_MAX = 256, ROWS = 20, TICK_MS = 10, BAR = 30, END_S = 120, LONG_S = 60 };

struct shared {
    bool stop;
    struct trainer_slot slot[CLIENTS_MAX];
};

static struct {
    int clients, seconds;
    unsigned kill_clients_ms, kill_daemon_ms, seed;
} options = {.clients = 8, .kill_clients_ms = 500, .seed = 1};

static struct shared *shared;
static pid_t clients[CLIENTS_MAX], daemon_pid;
static int clients_killed, daemons_killed, problems;
static char directory[] = "/tmp/kdad-soak-XXXXXX", socket_path[64], program[PATH_MAX];

static void complain(const char *what) {
    printf("FAILED: %s\n", what);
    problems++;
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* --- processes ----------------------------------------------------------------------------------------- */

/* bin/kdad of the build that this program lies in. */
static bool find_daemon(void) {
    char own[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length <= 0)
        return false;
    own[length] = 0;
    for (int up = 0; up < 2 && strrchr(own, '/'); up++)
        *strrchr(own, '/') = 0;
    return snprintf(program, sizeof program, "%s/bin/kdad", own) < (int)sizeof program &&
           access(program, X_OK) == 0;
}

static bool start_daemon(void) {
    int ready[2];
    char number[16], byte;
    if (pipe2(ready, O_CLOEXEC) < 0)
        return false;
    daemon_pid = fork();
    if (daemon_pid == 0) {
        snprintf(number, sizeof number, "%d", fcntl(ready[1], F_DUPFD, 10));
        execl(program, program, "--config", "/dev/null", "--backend", "cpu", "--quiet", "--ready-fd", number,
              (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    bool served = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    return served;
}

static void start_client(int i) {
    static uint64_t serial;
    uint64_t seed = options.seed * 1000003ULL + ++serial;
    clients[i] = fork();
    if (clients[i] == 0) {
        trainer_run(&shared->slot[i], seed, &shared->stop);
        _exit(0);
    }
}

/* One that ended by itself has crashed. */
static void look_for_ends(void) {
    int status;
    for (int i = 0; i < options.clients; i++) {
        if (waitpid(clients[i], &status, WNOHANG) != clients[i])
            continue;
        printf("client %d ended with wait status %#x\n", i, status);
        complain("a client ended");
        start_client(i);
    }
    if (waitpid(daemon_pid, &status, WNOHANG) == daemon_pid) {
        printf("the daemon ended with wait status %#x\n", status);
        complain("the daemon ended");
        start_daemon();
    }
}

static void kill_client(void) {
    int i = rand() % options.clients;
    kill(clients[i], SIGKILL);
    waitpid(clients[i], NULL, 0);
    clients_killed++;
    start_client(i);
}

static void kill_daemon(void) {
    kill(daemon_pid, SIGKILL);
    waitpid(daemon_pid, NULL, 0);
    daemons_killed++;
    if (!start_daemon())
        complain("the daemon does not start again");
}

/* --- what is measured ---------------------------------------------------------------------------------- */

static int count_descriptors(void) {
    char path[64];
    int count = -2;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon_pid);
    DIR *fds = opendir(path);
    while (fds && readdir(fds))
        count++;
    if (fds)
        closedir(fds);
    return count;
}

/* The daemon's own memory in KiB: what it shares with clients is theirs. */
static long own_memory(void) {
    char path[64], line[200];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)daemon_pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "RssAnon: %ld", &kib);
    if (file)
        fclose(file);
    return kib;
}

struct row {
    uint64_t ms;
    struct trainer_slot sum;
    long memory;
    int descriptors;
};

static struct row measure(uint64_t start) {
    struct row row = {.ms = now_ms() - start, .memory = own_memory(), .descriptors = count_descriptors()};
    for (int i = 0; i < options.clients; i++) {
        const struct trainer_slot *s = &shared->slot[i];
        row.sum.connected += __atomic_load_n(&s->connected, __ATOMIC_RELAXED);
        row.sum.done += __atomic_load_n(&s->done, __ATOMIC_RELAXED);
        row.sum.wrong += __atomic_load_n(&s->wrong, __ATOMIC_RELAXED);
        row.sum.lost += __atomic_load_n(&s->lost, __ATOMIC_RELAXED);
        row.sum.unexpected += __atomic_load_n(&s->unexpected, __ATOMIC_RELAXED);
    }
    return row;
}

static void print_row(const struct row *row) {
    static long scale;
    char bar[BAR + 1];
    if (scale == 0)
        scale = 2 * row->memory / BAR + 1;
    long length = row->memory / scale < BAR ? row->memory / scale : BAR;
    memset(bar, '#', (size_t)length);
    bar[length] = 0;
    printf("%7.1f %9llu %6llu %6llu %10llu %8llu %7d %7d %5d %8ld  %s\n", (double)row->ms * 1e-3,
           (unsigned long long)row->sum.done, (unsigned long long)row->sum.wrong,
           (unsigned long long)row->sum.lost, (unsigned long long)row->sum.unexpected,
           (unsigned long long)row->sum.connected, clients_killed, daemons_killed, row->descriptors,
           row->memory, bar);
}

/* --- the run ------------------------------------------------------------------------------------------- */

static uint64_t next_time(uint64_t now, unsigned about_ms) {
    return about_ms ? now + about_ms / 2 + (unsigned)rand() % about_ms : UINT64_MAX;
}

/* Returns the daemon's memory after a quarter of the time. */
static long soak(uint64_t start) {
    uint64_t row_ms = (uint64_t)options.seconds * 1000 / ROWS, row_at = start + row_ms, now = start;
    uint64_t client_at = next_time(now, options.kill_clients_ms);
    uint64_t daemon_at = next_time(now, options.kill_daemon_ms);
    long memory = 0;
    printf("%7s %9s %6s %6s %10s %8s %7s %7s %5s %8s\n", "seconds", "jobs", "wrong", "lost", "unexpected",
           "connects", "killed", "daemons", "fds", "KiB");
    for (int rows = 0; rows < ROWS;) {
        usleep(TICK_MS * 1000);
        now = now_ms();
        look_for_ends();
        if (now >= client_at) {
            kill_client();
            client_at = next_time(now, options.kill_clients_ms);
        }
        if (now >= daemon_at) {
            kill_daemon();
            daemon_at = next_time(now, options.kill_daemon_ms);
        }
        if (now < row_at)
            continue;
        struct row row = measure(start);
        print_row(&row);
        row_at += row_ms;
        if (++rows == ROWS / 4)
            memory = row.memory;
    }
    return memory;
}

static void stop_clients(void) {
    __atomic_store_n(&shared->stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < options.clients; i++) {
        int status = 0, waited = 0;
        while (waitpid(clients[i], &status, WNOHANG) == 0 && waited++ < END_S * 100)
            usleep(10000);
        if (waited > END_S * 100) {
            complain("a client hangs");
            kill(clients[i], SIGKILL);
            waitpid(clients[i], NULL, 0);
        } else if (status != 0) {
            complain("a client crashed");
        }
    }
}

static void judge(uint64_t start, int descriptors, long memory) {
    struct row row = measure(start);
    for (int i = 0; i < 500 && row.descriptors > descriptors; i++) {
        usleep(10000);
        row = measure(start);
    }
    print_row(&row);
    if (row.sum.done == 0)
        complain("no job was done");
    if (row.sum.wrong > 0)
        complain("wrong results");
    if (row.sum.unexpected > 0)
        complain("errors that must not be");
    if (row.sum.lost > 0 && options.kill_daemon_ms == 0)
        complain("jobs were lost, and no daemon was");
    if (row.descriptors > descriptors)
        complain("the daemon has more descriptors than before the first client");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* they keep what was freed */
    (void)memory;
#else
    if (options.kill_daemon_ms == 0 && row.memory > memory + memory / 4 + 2048)
        complain("the daemon's memory has grown since a quarter of the time had passed");
#endif
    for (int i = 0; i < options.clients; i++) {
        if (shared->slot[i].words[0])
            printf("client %d: %s\n", i, shared->slot[i].words);
        if (shared->slot[i].done == 0 && options.seconds >= LONG_S)
            complain("a client got no job done");
    }
}

static bool read_options(int argc, char **argv) {
    static const struct option list[] = {{"clients", required_argument, NULL, 'c'},
                                         {"kill-clients", required_argument, NULL, 'k'},
                                         {"kill-daemon", required_argument, NULL, 'd'},
                                         {"seed", required_argument, NULL, 's'},
                                         {NULL, 0, NULL, 0}};
    int option;
    while ((option = getopt_long(argc, argv, "", list, NULL)) >= 0) {
        if (option == '?')
            return false;
        unsigned number = (unsigned)atoi(optarg);
        if (option == 'c')
            options.clients = (int)number;
        else if (option == 'k')
            options.kill_clients_ms = number;
        else if (option == 'd')
            options.kill_daemon_ms = number;
        else
            options.seed = number;
    }
    options.seconds = optind + 1 == argc ? atoi(argv[optind]) : 0;
    return options.seconds > 0 && options.clients > 0 && options.clients <= CLIENTS_MAX;
}

int main(int argc, char **argv) {
    int status = 0;
    if (!read_options(argc, argv)) {
        fputs("Usage: soak [--clients N] [--kill-clients MS] [--kill-daemon MS] [--seed N] SECONDS\n",
              stderr);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !mkdtemp(directory) || !find_daemon())
        return 1;
    snprintf(socket_path, sizeof socket_path, "%s/kdad.sock", directory);
    setenv("KDAD_SOCKET", socket_path, 1);
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* children must not have anything to write */
    srand(options.seed);
    printf("seed %u, %d clients\n", options.seed, options.clients);
    if (!start_daemon())
        return 1;
    int descriptors = count_descriptors();
    for (int i = 0; i < options.clients; i++)
        start_client(i);
    uint64_t start = now_ms();
    long memory = soak(start);
    stop_clients();
    judge(start, descriptors, memory);
    kill(daemon_pid, SIGTERM);
    waitpid(daemon_pid, &status, 0);
    if (status != 0)
        complain("the daemon does not stop with 0");
    unlink(socket_path);
    rmdir(directory);
    return problems > 0;
}
