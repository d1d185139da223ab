/* test_cpu_law.c - the CPU kernels against the numerics law: what must be exact, and what must not spread. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "tests/unit/cpu_fixture.h"

static bool same_bits(float a, float b) {
    uint32_t bits[2];
    memcpy(&bits[0], &a, sizeof a);
    memcpy(&bits[1], &b, sizeof b);
    return bits[0] == bits[1];
}

START_TEST(exponentials) {
    static const struct chunk_kernels *const all[] = {
        &chunk_portable,
#if defined(__x86_64__)
        &chunk_avx2,
        &chunk_avx512,
#elif defined(__aarch64__)
        &chunk_neon,
#endif
    };
    for (int k = 0; k < VARIANTS; k++) {
        if (!use_variant(k))
            continue;
        const struct chunk_kernels *kernels = NULL;
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (strcmp(all[i]->name, cpu_isa_name()) == 0)
                kernels = all[i];
        ck_assert_ptr_nonnull(kernels);
        static const float special[] = {0,    -0.0F, 1,      -INFINITY, INFINITY, NAN,
                                        -NAN, 1e30F, -1e30F, 128,       -150};
        static const float expected[] = {1, 1, 2, 0, INFINITY, NAN, NAN, INFINITY, 0, INFINITY, 0};
        float got[11];
        kernels->exp2(got, special, 11);
        for (int i = 0; i < 11; i++)
            ck_assert_msg(isnan(expected[i]) ? isnan(got[i]) : got[i] == expected[i], "exp2(%g) is %g",
                          special[i], got[i]);
        for (int n = -125; n < 128; n++) {
            const float x = (float)n;
            kernels->exp2(got, &x, 1);
            ck_assert_msg(got[0] == ldexpf(1, n), "exp2(%d) is %g", n, got[0]);
        }
        double largest = 0;
        for (int at = -1254900; at < 1279900; at += 7) {
            const float x = (float)at * 1e-4F;
            kernels->exp2(got, &x, 1);
            const double ref = exp2(x), ulp = ldexp(1, ilogb(ref) - 23);
            largest = fmax(largest, fabs(got[0] - ref) / ulp);
        }
        printf("%s: exp2 is within %.3f units in the last place\n", kernels->name, largest);
        ck_assert(largest < (strcmp(kernels->name, "portable") ? 1 : 1.5));
    }
}
END_TEST

/* Small integers, and gates that halve: everything is exact in float32, in any order of sums. */
START_TEST(exact_results_are_exact) {
    for (size_t c = 0; c < 4; c++) {
        struct shape s = plain;
        s.C = chunk_sizes[c];
        reseed(c);
        for (int k = 0; k < VARIANTS; k++) {
            if (!use_variant(k))
                continue;
            struct fixture f = make(&s);
            for (enum operand o = 0; o <= OPERAND_DG; o++) {
                int64_t n[4];
                dimensions(&f, o, n);
                for (int64_t t = 0; t < n[1]; t++)
                    for (int64_t h = 0; h < n[2]; h++)
                        for (int64_t i = 0; i < n[3]; i++) {
                            const int64_t row = row_in_chunk(&f, t), g = -(row / (s.C / 8));
                            if ((o != OPERAND_DAQK && o != OPERAND_DAKK) || i <= row)
                                put(&f, o, 0, t, h, i, o == OPERAND_G ? (float)g : (float)pick(-2, 2));
                        }
            }
            struct oracle ref;
            ck_assert(oracle_run(&ref, &f.p, operands(&f)));
            struct outputs out = run_and_gather(&f);
            for (int i = 0; i < 4; i++)
                for (size_t n = 0; n < out.count[i]; n++)
                    ck_assert(out.of[i][n] == oracle_result(&ref, OPERAND_DQ + i)[n]);
            free_outputs(&out);
            oracle_free(&ref);
            destroy(&f);
        }
    }
}
END_TEST

