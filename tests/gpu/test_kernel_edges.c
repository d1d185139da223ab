/* The kernels, each design of them, where the CPU's tests do not go: bad cu_seqlens, which a job only sees
 * when it runs; equal results from launch to launch; tensors of more than 2^31 elements; which kernel takes
 * what. */
#ifdef HAVE_CUDA

#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct shape aligned(void) {
    struct shape s = plain;
    s.T = 200;
    s.HV = 4;
    s.K = 64;
    return s;
}

/* --- which kernel -------------------------------------------------------------------------------------- */

static const char *kernel_of(const struct shape *s) {
    struct fixture f = make(s);
    struct gpu_fixture g;
    gpu_fixture_open(&g, &f);
    const char *name = cuda_kernels_name(gpu_kernels(), &f.p, g.address);
    gpu_fixture_close(&g);
    destroy(&f);
    return name;
}

START_TEST(the_fast_kernel_is_taken_where_it_can_be) {
    struct shape s = aligned();
    ck_assert_str_eq(kernel_of(&s), "kda_panel_bf16");
    s.qk = DTYPE_F16;
    ck_assert_str_eq(kernel_of(&s), "kda_panel_f16");
    s.qk = DTYPE_F32;
    ck_assert_str_eq(kernel_of(&s), "kda_panel_f32");
    s.K = 70;
    ck_assert_str_eq(kernel_of(&s), "kda_panel_f32_any");
    s.C = 128;
    ck_assert_str_eq(kernel_of(&s), "kdad_chunk_f32");
    s = aligned();
    cuda_kernels_use(gpu_kernels(), CUDA_DESIGN_PANEL_ANY);
    ck_assert_str_eq(kernel_of(&s), "kda_panel_bf16_any");
    cuda_kernels_use(gpu_kernels(), CUDA_DESIGN_CHUNK);
    ck_assert_str_eq(kernel_of(&s), "kdad_chunk_bf16");
}
END_TEST

/* --- bad cu_seqlens ------------------------------------------------------------------------------------ */

enum { BAD_STATUS = 77, UNTOUCHED = -1 };

struct bad_case {
    int64_t cu[4];
    int32_t verdict;
};

static const struct bad_case bad_cases[] = {
    {{1, 50, 100, 200}, CUDA_VERDICT_START},         {{-1, 50, 100, 200}, CUDA_VERDICT_START},
    {{0, 150, 100, 200}, CUDA_VERDICT_FALLING},      {{0, -5, 100, 200}, CUDA_VERDICT_FALLING},
    {{0, 50, 100, 201}, CUDA_VERDICT_END},           {{0, 50, INT64_MAX / 2, 200}, CUDA_VERDICT_FALLING},
    {{0, 50, 100, INT64_MIN}, CUDA_VERDICT_FALLING},
};

/* Launches with a cu_seqlens of which the host is not told, and reads what is told of it. */
static void launch_bad(struct gpu_fixture *g, const int64_t cu[4], int32_t told[2]) {
    const struct gpu *gpu = gpu_open();
    char why[CUDA_WHY] = "";
    CUdeviceptr words = gpu_alloc(2 * sizeof told[0]);
    struct cuda_sequences sequences = {.scratch = gpu_alloc(cuda_scratch_size(&g->host->p)),
                                       .verdict = words,
                                       .status = words + sizeof told[0],
                                       .bad_status = BAD_STATUS};
    told[0] = told[1] = UNTOUCHED;
    gpu_write(words, told, 2 * sizeof told[0]);
    gpu_write(g->address[OPERAND_CU_SEQLENS], cu, 4 * sizeof cu[0]);
    ck_assert_msg(cuda_launch(gpu_kernels(), gpu->stream, &g->host->p, g->address, &sequences, why), "%s",
                  why);
    gpu_read(told, words, 2 * sizeof told[0]);
    gpu_free(sequences.scratch);
    gpu_free(words);
}

START_TEST(bad_sequences_copy_what_comes_in) {
    struct shape s = aligned();
    s.N = 3;
    s.cu = DTYPE_I64;
    s.ends[0] = 50, s.ends[1] = 100, s.ends[2] = 200;
    for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++)
        for (int k = 0; k < 2 * VARIANTS; k++) {
            if (!use_variant(k / 2))
                continue;
            s.in_place = k % 2;
            reseed(i);
            struct fixture f = make(&s);
            struct outputs incoming = gather(&f, OPERAND_DQ);
            struct gpu_fixture g;
            int32_t told[2];
            gpu_fixture_open(&g, &f);
            launch_bad(&g, bad_cases[i].cu, told);
            gpu_fixture_close(&g);
            ck_assert_int_eq(told[0], bad_cases[i].verdict);
            ck_assert_int_eq(told[1], BAD_STATUS);
            struct outputs out = gather(&f, OPERAND_DQ_OUT);
            assert_equal(&incoming, &out);
            free_outputs(&incoming);
            free_outputs(&out);
            destroy(&f);
        }
}
END_TEST

