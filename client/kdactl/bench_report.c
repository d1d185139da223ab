/*
 * bench_report.c - the figures of bench_clients, for people.
 */
#include "client/kdactl/bench_clients.h"

#include <stdio.h>

enum { NUMBER_TEXT = 24 };

/* "-" for what was not measured. */
static const char *text_of(const cJSON *number, int digits, char text[NUMBER_TEXT]) {
    if (cJSON_IsNumber(number))
        snprintf(text, NUMBER_TEXT, "%.*f", digits, number->valuedouble);
    else
        snprintf(text, NUMBER_TEXT, "-");
    return text;
}

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void print_number(const cJSON *number, int digits, int width) {
    char text[NUMBER_TEXT];
    printf(" %*s", width, text_of(number, digits, text));
}

static void print_shape(const cJSON *object) {
    char text[64];
    int length = 0;
    const cJSON *number;
    cJSON_ArrayForEach(number, member(object, "shape")) {
        length += snprintf(text + length, sizeof text - (size_t)length, "%s%d", length ? ", " : "[",
                           number->valueint);
        if (length >= (int)sizeof text - 2)
            break;
    }
    printf("%s]%*s", text, length < 26 ? 26 - length : 0, "");
}

static void print_pair(const cJSON *series, int digits) {
    print_number(member(series, "median"), digits, 10);
    print_number(member(series, "p99"), digits, 10);
}

static void print_first(const cJSON *object) {
    const cJSON *first = member(object, "first_result");
    char text[NUMBER_TEXT];
    if (cJSON_IsNumber(member(object, "start_ready_ms")))
        printf("daemon: start to ready %s ms\n", text_of(member(object, "start_ready_ms"), 1, text));
    printf("\n%-28s%10s %10s\n", "first result, ms", "median", "p99");
    static const struct {
        const char *name, *title;
    } rows[] = {{"context_ms", "the client's own context"},
                {"daemon_connect_ms", "connected"},
                {"daemon_ms", "connected, first result"},
                {"local_ms", "in process, first result"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        printf("%-27s", rows[i].title);
        print_pair(member(first, rows[i].name), 2);
        putchar('\n');
    }
}

static void print_routes(const cJSON *object, const char *name, const char *title) {
    const cJSON *row;
    if (!cJSON_IsArray(member(object, name)))
        return;
    printf("\n%-28s%10s %10s %10s %10s %10s\n", title, "daemon", "p99", "in process", "p99", "added");
    cJSON_ArrayForEach(row, member(object, name)) {
        print_shape(row);
        print_pair(member(row, "daemon_us"), 2);
        print_pair(member(row, "local_us"), 2);
        print_number(member(row, "added_us"), 2, 10);
        putchar('\n');
    }
}

static void print_cpus(const cJSON *object) {
    static const char *const names[] = {"idle", "pending", "busy"};
    const cJSON *percent = member(object, "daemon_cpu_percent");
    printf("\n%-28s%10s %10s %10s\n", "the daemon's CPU time", "idle", "pending", "busy");
    printf("%-27s", "% of one processor");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        print_number(member(percent, names[i]), 2, 10);
    putchar('\n');
}

static void print_fairness(const cJSON *object) {
    const cJSON *small = member(object, "fairness"), *large = member(small, "large");
    printf("\n%-28s%10s %10s %10s %10s\n", "one by one, us", "alone", "p99", "beside", "p99");
    print_shape(small);
    print_pair(member(small, "alone_us"), 1);
    print_pair(member(small, "beside_us"), 1);
    printf("\n%-28s%10s %10s %10s\n", "pipelined, jobs/s", "alone", "beside", "share");
    for (int i = 0; i < 2; i++) {
        const cJSON *row = i == 0 ? small : large;
        print_shape(row);
        print_number(member(row, "alone_jobs_per_s"), 1, 10);
        print_number(member(row, "beside_jobs_per_s"), 1, 10);
        print_number(member(row, "share"), 3, 10);
        putchar('\n');
    }
}

static void print_crowds(const cJSON *object) {
    const cJSON *row;
    printf("\n%-28s%10s %10s %10s %10s %10s %10s\n", "all clients, jobs/s", "clients", "daemon", "apart",
           "one alone", "of one", "of apart");
    cJSON_ArrayForEach(row, member(object, "clients")) {
        print_shape(row);
        print_number(member(row, "clients"), 0, 10);
        print_number(member(row, "daemon_jobs_per_s"), 1, 10);
        print_number(member(row, "apart_jobs_per_s"), 1, 10);
        print_number(member(row, "single_jobs_per_s"), 1, 10);
        print_number(member(row, "share_of_single"), 3, 10);
        print_number(member(row, "share_of_apart"), 3, 10);
        putchar('\n');
    }
}

void bench_clients_print(const cJSON *object) {
    print_first(object);
    print_routes(object, "dependent", "one by one, us");
    print_routes(object, "pairs", "own kernel and job, us");
    print_routes(object, "submit_cpu", "submitting, us of CPU");
    print_cpus(object);
    print_fairness(object);
    print_crowds(object);
}