START_TEST(diagonal_cancels_in_dg) {
    struct shape s = plain;
    s.gate = 40;
    s.no_incoming = true;
    s.qk = DTYPE_F32;
    for (uint64_t i = 0; i < 4; i++) {
        s.C = chunk_sizes[i];
        compare(&s, i);
    }
    print_worst("diagonal");
}
END_TEST

/* Changes row `row` of every input: to `value`, or to other numbers if that is 0. */
static void disturb(struct fixture *f, int64_t row, float value) {
    for (enum operand o = 0; o <= OPERAND_DAKK; o++) {
        int64_t n[4];
        dimensions(f, o, n);
        for (int64_t h = 0; h < n[2]; h++)
            for (int64_t i = 0; i < n[3]; i++)
                put(f, o, 0, row, h, i, value == 0 ? (float)uniform(-30, 30) : value);
    }
}

START_TEST(later_rows_change_nothing) {
    static const float values[] = {0, NAN, INFINITY, -INFINITY, 1e30F};
    static const int64_t rows[] = {1, 15, 16, 31, 32, 63, 64, 77, 100, 127, 128, 149};
    for (int k = 0; k < VARIANTS; k++)
        for (size_t c = 0; c < 4; c++)
            for (int i = 0; i < 60 && use_variant(k); i++) {
                struct shape s = plain;
                s.C = chunk_sizes[c];
                const int64_t row = rows[i / 5];
                reseed(7);
                struct fixture f = make(&s);
                struct outputs before = run_and_gather(&f);
                disturb(&f, row, values[i % 5]);
                struct outputs after = run_and_gather(&f);
                const size_t heads = (size_t)s.HV, width = heads * (size_t)s.K;
                ck_assert_mem_eq(before.of[0], after.of[0], (size_t)row * width * sizeof(float));
                ck_assert_mem_eq(before.of[2], after.of[2], (size_t)row * heads * sizeof(float));
                /* Other chunks do not change at all. */
                const size_t start = (size_t)(row / s.C * s.C);
                ck_assert_mem_eq(before.of[1], after.of[1], start * width * sizeof(float));
                ck_assert_mem_eq(before.of[3], after.of[3], start * width * sizeof(float));
                const size_t end = start + (size_t)s.C;
                for (int o = 0; o < 4 && end < (size_t)s.T; o++) {
                    const size_t at = end * (o == 2 ? heads : width);
                    ck_assert_mem_eq(before.of[o] + at, after.of[o] + at,
                                     (before.count[o] - at) * sizeof(float));
                }
                free_outputs(&before);
                free_outputs(&after);
                destroy(&f);
            }
}
END_TEST

/* With a later row of zeros in dA, what it adds to dkt is 0, so dk and dg of earlier rows are the row's own
 * part. */
START_TEST(later_rows_change_no_row_side) {
    for (int k = 0; k < VARIANTS; k++)
        for (int64_t row = 5; row < 128 && use_variant(k); row += 13) {
            struct shape s = plain;
            s.C = 128;
            s.qk = DTYPE_F32;
            struct outputs out[2];
            for (int i = 0; i < 2; i++) {
                reseed(3);
                struct fixture f = make(&s);
                if (i == 1)
                    disturb(&f, row, 0);
                for (int64_t h = 0; h < s.HV; h++)
                    for (int64_t t = row; t < s.C; t++)
                        for (int64_t column = 0; column <= t; column++) {
                            put(&f, OPERAND_DAQK, 0, t, h, column, 0);
                            put(&f, OPERAND_DAKK, 0, t, h, column, 0);
                        }
                out[i] = run_and_gather(&f);
                destroy(&f);
            }
            const size_t floats = (size_t)(row * s.HV * s.K);
            ck_assert_mem_eq(out[0].of[1], out[1].of[1], floats * sizeof(float));
            ck_assert_mem_eq(out[0].of[3], out[1].of[3], floats * sizeof(float));
            free_outputs(&out[0]);
            free_outputs(&out[1]);
        }
}
END_TEST

/* What is not finite in one column of q, k or g stays in its chunk, value head and column (db: chunk and
 * head). */
