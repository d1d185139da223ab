/*
 * What the daemon counts: jobs, bytes and times add up to what clients did, and no client is told of twice or
 * left out while others come and go.
 */
#include "tests/harness.h"
#include "tests/socket/raw.h"

#include <check.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct harness server;
static struct raw client;

static void setup(void) {
    harness_start(&server, NULL);
    raw_open(&client, server.socket);
}

static void teardown(void) {
    raw_close(&client);
    harness_stop(&server);
}

static const struct wire_status_reply *ask(struct raw *raw, uint64_t before) {
    struct wire_message m = {.opcode = WIRE_STATUS, .id = 77, .status.before = before};
    raw_send(raw, &m, -1);
    raw_receive(raw, WIRE_STATUS_REPLY);
    return &raw->message.status_reply;
}

/* --- jobs ---------------------------------------------------------------------------------------------- */

START_TEST(what_jobs_did_adds_up) {
    enum { SMALL = 300, LARGE = 3 };
    struct timeline *timeline;
    struct problem small, large, bad;
    uint64_t size, ticket = 0, stream = raw_stream(&client, &timeline);
    raw_problem(&large, 512, 4, 128, 1, &size);
    int fd = raw_memfd(size);
    uint64_t buffer = raw_buffer(&client, size, fd);
    raw_problem(&large, 512, 4, 128, buffer, &size);
    raw_problem(&small, 1, 1, 16, buffer, &size);
    bad = small;
    bad.K = 17;
    for (int i = 0; i < SMALL; i++)
        raw_submit(&client, stream, ++ticket, &small);
    for (int i = 0; i < LARGE; i++)
        raw_submit(&client, stream, ++ticket, &large);
    ck_assert_int_eq(raw_wait(timeline, ticket), WIRE_OK);
    raw_submit(&client, stream, ++ticket, &bad);
    ck_assert_int_eq(raw_wait(timeline, ticket), WIRE_INVALID);
    raw_receive(&client, WIRE_JOB_ERROR);

    const struct wire_status_reply *s = ask(&client, 0);
    const struct wire_status_client *row = &s->client[0];
    uint64_t moved = SMALL * problem_traffic(&small) + LARGE * problem_traffic(&large);
    ck_assert_uint_eq(s->jobs_done, SMALL + LARGE);
    ck_assert_uint_eq(s->jobs_failed, 1);
    ck_assert_uint_eq(s->jobs_queued, 0);
    ck_assert_uint_eq(s->bytes_moved, moved);
    ck_assert_uint_eq(row->bytes_moved, moved);
    /* the one that was refused never ran */
    ck_assert_uint_eq(histogram_total(&s->queue), SMALL + LARGE);
    ck_assert_uint_eq(histogram_total(&s->run), SMALL + LARGE);
    ck_assert_uint_eq(histogram_total(&s->whole), SMALL + LARGE);
    ck_assert_uint_gt(s->run_ns, 0);
    ck_assert(histogram_quantile(&s->whole, 1) >= histogram_quantile(&s->run, 1));
    ck_assert(histogram_quantile(&s->whole, 0.5) <= histogram_quantile(&s->whole, 0.99));
    ck_assert(row->p50_ns > 0 && row->p50_ns <= row->p99_ns);
    ck_assert_uint_eq(s->device_count, 1);
    ck_assert_uint_ge(s->device[0].last_bytes, LARGE * problem_traffic(&large));
    ck_assert(s->device[0].last_ns > 0 && s->device[0].last_ns <= s->run_ns);

    /* What a client did outlives it. */
    struct raw other;
    raw_close(&client);
    raw_open(&other, server.socket);
    for (s = ask(&other, 0); s->clients > 1; s = ask(&other, 0))
        usleep(1000);
    ck_assert_uint_eq(s->bytes_moved, moved);
    ck_assert_uint_eq(histogram_total(&s->whole), SMALL + LARGE);
    raw_close(&other);
    raw_open(&client, server.socket);
    timeline_unmap(timeline);
    close(fd);
}
END_TEST

START_TEST(the_copy_rate_is_found) {
    const struct wire_status_reply *s = ask(&client, 0);
    for (int i = 0; i < 2000 && s->device[0].copy_rate == 0; i++) {
        usleep(10000);
        s = ask(&client, 0);
    }
    ck_assert_uint_gt(s->device[0].copy_rate, 10000000); /* slower than any machine, the sanitized included */
}
END_TEST

/* --- pages --------------------------------------------------------------------------------------------- */

START_TEST(pages_tell_of_each_client_once) {
    enum { CROWD = 150, GONE = 40 };
    static struct raw crowd[CROWD], late;
    static bool seen[1000];
    uint64_t before = 0, rows = 0;
    const struct wire_status_reply *s;
    for (int i = 0; i < CROWD; i++)
        raw_open(&crowd[i], server.socket);
    do {
        s = ask(&client, before);
        for (uint32_t i = 0; i < s->count; i++, rows++) {
            ck_assert(before == 0 || s->client[i].number < before);
            before = s->client[i].number;
            ck_assert_uint_lt(before, sizeof seen);
            ck_assert_msg(!seen[before], "client %llu came twice", (unsigned long long)before);
            seen[before] = true;
        }
        if (rows == WIRE_STATUS_CLIENTS) { /* behind the first page one comes, and some of those told of go */
            raw_open(&late, server.socket);
            for (int i = CROWD - GONE; i < CROWD; i++)
                raw_close(&crowd[i]);
            while (ask(&client, 0)->clients > CROWD - GONE + 2)
                usleep(1000);
        }
        s = &client.message.status_reply;
    } while (s->count == WIRE_STATUS_CLIENTS);
    ck_assert_uint_eq(rows, CROWD + 1); /* the first one is number 1 */
    for (int i = 1; i <= CROWD + 1; i++)
        ck_assert_msg(seen[i], "client %d was left out", i);
    for (int i = 0; i < CROWD - GONE; i++)
        raw_close(&crowd[i]);
    raw_close(&late);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("status");
    TCase *c = tcase_create("status");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, what_jobs_did_adds_up);
    tcase_add_test(c, the_copy_rate_is_found);
    tcase_add_test(c, pages_tell_of_each_client_once);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
