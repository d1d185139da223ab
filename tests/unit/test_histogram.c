/*
 * The histogram: every duration has its bucket, and quantiles are as near as the header says.
 */
#include "proto/histogram.h"

#include <check.h>
#include <stdlib.h>

static void check_bucket(uint64_t ns) {
    unsigned bucket = histogram_bucket(ns);
    ck_assert_uint_lt(bucket, HISTOGRAM_BUCKETS);
    ck_assert(ns < histogram_limit(bucket) || bucket == HISTOGRAM_BUCKETS - 1);
    ck_assert(bucket == 0 || ns >= histogram_limit(bucket - 1));
}

START_TEST(every_duration_has_its_bucket) {
    check_bucket(0);
    check_bucket(UINT64_MAX);
    for (unsigned i = 0; i + 1 < HISTOGRAM_BUCKETS; i++) {
        uint64_t limit = histogram_limit(i);
        check_bucket(limit - 1);
        check_bucket(limit);
        check_bucket(limit + 1);
        ck_assert(i == 0 || (double)limit <= 1.25 * (double)histogram_limit(i - 1));
    }
    ck_assert_uint_eq(histogram_limit(0), 256);
    ck_assert_uint_eq(histogram_limit(HISTOGRAM_BUCKETS - 2), (uint64_t)1 << 38);
}
END_TEST

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Durations from microseconds to seconds, as many in each octave: quantiles against those of the sorted list.
 */
START_TEST(quantiles_are_near) {
    enum { COUNT = 20000 };
    static uint64_t values[COUNT];
    static const double shares[] = {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1};
    struct histogram h = {0};
    unsigned seed = 1;
    for (int i = 0; i < COUNT; i++) {
        values[i] = ((uint64_t)1 << (10 + rand_r(&seed) % 20)) + (uint64_t)rand_r(&seed) % 1024;
        values[i] += (uint64_t)rand_r(&seed) % values[i];
        histogram_add(&h, values[i]);
    }
    ck_assert_uint_eq(histogram_total(&h), COUNT);
    qsort(values, COUNT, sizeof *values, by_value);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        double exact = (double)values[(size_t)(shares[i] * (COUNT - 1))];
        double found = (double)histogram_quantile(&h, shares[i]);
        ck_assert_msg(found > 0.86 * exact && found < 1.14 * exact, "share %g is %g, but found as %g",
                      shares[i], exact, found);
    }
}
END_TEST

START_TEST(ends_are_told_as_they_are) {
    struct histogram h = {0};
    ck_assert_uint_eq(histogram_quantile(&h, 0.5), 0);
    histogram_add(&h, 100);
    ck_assert_uint_lt(histogram_quantile(&h, 0.5), 256);
    for (int i = 0; i < 100; i++)
        histogram_add(&h, UINT64_MAX);
    ck_assert_uint_eq(histogram_quantile(&h, 0.99), (uint64_t)1 << 38);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("histogram");
    TCase *c = tcase_create("histogram");
    tcase_add_test(c, every_duration_has_its_bucket);
    tcase_add_test(c, quantiles_are_near);
    tcase_add_test(c, ends_are_told_as_they_are);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