START_TEST(what_is_not_finite_is_contained) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < VARIANTS; k++)
        for (int i = 0; i < 72 && use_variant(k); i++) {
            const enum operand into = (enum operand[]){OPERAND_Q, OPERAND_K, OPERAND_G, OPERAND_DAKK}[i % 4];
            const int64_t row = 64 + (int64_t[]){0, 1, 17, 32, 40, 63}[i / 4 % 6],
                          column = into == OPERAND_DAKK ? 0 : 9;
            struct shape s = plain;
            s.K = 21;
            reseed(11);
            struct fixture f = make(&s);
            struct outputs before = run_and_gather(&f);
            put(&f, into, 0, row, 1, column, values[i / 24]);
            struct outputs after = run_and_gather(&f);
            bool spoiled = false;
            for (int o = 0; o < 4; o++) {
                const int64_t width = o == 2 ? 1 : s.K;
                for (int64_t n = 0; n < (int64_t)before.count[o]; n++) {
                    const int64_t d = n % width, h = n / width % s.HV, t = n / width / s.HV;
                    const bool mine =
                        t / s.C == row / s.C && h == 1 && (o == 2 || d == column || into == OPERAND_DAKK);
                    ck_assert(mine || same_bits(before.of[o][n], after.of[o][n]));
                    spoiled |= !isfinite(after.of[o][n]);
                }
            }
            ck_assert(spoiled || !isnan(values[i / 24])); /* g of inf can make its factors 0 */
            free_outputs(&before);
            free_outputs(&after);
            destroy(&f);
        }
}
END_TEST

START_TEST(nothing_above_the_diagonal_matters) {
    for (int k = 0; k < VARIANTS; k++)
        for (size_t c = 0; c < 4 && use_variant(k); c++) {
            struct shape s = plain;
            s.C = chunk_sizes[c];
            reseed(2);
            struct fixture f = make(&s);
            struct outputs with_nan = run_and_gather(&f);
            for (int64_t t = 0; t < s.T; t++)
                for (int64_t h = 0; h < s.HV; h++)
                    for (int64_t i = t % s.C + 1; i < s.C; i++) {
                        put(&f, OPERAND_DAQK, 0, t, h, i, 1e30F);
                        put(&f, OPERAND_DAKK, 0, t, h, i, 3);
                    }
            struct outputs with_numbers = run_and_gather(&f);
            assert_equal(&with_nan, &with_numbers);
            free_outputs(&with_nan);
            free_outputs(&with_numbers);
            destroy(&f);
        }
}
END_TEST

START_TEST(nothing_added_keeps_the_bits) {
    for (int k = 0; k < VARIANTS; k++) {
        if (!use_variant(k))
            continue;
        struct shape s = plain;
        s.K = 19;
        reseed(5);
        struct fixture f = make(&s);
        for (int64_t t = 0; t < s.T; t++)
            for (int64_t h = 0; h < s.HV; h++) {
                for (int64_t i = 0; i <= t % s.C; i++) {
                    put(&f, OPERAND_DAQK, 0, t, h, i, 0);
                    put(&f, OPERAND_DAKK, 0, t, h, i, 0);
                }
                for (enum operand o = OPERAND_DQ; o <= OPERAND_DG; o++)
                    put(&f, o, 0, t, h, 0, t % 2 ? -0.0F : NAN);
            }
        struct outputs incoming = gather(&f, OPERAND_DQ), out = run_and_gather(&f);
        assert_equal(&incoming, &out);
        free_outputs(&incoming);
        free_outputs(&out);
        destroy(&f);
    }
}
END_TEST

/* Gates that rise: through 0 and back up, where one factor is 0 and the other one huge. */
START_TEST(rising_gates) {
    for (uint64_t i = 0; i < 48; i++) {
        struct shape s = plain;
        s.C = chunk_sizes[i % 4];
        s.gate = (double[]){0.2, 1, 40, 90}[i / 4 % 4];
        s.rise = (double[]){1e-3, 0.5, 3}[i / 16];
        compare(&s, i);
    }
    print_worst("rising gates");
}
END_TEST

/* Four rows lie 127 below the others: where one of them is a block's first row, its factors are 0 and 2 **
 * 127. */
