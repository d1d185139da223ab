/*
 * What problem_from_tensors and problem_check accept and refuse: each row of the operation's table, each
 * refusal with its sentence, and overlap decided exactly.
 */
#include "kernels/problem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* A legal set of tensors: B 2, T 5, H 2, HV 4, K 8, C 16, each in memory of its own (allocation: its number).
 */
static struct operand_tensor tensors[OPERAND_COUNT];
static char why[PROBLEM_WHY];
static struct problem problem;

static void contiguous(struct operand_tensor *t, int ndim, const int64_t *shape) {
    t->ndim = ndim;
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->stride[i] = stride;
        stride *= shape[i];
    }
}

static void legal(int64_t B, int64_t T, int64_t H, int64_t HV, int64_t K, int64_t C) {
    memset(tensors, 0, sizeof tensors);
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        struct operand_tensor *t = &tensors[o];
        bool of_head = o <= OPERAND_K;
        bool three = o == OPERAND_BETA || o == OPERAND_DB || o == OPERAND_DB_OUT;
        bool matrix = o == OPERAND_DAQK || o == OPERAND_DAKK;
        t->dtype = of_head ? DTYPE_BF16 : DTYPE_F32;
        t->allocation = o + 1;
        t->allocation_size = 1 << 20;
        contiguous(t, three ? 3 : 4, (int64_t[]){B, T, of_head ? H : HV, matrix ? C : K});
    }
}

static void setup(void) {
    legal(2, 5, 2, 4, 8, 16);
    strcpy(why, "-");
}

static bool accepted(int64_t chunk_size) {
    return problem_from_tensors(&problem, tensors, chunk_size, why) && problem_check(&problem, why);
}

#define ck_accepted(chunk_size) ck_assert_msg(accepted(chunk_size), "refused: %s", why)
#define ck_refused(chunk_size, sentence)                                              \
    do {                                                                              \
        ck_assert_msg(!accepted(chunk_size), "accepted, but expected: %s", sentence); \
        ck_assert_str_eq(why, sentence);                                              \
    } while (0)

START_TEST(legal_is_accepted) {
    ck_accepted(16);
    ck_assert_int_eq(problem.B, 2);
    ck_assert_int_eq(problem.HV, 4);
    ck_assert_int_eq(problem.N, -1);
    for (int64_t chunk = 16; chunk <= 128; chunk *= 2) {
        legal(1, 3, 1, 1, 256, chunk);
        ck_accepted(chunk);
    }
    legal(1, 1, 1, 1, 1, 16);
    ck_accepted(16);
}
END_TEST

START_TEST(empty_is_accepted) {
    int64_t sizes[4][3] = {{0, 5, 4}, {2, 0, 4}, {2, 5, 0}, {0, 0, 0}};
    for (int i = 0; i < 4; i++) {
        legal(sizes[i][0], sizes[i][1], 2, sizes[i][2], 8, 16);
        for (enum operand o = 0; o < OPERAND_COUNT; o++)
            tensors[o].allocation_size = 0;
        ck_accepted(16);
        ck_assert(problem_is_empty(&problem));
        ck_assert_uint_eq(problem_traffic(&problem), 0);
    }
}
END_TEST

START_TEST(sizes_are_refused) {
    ck_refused(48, "chunk_size: is 48, but must be 16, 32, 64 or 128");
    ck_refused(0, "chunk_size: is 0, but must be 16, 32, 64 or 128");
    ck_refused(32, "dAqk: last dimension is 16, but chunk_size is 32");
    legal(1, 5, 2, 4, 257, 16);
    ck_refused(16, "K: is 257, but must be 1 to 256");
    legal(1, 5, 2, 4, 0, 16);
    ck_refused(16, "K: is 0, but must be 1 to 256");
    legal(1, 5, 2, 3, 8, 16);
    ck_refused(16, "HV: is 3, but must be a multiple of H, which is 2");
    legal(1, 5, 0, 3, 8, 16);
    ck_refused(16, "HV: is 3, but must be a multiple of H, which is 0");
    setup();
    tensors[OPERAND_Q].shape[0] = -1;
    ck_refused(16, "B: is -1, but must be 0 to 2^48");
}
END_TEST