/* --- equal results ------------------------------------------------------------------------------------- */

START_TEST(equal_launches_give_equal_bits) {
    struct shape s = aligned();
    s.B = 3;
    for (int k = 0; k < VARIANTS; k++) {
        if (!use_variant(k))
            continue;
        struct outputs first = {0};
        for (int again = 0; again < 8; again++) {
            reseed(1);
            struct fixture f = make(&s);
            struct outputs out = run_and_gather(&f);
            if (again == 0) {
                first = out;
            } else {
                assert_equal(&first, &out);
                free_outputs(&out);
            }
            destroy(&f);
        }
        free_outputs(&first);
    }
}
END_TEST

/* --- large tensors ------------------------------------------------------------------------------------- */

/* Rows repeat: a job of PERIOD rows, again and again up to more than 2^31 elements. Its last rows must be
 * those of the small job, bit for bit. */
enum { PERIOD = 704, PERIODS = 94, HEADS = 256 };

static uint64_t large_bytes(enum operand o, const struct problem *p) {
    return problem_extent(p, o) + 256;
}

static bool has_room(const struct problem *p) {
    size_t left, total, wanted = (size_t)1 << 30;
    gpu_ok(gpu_open()->driver->MemGetInfo(&left, &total));
    for (enum operand o = 0; o <= OPERAND_DG; o++)
        wanted += large_bytes(o, p);
    return wanted < left;
}

static void repeat_rows(CUdeviceptr at, const struct fixture *f, enum operand o) {
    const struct gpu *gpu = gpu_open();
    const size_t bytes = problem_extent(&f->p, o);
    gpu_write(at, f->data[o], bytes);
    for (int n = 1; n < PERIODS; n++)
        gpu_ok(gpu->driver->MemcpyDtoDAsync(at + (size_t)n * bytes, at, bytes, gpu->stream));
}

static void check_large(struct fixture *f, const struct problem *large) {
    const struct gpu *gpu = gpu_open();
    uint64_t address[OPERAND_COUNT] = {0};
    const struct cuda_sequences none = {0};
    static const size_t looked_at[] = {0, PERIODS / 2, PERIODS - 1};
    char why[CUDA_WHY] = "";
    for (enum operand o = 0; o <= OPERAND_DG; o++) {
        address[o] = gpu_alloc(large_bytes(o, large));
        repeat_rows(address[o], f, o);
    }
    memcpy(&address[OPERAND_DQ_OUT], &address[OPERAND_DQ], 4 * sizeof address[0]);
    ck_assert_msg(cuda_launch(gpu_kernels(), gpu->stream, large, address, &none, why), "%s", why);
    run(f);
    for (int i = 0; i < 4; i++) {
        const enum operand o = (enum operand)(OPERAND_DQ_OUT + i);
        const size_t bytes = problem_extent(&f->p, o);
        unsigned char *got = malloc(bytes);
        ck_assert_ptr_nonnull(got);
        for (size_t n = 0; n < sizeof looked_at / sizeof looked_at[0]; n++) {
            gpu_read(got, address[o] + looked_at[n] * bytes, bytes);
            ck_assert_msg(memcmp(got, f->data[o], bytes) == 0, "%s differs in period %d", operand_name(o),
                          (int)looked_at[n]);
        }
        free(got);
    }
    for (enum operand o = 0; o <= OPERAND_DG; o++)
        gpu_free(address[o]);
}

START_TEST(more_than_2_to_the_31_elements) {
    struct shape s = {.B = 1,
                      .T = PERIOD,
                      .H = 8,
                      .HV = HEADS,
                      .K = 128,
                      .C = 64,
                      .qk = DTYPE_BF16,
                      .beta = DTYPE_F32,
                      .gate = 0.2,
                      .in_place = true};
    reseed(1);
    struct fixture f = make(&s);
    struct problem large = f.p;
    large.T = (int64_t)PERIOD * PERIODS;
    ck_assert(large.T * large.HV * large.K > INT64_C(1) << 31);
    if (!has_room(&large))
        printf("not run: the device has too little free memory for tensors of 2^31 elements\n");
    for (int k = 0; k < VARIANTS && has_room(&large); k++) {
        if (k == CUDA_DESIGN_PANEL_ANY || !use_variant(k))
            continue;
        destroy(&f);
        reseed(1);
        f = make(&s);
        check_large(&f, &large);
    }
    destroy(&f);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        the_fast_kernel_is_taken_where_it_can_be,
        bad_sequences_copy_what_comes_in,
        equal_launches_give_equal_bits,
        more_than_2_to_the_31_elements,
    };
    if (!gpu_is_there())
        return GPU_SKIPPED;
    fixture_runner = gpu_run;
    fixture_variant = gpu_variant;
    return run_suite("kernel_edges", tests, sizeof tests / sizeof tests[0]);
}
#else
int main(void) {
    return 77; /* skipped: a build without CUDA */
}
#endif
