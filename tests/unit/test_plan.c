/* Which kernel takes a problem, with what grid and how much shared memory: on no device at all. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/plan.h"
#include "tests/unit/cpu_fixture.h"

enum { DEVICES = 7, MAX_THREADS = 1024 };

/* Multiprocessors, compute capability, shared memory of a block. */
static const struct cuda_plan_device devices[DEVICES] = {
    {108, 80, 166912},  {84, 86, 101376},   {142, 89, 101376}, {132, 90, 232448},
    {148, 100, 232448}, {188, 120, 101376}, {16, 87, 166912},
};

/* Aligned as an allocation is; no address is read. */
static void place_all(struct problem *p, uint64_t address[OPERAND_COUNT]) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        problem_contiguous(p, o, p->at[o].stride);
        address[o] = (uint64_t)(o + 1) << 40;
    }
}

static struct problem problem_of(int64_t B, int64_t T, int64_t H, int64_t HV, int64_t K, int64_t C,
                                 enum dtype qk) {
    return (struct problem){.B = B,
                            .T = T,
                            .H = H,
                            .HV = HV,
                            .K = K,
                            .C = C,
                            .N = -1,
                            .qk_dtype = qk,
                            .beta_dtype = DTYPE_F32,
                            .cu_dtype = DTYPE_I64};
}

static const struct cuda_plan_memory memory = {.scratch = 4096 + 8, .verdict = 64, .status = 128};

/* The plan's last launch: that of the panel kernel. */
static const struct cuda_plan_launch *last(const struct cuda_plan *plan) {
    ck_assert_int_gt(plan->launches, 0);
    return &plan->launch[plan->launches - 1];
}

static void check_launch(const struct cuda_plan_launch *l, const struct cuda_plan_device *device) {
    ck_assert_uint_gt(l->grid, 0);
    ck_assert_uint_le(l->grid, INT32_MAX);
    ck_assert_uint_le(l->block, MAX_THREADS);
    ck_assert_uint_gt(l->block, 0);
    ck_assert_uint_eq(l->block % 32, 0);
    ck_assert_uint_le(l->shared, device->shared);
    ck_assert_uint_le(l->shared, cuda_kernel_shared(l->kernel, device));
}

START_TEST(every_shape_gets_a_launch_that_the_device_takes) {
    for (int d = 0; d < DEVICES; d++)
        for (enum dtype qk = DTYPE_BF16; qk <= DTYPE_F32; qk++)
            for (int64_t C = 16; C <= 64; C *= 2)
                for (int64_t K = 1; K <= PROBLEM_MAX_K; K++)
                    for (int many = 0; many < 2; many++) {
                        struct problem p = problem_of(many ? 8 : 1, many ? 8192 : 1000, 2, 4, K, C, qk);
                        uint64_t address[OPERAND_COUNT];
                        struct cuda_plan plan;
                        place_all(&p, address);
                        ck_assert(cuda_plan_make(&plan, &p, address, &memory, &devices[d]));
                        ck_assert_int_eq(plan.launches, 1);
                        check_launch(last(&plan), &devices[d]);
                        const bool vector = K % (qk == DTYPE_F32 ? 4 : 8) == 0;
                        ck_assert_int_eq(last(&plan)->kernel,
                                         (vector ? CUDA_KERNEL_PANEL_BF16 : CUDA_KERNEL_PANEL_BF16_ANY) +
                                             (int)(qk - DTYPE_BF16));
                    }
}
END_TEST