START_TEST(shapes_are_refused) {
    tensors[OPERAND_Q].ndim = 3;
    ck_refused(16, "q: has 3 dimensions, but must have 4");
    setup();
    tensors[OPERAND_G].ndim = 0;
    ck_refused(16, "g: is missing");
    setup();
    tensors[OPERAND_DB].ndim = 0;
    ck_refused(16, "db: is missing");
    setup();
    tensors[OPERAND_K].shape[3] = 4;
    ck_refused(16, "k: last dimension is 4, but K is 8");
    setup();
    tensors[OPERAND_BETA].shape[2] = 2;
    ck_refused(16, "beta: last dimension is 2, but HV is 4");
    setup();
    tensors[OPERAND_DAKK].shape[1] = 6;
    ck_refused(16, "dAkk: dimension 1 is 6, but T is 5");
    setup();
    tensors[OPERAND_DG_OUT].shape[2] = 2;
    ck_refused(16, "dg_out: dimension 2 is 2, but HV is 4");
    setup();
    tensors[OPERAND_DQ].stride[3] = 2;
    ck_refused(16, "dq: stride of the last dimension is 2, but must be 1");
    setup();
    tensors[OPERAND_BETA].stride[2] = 0;
    ck_refused(16, "beta: stride of the last dimension is 0, but must be 1");
}
END_TEST

START_TEST(types_are_refused) {
    tensors[OPERAND_Q].dtype = DTYPE_I64;
    ck_refused(16, "q: type is int64, but must be bfloat16, float16 or float32");
    setup();
    tensors[OPERAND_K].dtype = DTYPE_F32;
    ck_refused(16, "k: type is float32, but must be bfloat16, as q's");
    setup();
    tensors[OPERAND_G].dtype = DTYPE_BF16;
    ck_refused(16, "g: type is bfloat16, but must be float32");
    setup();
    tensors[OPERAND_BETA].dtype = DTYPE_I32;
    ck_refused(16, "beta: type is int32, but must be float32, bfloat16 or float16");
    setup();
    tensors[OPERAND_DK_OUT].dtype = DTYPE_F16;
    ck_refused(16, "dk_out: type is float16, but must be float32");
    for (int i = 0; i < 3; i++) {
        setup();
        enum dtype d = (enum dtype[]){DTYPE_BF16, DTYPE_F16, DTYPE_F32}[i];
        tensors[OPERAND_Q].dtype = tensors[OPERAND_K].dtype = tensors[OPERAND_BETA].dtype = d;
        ck_accepted(16);
    }
}
END_TEST

START_TEST(cu_seqlens_is_checked) {
    struct operand_tensor *cu = &tensors[OPERAND_CU_SEQLENS];
    legal(1, 5, 2, 4, 8, 16);
    contiguous(cu, 1, (int64_t[]){3});
    cu->dtype = DTYPE_I64;
    cu->allocation = 99;
    cu->allocation_size = 24;
    ck_accepted(16);
    ck_assert_int_eq(problem.N, 2);
    cu->allocation_size = 23;
    ck_refused(16, "cu_seqlens: ends at byte 24 of its memory, which has only 23");
    cu->dtype = DTYPE_I32;
    ck_accepted(16);
    cu->dtype = DTYPE_F32;
    ck_refused(16, "cu_seqlens: type is float32, but must be int64 or int32");
    cu->dtype = DTYPE_I64;
    cu->shape[0] = 0;
    ck_refused(16, "cu_seqlens: has 0 elements, but must have at least 1");
    cu->shape[0] = 1;
    ck_accepted(16);
    cu->ndim = 2;
    ck_refused(16, "cu_seqlens: has 2 dimensions, but must have 1");
    legal(2, 5, 2, 4, 8, 16);
    contiguous(cu, 1, (int64_t[]){2});
    cu->dtype = DTYPE_I64;
    ck_refused(16, "cu_seqlens: B is 2, but must be 1 with cu_seqlens");
}
END_TEST

