#include "client/kdactl/bench_clients.h"

#include "client/deadline.h"
#include "client/kdactl/bench_series.h"
#include "client/kdactl/bench_worker.h"

#include <string.h>
#include <time.h>

enum { CLIENTS_MOST = 8, SHAPES = 2, ROUTES = 2, SOON_NS = 5000000 };

/* The first is the smallest job there is; both are over at once. */
static const struct bench_shape small[SHAPES] = {{1, 1, 1, 1, 16, 16}, {1, 64, 1, 1, 64, 64}};
static const struct bench_shape on_gpu[SHAPES] = {{1, 1024, 8, 8, 128, 64}, {1, 8192, 32, 32, 128, 64}};
static const struct bench_shape on_cpu[SHAPES] = {{1, 256, 4, 4, 64, 64}, {1, 512, 4, 4, 128, 64}};
static const int crowds[] = {1, 2, 4, 8};

/* How long is measured. */
struct plan {
    int rounds, jobs, batches, crowds;
    int64_t window_ns, look_ns;
};
static const struct plan whole = {5, 100, 10, 4, 250000000, 1000000000};
static const struct plan quick = {3, 20, 2, 2, 20000000, 100000000};

struct bench {
    const struct options *options;
    const char *gpu;
    int64_t pid;
    const struct plan *plan;
    const struct bench_shape *shapes;
    bool local;                                /* jobs can run in the client's process too */
    struct bench_worker workers[CLIENTS_MOST]; /* their devices are open */
    cJSON *object;
};

/* series: NULL if they are not to be kept. */
static enum exit_code add_samples(struct series *series, const double *samples, int count) {
    if (!series || series_add(series, samples, count))
        return EXIT_DONE;
    complain("out of memory");
    return EXIT_NO;
}

static enum exit_code add_rate(struct series *rates, const struct bench_work *work) {
    const double rate = (double)work->jobs * 1e9 / (double)(work->end_ns - work->start_ns);
    return add_samples(rates, &rate, 1);
}

/* Has one client measure, and keeps its samples, or its rate. */
static enum exit_code sample(const struct bench_worker *worker, const struct bench_order *order,
                             struct series *series) {
    struct bench_answer answer;
    enum exit_code code = bench_worker_ask(worker, order, &answer);
    if (code != EXIT_DONE)
        return code;
    return order->verb == BENCH_THROUGHPUT ? add_rate(series, &answer.work)
                                           : add_samples(series, answer.samples, answer.count);
}

/* The routes in turns, round by round, on the first client. A submission in this process runs the job itself
 * on the processor: that is no figure to compare with. */
static enum exit_code in_turns(struct bench *b, const struct bench_order *order, int rounds,
                               struct series series[ROUTES]) {
    enum exit_code code = EXIT_DONE;
    const bool compares = b->local && (order->verb != BENCH_SUBMIT || *b->gpu);
    for (int round = -1; round < rounds && code == EXIT_DONE; round++) { /* the first: to warm up */
        for (int local = 0; local <= compares && code == EXIT_DONE; local++) {
            struct bench_order turn = *order;
            turn.local = local;
            code = sample(&b->workers[0], &turn, round < 0 ? NULL : &series[local]);
        }
    }
    return code;
}

static void add_added(struct series series[ROUTES], cJSON *json, const char *name) {
    if (series[0].count > 0 && series[1].count > 0)
        cJSON_AddNumberToObject(json, name,
                                series_quantile(&series[0], 0.5) - series_quantile(&series[1], 0.5));
    else
        cJSON_AddNullToObject(json, name);
}

/* One figure at both small shapes: an array of that name. */
static enum exit_code compare_routes(struct bench *b, enum bench_verb verb, const char *name) {
    cJSON *array = cJSON_AddArrayToObject(b->object, name);
    enum exit_code code = EXIT_DONE;
    for (int i = 0; i < SHAPES && code == EXIT_DONE; i++) {
        struct series series[ROUTES] = {{0}};
        const struct bench_order order = {
            .verb = verb, .shape = small[i], .count = b->plan->jobs, .batches = b->plan->batches};
        code = in_turns(b, &order, b->plan->rounds, series);
        cJSON *json = cJSON_CreateObject();
        bench_shape_json(&small[i], json);
        series_json(&series[0], json, "daemon_us");
        series_json(&series[1], json, "local_us");
        add_added(series, json, "added_us");
        cJSON_AddItemToArray(array, json);
        series_free(&series[0]);
        series_free(&series[1]);
    }
    return code;
}

/* ---- First results: each from a process of its own --------------------------------------------------------
 */