START_TEST(gates_that_fall_far_and_come_back) {
    for (int k = 0; k < VARIANTS; k++)
        for (int64_t low = 0; low < 124 && use_variant(k); low += 3) {
            struct shape s = plain;
            s.C = 128;
            s.T = 128;
            s.gate = 1e-3;
            reseed(4);
            struct fixture f = make(&s);
            struct outputs before = run_and_gather(&f);
            for (int64_t t = low; t < low + 4; t++) {
                put(&f, OPERAND_G, 0, t, 0, 2, get(&f, OPERAND_G, 0, t, 0, 2) - 127);
                for (int64_t r = low + 4; r < s.T; r++) { /* their 2 ** 127 would drown all else */
                    put(&f, OPERAND_DAQK, 0, r, 0, t, 0);
                    put(&f, OPERAND_DAKK, 0, r, 0, t, 0);
                }
            }
            struct oracle ref;
            ck_assert(oracle_run(&ref, &f.p, operands(&f)));
            struct outputs incoming = gather(&f, OPERAND_DQ), after = run_and_gather(&f);
            for (int o = 0; o < 4; o++) {
                const double error = oracle_error(after.of[o], oracle_result(&ref, OPERAND_DQ + o),
                                                  incoming.of[o], after.count[o]);
                ck_assert_msg(error <= GOAL, "%s low %d: error of output %d is %g", variant_name(), (int)low,
                              o, error);
                const int64_t width = o == 2 ? 1 : s.K;
                for (int64_t n = 0; n < (int64_t)after.count[o]; n++)
                    if (n / width % s.HV != 0)
                        ck_assert(same_bits(after.of[o][n], before.of[o][n]));
            }
            free_outputs(&incoming);
            free_outputs(&before);
            free_outputs(&after);
            oracle_free(&ref);
            destroy(&f);
        }
}
END_TEST

/* A rise beyond float32 spoils its column, which other columns do not notice; what stays finite there is
 * right. */
START_TEST(gates_that_rise_too_far) {
    for (int k = 0; k < VARIANTS; k++)
        for (int64_t row = 0; row < 128 && use_variant(k); row += 3) {
            struct shape s = plain;
            s.C = 128;
            s.T = 128;
            reseed(6);
            struct fixture f = make(&s);
            struct outputs before = run_and_gather(&f);
            put(&f, OPERAND_G, 0, row, 0, 3, get(&f, OPERAND_G, 0, row, 0, 3) + 140);
            struct oracle ref;
            ck_assert(oracle_run(&ref, &f.p, operands(&f)));
            struct outputs after = run_and_gather(&f);
            for (int o = 0; o < 4; o++) {
                const int64_t width = o == 2 ? 1 : s.K;
                for (int64_t n = 0; n < (int64_t)after.count[o]; n++) {
                    const float got = after.of[o][n];
                    const double right = oracle_result(&ref, OPERAND_DQ + o)[n];
                    if (o != 2 && !(n / width % s.HV == 0 && n % width == 3))
                        ck_assert(same_bits(got, before.of[o][n]));
                    if (isfinite(got))
                        ck_assert_msg(fabs(got - right) <= 1e-4 * (fabs(right) + 1),
                                      "%s row %d: output %d, %d: %g instead of %g", variant_name(), (int)row,
                                      o, (int)n, got, right);
                }
            }
            free_outputs(&before);
            free_outputs(&after);
            oracle_free(&ref);
            destroy(&f);
        }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        exact_results_are_exact,
        diagonal_cancels_in_dg,
        later_rows_change_nothing,
        later_rows_change_no_row_side,
        what_is_not_finite_is_contained,
        nothing_above_the_diagonal_matters,
        nothing_added_keeps_the_bits,
        rising_gates,
        gates_that_fall_far_and_come_back,
        gates_that_rise_too_far,
        exponentials, /* of the CPU's kernels alone */
    };
    const size_t all = sizeof tests / sizeof tests[0];
    return run_suite("cpu_law", tests, fixture_runner ? all - 1 : all);
}
