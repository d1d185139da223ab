/*
 * Who goes ahead on a device: by what each client has had of it lately.
 */
#include "daemon/share.h"

#include <check.h>
#include <stdlib.h>

enum { MS = 1000000 };

START_TEST(what_was_charged_is_halved) {
    struct share s = {0};
    ck_assert_uint_eq(share_now(&s, 123), 0);
    share_charge(&s, (int64_t)1 << 60, 8 * MS);
    ck_assert_uint_eq(share_now(&s, (int64_t)1 << 60), 8 * MS);
    ck_assert_uint_eq(share_now(&s, ((int64_t)1 << 60) + SHARE_HALF_NS - 1), 8 * MS);
    ck_assert_uint_eq(share_now(&s, ((int64_t)1 << 60) + SHARE_HALF_NS), 4 * MS);
    ck_assert_uint_eq(share_now(&s, ((int64_t)1 << 60) + (int64_t)4 * SHARE_HALF_NS), MS / 2);
    ck_assert_uint_eq(share_now(&s, INT64_MAX), 0);
    ck_assert_uint_eq(share_now(&s, 0), 0); /* a clock that went back harms nothing */
}
END_TEST

START_TEST(too_much_is_not_little) {
    struct share s = {0};
    share_charge(&s, 0, UINT64_MAX - 1);
    share_charge(&s, 0, 2);
    ck_assert_uint_eq(share_now(&s, 0), UINT64_MAX);
}
END_TEST

START_TEST(equals_do_not_go_ahead) {
    ck_assert(!share_is_behind(0, 0));
    ck_assert(!share_is_behind(0, MS));
    ck_assert(!share_is_behind(UINT64_MAX, UINT64_MAX));
    ck_assert(!share_is_behind(70 * MS, 72 * MS));
    ck_assert(share_is_behind(0, 4 * MS));
    ck_assert(share_is_behind(40 * MS, 72 * MS));
}
END_TEST

/* Two clients on a device that runs the job of the one that goes ahead, else in turns. Both always have a job
 * waiting: in the end each has had half of the time, whatever their jobs' sizes. */
START_TEST(two_that_want_all_get_half) {
    for (uint64_t small = 10000; small <= 3 * MS; small *= 3) {
        const uint64_t cost[2] = {3 * MS, small};
        struct share share[2] = {{0}};
        uint64_t had[2] = {0};
        int turn = 0;
        for (int64_t now = 0; now < (int64_t)4000 * MS;) {
            uint64_t a = share_now(&share[0], now), b = share_now(&share[1], now);
            int next = share_is_behind(a, b) ? 0 : share_is_behind(b, a) ? 1 : (turn ^= 1);
            share_charge(&share[next], now, cost[next]);
            had[next] += cost[next];
            now += (int64_t)cost[next];
        }
        double part = (double)had[1] / (double)(had[0] + had[1]);
        ck_assert_msg(part > 0.35 && part < 0.55, "jobs of %llu ns got %g of the time",
                      (unsigned long long)small, part);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("share");
    TCase *c = tcase_create("share");
    tcase_add_test(c, what_was_charged_is_halved);
    tcase_add_test(c, too_much_is_not_little);
    tcase_add_test(c, equals_do_not_go_ahead);
    tcase_add_test(c, two_that_want_all_get_half);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