static enum exit_code fresh_client(struct bench *b, bool local, struct series *context, struct series *first,
                                   struct series *connect) {
    struct bench_worker worker;
    struct bench_answer answer;
    enum exit_code code = bench_worker_start(&worker, b->options->socket, b->gpu);
    if (code == EXIT_DONE)
        code = sample(&worker, &(struct bench_order){.verb = BENCH_OPEN}, context);
    const struct bench_order order = {.verb = BENCH_FIRST, .local = local, .shape = small[0]};
    if (code == EXIT_DONE)
        code = bench_worker_ask(&worker, &order, &answer);
    if (code == EXIT_DONE)
        code = add_samples(first, &answer.samples[0], 1);
    if (code == EXIT_DONE)
        code = add_samples(connect, &answer.samples[1], 1);
    bench_worker_stop(&worker);
    return code;
}

static enum exit_code first_results(struct bench *b) {
    struct series context = {0}, first[ROUTES] = {{0}}, connect[ROUTES] = {{0}};
    enum exit_code code = EXIT_DONE;
    for (int round = 0; round < b->plan->rounds && code == EXIT_DONE; round++)
        for (int local = 0; local <= b->local && code == EXIT_DONE; local++)
            code = fresh_client(b, local, &context, &first[local], &connect[local]);
    cJSON *json = cJSON_AddObjectToObject(b->object, "first_result");
    bench_shape_json(&small[0], json);
    if (!*b->gpu)
        series_free(&context);
    series_json(&context, json, "context_ms");
    series_json(&first[0], json, "daemon_ms");
    series_json(&connect[0], json, "daemon_connect_ms");
    series_json(&first[1], json, "local_ms");
    series_free(&context);
    for (int i = 0; i < ROUTES; i++) {
        series_free(&first[i]);
        series_free(&connect[i]);
    }
    return code;
}

/* ---- Many clients ----------------------------------------------------------------------------------------
 */

/* Jobs a second of some clients together, in one window: from the first one's start to the last one's end. */
static enum exit_code together(struct bench *b, int clients, bool local, const struct bench_shape *shape,
                               struct series *rates) {
    struct bench_answer answer;
    struct bench_work all = {0, INT64_MAX, 0};
    enum exit_code code = EXIT_DONE;
    const struct bench_order order = {.verb = BENCH_THROUGHPUT,
                                      .local = local,
                                      .shape = *shape,
                                      .start_ns = deadline_now() + SOON_NS,
                                      .window_ns = b->plan->window_ns / (rates ? 1 : 5)};
    for (int i = 0; i < clients && code == EXIT_DONE; i++)
        code = bench_worker_tell(&b->workers[i], &order);
    for (int i = 0; i < clients && code == EXIT_DONE; i++) {
        code = bench_worker_hear(&b->workers[i], &answer);
        if (code != EXIT_DONE)
            break;
        all.jobs += answer.work.jobs;
        all.start_ns = answer.work.start_ns < all.start_ns ? answer.work.start_ns : all.start_ns;
        all.end_ns = answer.work.end_ns > all.end_ns ? answer.work.end_ns : all.end_ns;
    }
    return code == EXIT_DONE ? add_rate(rates, &all) : code;
}

static void add_median(struct series *series, cJSON *json, const char *name) {
    if (series->count > 0)
        cJSON_AddNumberToObject(json, name, series_quantile(series, 0.5));
    else
        cJSON_AddNullToObject(json, name);
}

static void add_share(struct series *of, struct series *whole_of, cJSON *json, const char *name) {
    const double all = series_quantile(whole_of, 0.5);
    if (of->count > 0 && all > 0)
        cJSON_AddNumberToObject(json, name, series_quantile(of, 0.5) / all);
    else
        cJSON_AddNullToObject(json, name);
}

static enum exit_code crowd(struct bench *b, int clients, const struct bench_shape *shape, cJSON *array) {
    struct series daemon = {0}, apart = {0}, single = {0};
    enum exit_code code = EXIT_DONE;
    /* The first round makes tensors and mappings, and warms up. */
    for (int round = -1; round < b->plan->rounds && code == EXIT_DONE; round++) {
        code = together(b, clients, false, shape, round < 0 ? NULL : &daemon);
        if (code == EXIT_DONE && b->local)
            code = together(b, clients, true, shape, round < 0 ? NULL : &apart);
        if (code == EXIT_DONE && b->local)
            code = together(b, 1, true, shape, round < 0 ? NULL : &single);
    }
    cJSON *json = cJSON_CreateObject();
    bench_shape_json(shape, json);
    cJSON_AddNumberToObject(json, "clients", clients);
    add_median(&daemon, json, "daemon_jobs_per_s");
    add_median(&apart, json, "apart_jobs_per_s");
    add_median(&single, json, "single_jobs_per_s");
    add_share(&daemon, &single, json, "share_of_single");
    add_share(&daemon, &apart, json, "share_of_apart");
    cJSON_AddItemToArray(array, json);
    series_free(&daemon);
    series_free(&apart);
    series_free(&single);
    return code;
}