START_TEST(strides_are_checked) {
    tensors[OPERAND_G].stride[1] = -32;
    ck_refused(16, "g: stride of dimension 1 is -32, but must not be negative");
    setup();
    for (enum operand o = 0; o < OPERAND_DQ_OUT; o++) /* all inputs expanded */
        memset(tensors[o].stride, 0, 2 * sizeof(int64_t));
    ck_accepted(16);
    setup();
    tensors[OPERAND_DQ_OUT].stride[0] = 0;
    ck_refused(16, "dq_out: overlaps itself, but an output's elements must be distinct");
    setup();
    tensors[OPERAND_DQ_OUT].stride[1] = 16;
    ck_refused(16, "dq_out: overlaps itself, but an output's elements must be distinct");
    setup();
    tensors[OPERAND_K].stride[0] = INT64_MAX;
    ck_refused(16, "k: spans more than 2^60 bytes");
    setup();
    tensors[OPERAND_Q].offset = 1;
    ck_refused(16, "q: address is not a multiple of 2, the size of its type");
    setup();
    legal(1, 1, 1, 1, 1, 16); /* dimensions of size 1 may have any stride */
    for (int i = 0; i < 4; i++)
        tensors[OPERAND_DQ_OUT].stride[i] = tensors[OPERAND_Q].stride[i] = 12345678901;
    ck_accepted(16);
}
END_TEST

START_TEST(bounds_are_checked) {
    struct operand_tensor *g = &tensors[OPERAND_G];
    uint64_t bytes = 2 * 5 * 4 * 8 * 4;
    g->allocation_size = bytes;
    ck_accepted(16);
    g->offset = 4;
    ck_refused(16, "g: ends at byte 1284 of its memory, which has only 1280");
    g->allocation_size = bytes + 4;
    ck_accepted(16);
    g->offset = UINT64_MAX - 3;
    ck_assert(!accepted(16));
    g->allocation_size = UINT64_MAX;
    ck_assert(!accepted(16));
    g->offset = UINT64_MAX - bytes - 3;
    ck_assert(!accepted(16));
}
END_TEST

/* Puts output o at an offset of operand i's memory, contiguous. */
static void share(enum operand o, enum operand i, uint64_t offset) {
    tensors[o].allocation = tensors[i].allocation;
    tensors[o].offset = offset;
}

START_TEST(in_place_is_accepted) {
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
        share(o, o - 4, 0);
    ck_accepted(16);
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
        tensors[o].ndim = 0; /* absent: in place */
    ck_accepted(16);
    ck_assert_uint_eq(problem.at[OPERAND_DB_OUT].allocation, OPERAND_DB + 1);
    memset(tensors[OPERAND_DK].stride, 0, sizeof(int64_t));
    ck_refused(16, "dk_out: overlaps itself, but an output's elements must be distinct");
}
END_TEST

START_TEST(overlap_is_refused) {
    share(OPERAND_DQ_OUT, OPERAND_DQ, 4);
    ck_refused(16, "dq_out: overlaps dq, but may share memory only with dq, as the identical view");
    setup();
    share(OPERAND_DQ_OUT, OPERAND_DK, 0);
    ck_refused(16, "dq_out: overlaps dk, but may share memory only with dq, as the identical view");
    setup();
    share(OPERAND_DK_OUT, OPERAND_DG_OUT, 1276);
    ck_refused(16, "dk_out: overlaps dg_out, but may share memory only with dk, as the identical view");
    setup();
    share(OPERAND_DK_OUT, OPERAND_DG_OUT, 1280);
    ck_accepted(16);
    setup();
    share(OPERAND_DB_OUT, OPERAND_BETA, 40);
    ck_refused(16, "db_out: overlaps beta, but may share memory only with db, as the identical view");
    setup();
    share(OPERAND_DG_OUT, OPERAND_Q, 636); /* q has 2 · 5 · 2 · 8 · 2 = 320 bytes … */
    ck_accepted(16);
    share(OPERAND_DG_OUT, OPERAND_Q, 316);
    ck_refused(16, "dg_out: overlaps q, but may share memory only with dg, as the identical view");
}
END_TEST