START_TEST(blocks_cover_every_panel_and_head) {
    for (int64_t T = 1; T < 300; T++) {
        struct problem p = problem_of(3, T, 2, 6, 128, 64, DTYPE_BF16);
        uint64_t address[OPERAND_COUNT];
        struct cuda_plan plan;
        place_all(&p, address);
        ck_assert(cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
        ck_assert_int_eq(plan.params.items, 3 * ((T + 63) / 64) * 6);
        ck_assert_int_ge((int64_t)last(&plan)->grid, 1);
    }
}
END_TEST

START_TEST(others_go_to_the_general_kernel) {
    struct problem p = problem_of(1, 1000, 2, 4, 128, 128, DTYPE_BF16);
    struct cuda_plan_device small = devices[3];
    uint64_t address[OPERAND_COUNT];
    struct cuda_plan plan;
    place_all(&p, address);
    ck_assert(!cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
    p.C = 64;
    place_all(&p, address);
    ck_assert(cuda_plan_make(&plan, &p, address, &memory, &small));
    small.shared = 48 * 1024 - 16384; /* no device that can run the kernels has so little */
    ck_assert(!cuda_plan_make(&plan, &p, address, &memory, &small));
    ck_assert_uint_le(cuda_kernel_shared(CUDA_KERNEL_PANEL_BF16, &small), small.shared);
    /* items: panels times heads */
    p.T = INT64_C(64) << 20;
    p.HV = 2046;
    place_all(&p, address);
    ck_assert(cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
    ck_assert_uint_gt(last(&plan)->grid, 0);
    p.HV = 2048;
    place_all(&p, address);
    ck_assert(!cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
    p.T = INT64_C(1) << 40;
    p.B = INT64_C(1) << 30;
    place_all(&p, address);
    ck_assert(!cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
}
END_TEST

/* Moves one operand or one stride: the kernel with accesses of single elements takes it. */
START_TEST(what_is_not_aligned_is_read_by_elements) {
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        struct problem p = problem_of(2, 256, 2, 4, 64, 64, DTYPE_BF16);
        uint64_t address[OPERAND_COUNT];
        struct cuda_plan plan;
        if (operand_rank(o) != 4)
            continue;
        place_all(&p, address);
        address[o] += dtype_size(problem_dtype(&p, o));
        ck_assert(cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
        ck_assert_int_eq(last(&plan)->kernel, CUDA_KERNEL_PANEL_BF16_ANY);
        for (int i = 0; i < 3; i++) {
            place_all(&p, address);
            p.at[o].stride[i] += 1;
            ck_assert(cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
            ck_assert_int_eq(last(&plan)->kernel, CUDA_KERNEL_PANEL_BF16_ANY);
        }
    }
}
END_TEST

/* The sequences' memory: parts inside what was asked for, aligned, apart from each other. */
START_TEST(scratch_memory_holds_its_parts) {
    for (int64_t N = 0; N < 70; N++)
        for (int64_t T = 1; T < 1000; T += 37)
            for (int shift = 0; shift < 16; shift += 8) {
                struct problem p = problem_of(1, T, 2, 4, 64, 64, DTYPE_BF16);
                struct cuda_plan_memory m = memory;
                uint64_t address[OPERAND_COUNT];
                struct cuda_plan plan;
                m.scratch = 4096 + (uint64_t)shift;
                p.N = N;
                place_all(&p, address);
                ck_assert(cuda_plan_make(&plan, &p, address, &m, &devices[3]));
                ck_assert_int_eq(plan.launches, 2);
                ck_assert_int_eq(plan.launch[0].kernel, CUDA_KERNEL_SEQUENCES);
                check_launch(&plan.launch[0], &devices[3]);
                check_launch(&plan.launch[1], &devices[3]);
                const struct kda_params *a = &plan.params;
                const uint64_t end = m.scratch + cuda_plan_scratch(&p);
                ck_assert_uint_eq(a->snapshot, m.scratch);
                ck_assert_uint_ge(a->first, a->snapshot + 8 * (uint64_t)(N + 1));
                ck_assert_uint_ge(a->list, a->first + 8 * (uint64_t)N);
                ck_assert_uint_eq(a->list % 16, 0);
                ck_assert_uint_le(a->list + (uint64_t)a->panels * sizeof(struct kda_panel), end);
                /* room for the worst case: every sequence ends in a panel that is not full */
                ck_assert_int_ge(a->panels, T / 64 + N + 1);
                ck_assert_int_eq(a->items, a->panels * 4);
            }
    struct problem p = problem_of(1, 100, 2, 4, 64, 64, DTYPE_BF16);
    ck_assert_uint_eq(cuda_plan_scratch(&p), 0);
}
END_TEST

/* As in common.cuh. */
static uint32_t divide(uint32_t n, struct kda_divisor d) {
    return d.multiplier ? (uint32_t)(((uint64_t)n * d.multiplier) >> 32) >> d.shift : n;
}

START_TEST(divisors_divide) {
    reseed(1);
    for (int i = 0; i < 3000; i++) {
        const int64_t HV = i < 300 ? i + 1 : pick(1, INT64_C(1) << (i % 20)), panels = pick(1, 30);
        struct problem p = problem_of(2, panels * 64, 1, HV, 16, 64, DTYPE_BF16);
        uint64_t address[OPERAND_COUNT];
        struct cuda_plan plan;
        place_all(&p, address);
        ck_assert(cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
        for (int j = 0; j < 200; j++) {
            uint32_t n = (uint32_t)pick(0, INT32_MAX);
            if (j % 2) /* where a quotient changes */
                n = n / (uint32_t)HV * (uint32_t)HV - (n >= (uint32_t)HV && j % 4 == 1);
            ck_assert_uint_eq(divide(n, plan.params.by_HV), n / (uint32_t)HV);
            ck_assert_uint_eq(divide(n, plan.params.by_panels), n / (uint32_t)panels);
        }
    }
}
END_TEST

START_TEST(empty_problems_launch_nothing) {
    for (int i = 0; i < 3; i++) {
        struct problem p = problem_of(1, 64, 1, 1, 16, 64, DTYPE_BF16);
        uint64_t address[OPERAND_COUNT] = {0};
        struct cuda_plan plan;
        *(int64_t *[]){&p.B, &p.T, &p.HV}[i] = 0;
        ck_assert(cuda_plan_make(&plan, &p, address, &memory, &devices[3]));
        ck_assert_int_eq(plan.launches, 0);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        every_shape_gets_a_launch_that_the_device_takes,
        blocks_cover_every_panel_and_head,
        others_go_to_the_general_kernel,
        what_is_not_aligned_is_read_by_elements,
        scratch_memory_holds_its_parts,
        divisors_divide,
        empty_problems_launch_nothing,
    };
    return run_suite("plan", tests, sizeof tests / sizeof tests[0]);
}