static enum exit_code crowds_of_clients(struct bench *b) {
    cJSON *array = cJSON_AddArrayToObject(b->object, "clients");
    enum exit_code code = EXIT_DONE;
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < b->plan->crowds && code == EXIT_DONE; i++)
            code = crowd(b, crowds[i], &b->shapes[s], array);
    return code;
}

/* ---- Fairness: large jobs back to back on the first client, smaller ones on the second -------------------
 */

static void nap(int64_t ns) {
    nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

/* Has the second client measure while the first one works. large: what that one reaches meanwhile. */
static enum exit_code beside_large(struct bench *b, const struct bench_order *order,
                                   struct series *small_ones, struct series *large) {
    const struct bench_order load = {.verb = BENCH_LOAD, .shape = b->shapes[1]}, stop = {.verb = BENCH_STOP};
    struct bench_answer answer;
    enum exit_code code = bench_worker_tell(&b->workers[0], &load);
    if (code != EXIT_DONE)
        return code;
    nap(b->plan->window_ns / 10);
    code = sample(&b->workers[1], order, small_ones);
    if (code == EXIT_DONE)
        code = bench_worker_tell(&b->workers[0], &stop);
    if (code == EXIT_DONE)
        code = bench_worker_hear(&b->workers[0], &answer);
    return code == EXIT_DONE ? add_rate(large, &answer.work) : code;
}

static struct bench_order window(const struct bench *b, const struct bench_shape *shape) {
    return (struct bench_order){.verb = BENCH_THROUGHPUT, .shape = *shape, .window_ns = b->plan->window_ns};
}

static enum exit_code fairness(struct bench *b) {
    struct series alone = {0}, beside = {0}, rate_alone = {0}, rate_beside = {0}, large_alone = {0},
                  large_beside = {0};
    const struct bench_order singly = {
        .verb = BENCH_ONE_BY_ONE, .shape = b->shapes[0], .count = b->plan->jobs};
    const struct bench_order small_window = window(b, &b->shapes[0]), large_window = window(b, &b->shapes[1]);
    enum exit_code code = EXIT_DONE;
    for (int round = -1; round < b->plan->rounds && code == EXIT_DONE; round++) {
        const bool counts = round >= 0;
        code = sample(&b->workers[0], &large_window, counts ? &large_alone : NULL);
        if (code == EXIT_DONE)
            code = sample(&b->workers[1], &singly, counts ? &alone : NULL);
        if (code == EXIT_DONE)
            code = sample(&b->workers[1], &small_window, counts ? &rate_alone : NULL);
        if (code == EXIT_DONE)
            code = beside_large(b, &singly, counts ? &beside : NULL, NULL);
        if (code == EXIT_DONE)
            code =
                beside_large(b, &small_window, counts ? &rate_beside : NULL, counts ? &large_beside : NULL);
    }
    cJSON *json = cJSON_AddObjectToObject(b->object, "fairness");
    bench_shape_json(&b->shapes[0], json);
    cJSON *large = cJSON_AddObjectToObject(json, "large");
    bench_shape_json(&b->shapes[1], large);
    add_median(&large_alone, large, "alone_jobs_per_s");
    add_median(&large_beside, large, "beside_jobs_per_s");
    add_share(&large_beside, &large_alone, large, "share");
    series_json(&alone, json, "alone_us");
    series_json(&beside, json, "beside_us");
    add_median(&rate_alone, json, "alone_jobs_per_s");
    add_median(&rate_beside, json, "beside_jobs_per_s");
    add_share(&rate_beside, &rate_alone, json, "share");
    struct series *const all[] = {&alone, &beside, &rate_alone, &rate_beside, &large_alone, &large_beside};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        series_free(all[i]);
    return code;
}

/* ---- The daemon's CPU time -------------------------------------------------------------------------------
 */

/* Of all its threads, in ns; -1 if it cannot be told. */
static int64_t daemon_cpu(int64_t pid) {
    clockid_t clock;
    struct timespec t;
    if (pid <= 0 || clock_getcpuclockid((pid_t)pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
        return -1;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Over a while. */
static void add_cpu(const struct bench *b, cJSON *json, const char *name) {
    const int64_t start = deadline_now(), before = daemon_cpu(b->pid);
    nap(b->plan->look_ns);
    const int64_t after = daemon_cpu(b->pid), passed = deadline_now() - start;
    if (before >= 0 && after >= before)
        cJSON_AddNumberToObject(json, name, 100 * (double)(after - before) / (double)passed);
    else
        cJSON_AddNullToObject(json, name);
}

static enum exit_code pending(struct bench *b, cJSON *json) {
    enum exit_code code =
        sample(&b->workers[0], &(struct bench_order){.verb = BENCH_HOLD, .shape = small[0]}, NULL);
    if (code != EXIT_DONE)
        return code;
    add_cpu(b, json, "pending");
    return sample(&b->workers[0], &(struct bench_order){.verb = BENCH_RELEASE, .shape = small[0]}, NULL);
}

static enum exit_code daemon_cpus(struct bench *b) {
    const struct bench_order load = {.verb = BENCH_LOAD, .shape = small[1]}, stop = {.verb = BENCH_STOP};
    struct bench_answer answer;
    enum exit_code code = EXIT_DONE;
    cJSON *json = cJSON_AddObjectToObject(b->object, "daemon_cpu_percent");
    add_cpu(b, json, "idle"); /* clients are connected, and silent */
    if (*b->gpu)
        code = pending(b, json);
    else
        cJSON_AddNullToObject(json, "pending");
    if (code == EXIT_DONE)
        code = bench_worker_tell(&b->workers[0], &load);
    if (code != EXIT_DONE)
        return code;
    add_cpu(b, json, "busy");
    code = bench_worker_tell(&b->workers[0], &stop);
    return code == EXIT_DONE ? bench_worker_hear(&b->workers[0], &answer) : code;
}

/* ---- All together ----------------------------------------------------------------------------------------
 */

/* Whether libkdad finds its kernels for a client's process: a client is asked. */
static bool can_run_locally(const struct options *options) {
    struct bench_worker worker;
    if (bench_worker_start(&worker, options->socket, "") != EXIT_DONE)
        return false;
    const struct bench_order order = {.verb = BENCH_CONNECT, .local = true};
    const bool can = sample(&worker, &order, NULL) == EXIT_DONE;
    if (!can)
        complain("what is compared with jobs in the client's process is left out");
    bench_worker_stop(&worker);
    return can;
}

static enum exit_code open_clients(struct bench *b) {
    enum exit_code code = EXIT_DONE;
    const int count = crowds[b->plan->crowds - 1];
    for (int i = 0; i < count && code == EXIT_DONE; i++)
        code = bench_worker_start(&b->workers[i], b->options->socket, b->gpu);
    for (int i = 0; i < count && code == EXIT_DONE; i++)
        code = sample(&b->workers[i], &(struct bench_order){.verb = BENCH_OPEN}, NULL);
    for (int i = 0; i < count && code == EXIT_DONE; i++)
        code = sample(&b->workers[i], &(struct bench_order){.verb = BENCH_CONNECT}, NULL);
    return code;
}

static enum exit_code measure(struct bench *b) {
    enum exit_code code = open_clients(b);
    if (code == EXIT_DONE)
        code = compare_routes(b, BENCH_ONE_BY_ONE, "dependent");
    if (code == EXIT_DONE && *b->gpu)
        code = compare_routes(b, BENCH_PAIRS, "pairs");
    else
        cJSON_AddNullToObject(b->object, "pairs");
    if (code == EXIT_DONE)
        code = compare_routes(b, BENCH_SUBMIT, "submit_cpu");
    if (code == EXIT_DONE)
        code = daemon_cpus(b);
    if (code == EXIT_DONE)
        code = fairness(b);
    if (code == EXIT_DONE)
        code = crowds_of_clients(b);
    for (int i = 0; i < CLIENTS_MOST; i++)
        bench_worker_stop(&b->workers[i]);
    return code;
}

enum exit_code bench_clients(const struct options *options, const char *gpu, int64_t pid, cJSON *object) {
    struct bench b = {.options = options,
                      .gpu = gpu,
                      .pid = pid,
                      .plan = options->quick ? &quick : &whole,
                      .shapes = *gpu ? on_gpu : on_cpu,
                      .object = object};
    b.local = can_run_locally(options);
    cJSON_AddNumberToObject(object, "rounds", b.plan->rounds);
    enum exit_code code = first_results(&b);
    return code == EXIT_DONE ? measure(&b) : code;
}