/* dq and dk in the halves of one tensor [B, T, HV, 2 K], and their rows by turns: no byte is shared. */
START_TEST(interleaved_outputs_are_accepted) {
    share(OPERAND_DK_OUT, OPERAND_DQ_OUT, 8 * 4);
    for (int i = 0; i < 3; i++) {
        tensors[OPERAND_DQ_OUT].stride[i] *= 2;
        tensors[OPERAND_DK_OUT].stride[i] *= 2;
    }
    ck_accepted(16);
    tensors[OPERAND_DK_OUT].offset -= 4;
    ck_refused(16, "dq_out: overlaps dk_out, but may share memory only with dq, as the identical view");
    setup();
    tensors[OPERAND_DQ_OUT].stride[1] = tensors[OPERAND_DK_OUT].stride[1] = 2 * 32;
    tensors[OPERAND_DQ_OUT].stride[0] = tensors[OPERAND_DK_OUT].stride[0] = 5 * 2 * 32;
    share(OPERAND_DK_OUT, OPERAND_DQ_OUT, 32 * 4);
    ck_accepted(16);
}
END_TEST

START_TEST(transposed_layouts_are_accepted) {
    /* [B, HV, T, K] in memory */
    for (enum operand o = 0; o < OPERAND_CU_SEQLENS; o++) {
        struct operand_tensor *t = &tensors[o];
        if (t->ndim != 4)
            continue;
        t->stride[1] = t->shape[3];
        t->stride[2] = t->shape[3] * t->shape[1];
    }
    ck_accepted(16);
}
END_TEST

/* Random small views against a bitmap of their bytes. */
START_TEST(overlap_is_exact) {
    unsigned seed = 7;
    int overlaps = 0;
    for (int round = 0; round < 20000; round++) {
        legal(1 + rand_r(&seed) % 3, 1 + rand_r(&seed) % 4, 1, 1 + rand_r(&seed) % 3, 1 + rand_r(&seed) % 3,
              16);
        unsigned char map[4096] = {0};
        bool clash = false;
        enum operand pair[2] = {OPERAND_DQ_OUT, OPERAND_DG_OUT};
        for (int i = 0; i < 2; i++) {
            struct operand_tensor *t = &tensors[pair[i]];
            t->allocation = 77;
            t->offset = 4 * (uint64_t)(rand_r(&seed) % 24);
            for (int d = 0; d < 3; d++)
                t->stride[d] = rand_r(&seed) % 24;
            for (int64_t b = 0; b < t->shape[0]; b++)
                for (int64_t r = 0; r < t->shape[1]; r++)
                    for (int64_t h = 0; h < t->shape[2]; h++)
                        for (int64_t d = 0; d < t->shape[3]; d++) {
                            int64_t at = (int64_t)t->offset / 4 + b * t->stride[0] + r * t->stride[1] +
                                         h * t->stride[2] + d;
                            clash |= map[at];
                            map[at] = 1;
                        }
        }
        ck_assert_msg(accepted(16) == !clash, "round %d: %s, but the bytes say %s", round, why,
                      clash ? "overlap" : "distinct");
        overlaps += clash;
    }
    ck_assert_int_gt(overlaps, 1000);
    ck_assert_int_lt(overlaps, 19000);
}
END_TEST

START_TEST(traffic_of_the_standard_shape) {
    legal(8, 8192, 32, 32, 128, 64);
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        tensors[o].allocation_size = UINT64_C(1) << 40;
    ck_accepted(64);
    ck_assert_uint_eq(problem_traffic(&problem), UINT64_C(9286189056));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("problem");
    TCase *c = tcase_create("problem");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, legal_is_accepted);
    tcase_add_test(c, empty_is_accepted);
    tcase_add_test(c, sizes_are_refused);
    tcase_add_test(c, shapes_are_refused);
    tcase_add_test(c, types_are_refused);
    tcase_add_test(c, cu_seqlens_is_checked);
    tcase_add_test(c, strides_are_checked);
    tcase_add_test(c, bounds_are_checked);
    tcase_add_test(c, in_place_is_accepted);
    tcase_add_test(c, overlap_is_refused);
    tcase_add_test(c, interleaved_outputs_are_accepted);
    tcase_add_test(c, transposed_layouts_are_accepted);
    tcase_add_test(c, overlap_is_exact);
    tcase_add_test(c, traffic_of_the_standard_shape);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
