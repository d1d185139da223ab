/*
 * bench_kernel.c - kdad-gpu-bench: the GPU kernel at the shapes that matter, against a copy of the job's
 * bytes.
 *
 * In turns, medians of ROUNDS; each turn is enough launches to last some milliseconds, so that the launch
 * itself does not count. Small jobs rotate through copies of their tensors, so that the L2 cache is cold.
 */
#ifdef HAVE_CUDA

#include "kernels/cuda/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9, COLD_BYTES = 200000000, SETS_MAX = 16 };

struct shape {
    int64_t B, T, H, HV, K, C;
    enum dtype qk;
    int64_t sequences; /* 0: fixed length */
};

static const struct shape shapes[] = {
    {8, 8192, 32, 32, 128, 64, DTYPE_BF16, 0}, {4, 8192, 16, 32, 128, 64, DTYPE_BF16, 0},
    {1, 8192, 32, 32, 128, 64, DTYPE_BF16, 0}, {1, 4096, 16, 16, 128, 64, DTYPE_BF16, 0},
    {1, 1024, 8, 8, 128, 64, DTYPE_BF16, 0},   {1, 65536, 32, 32, 128, 64, DTYPE_BF16, 64},
    {8, 8192, 32, 32, 64, 64, DTYPE_BF16, 0},  {4, 8192, 32, 32, 256, 64, DTYPE_BF16, 0},
    {4, 8192, 32, 32, 100, 64, DTYPE_BF16, 0}, {4, 8192, 32, 32, 128, 16, DTYPE_BF16, 0},
    {4, 8192, 32, 32, 128, 32, DTYPE_BF16, 0}, {4, 8192, 32, 32, 128, 128, DTYPE_BF16, 0},
    {4, 8192, 32, 32, 128, 64, DTYPE_F16, 0},  {4, 8192, 32, 32, 128, 64, DTYPE_F32, 0},
};

static const struct cuda_driver *driver;
static struct cuda_kernels *kernels;
static CUstream stream;

static void must(CUresult result, const char *call) {
    char why[CUDA_WHY];
    if (cuda_ok(result, call, why))
        return;
    fprintf(stderr, "kdad-gpu-bench: %s\n", why);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

struct set {
    uint64_t address[OPERAND_COUNT];
};

/* A pattern of random numbers, repeated over an operand; g falls along each chunk. */
static void fill(CUdeviceptr at, uint64_t bytes, enum operand o, const struct shape *s) {
    int64_t row = o == OPERAND_G ? s->HV * s->K : 4096;
    uint64_t count = (uint64_t)(row * s->C);
    size_t size = o <= OPERAND_K && s->qk != DTYPE_F32 ? 2 : 4;
    void *pattern = malloc(count * size);
    unsigned seed = 1;
    for (uint64_t i = 0; i < count; i++) {
        float x = (float)(rand_r(&seed) % 2001 - 1000) * 1e-3F;
        if (o == OPERAND_G)
            x = (i < (uint64_t)row ? 0 : ((float *)pattern)[i - (uint64_t)row]) - 0.1F * fabsf(x);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        if (size == 2)
            ((uint16_t *)pattern)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)pattern)[i] = x;
    }
    for (uint64_t done = 0; done < bytes; done += count * size) {
        uint64_t part = bytes - done < count * size ? bytes - done : count * size;
        must(driver->MemcpyHtoDAsync(at + done, pattern, part, stream), "cuMemcpyHtoDAsync");
        must(driver->StreamSynchronize(stream), "cuStreamSynchronize");
    }
    free(pattern);
}

static void measure(const struct shape *s) {
    struct problem p = {.B = s->B,
                        .T = s->T,
                        .H = s->H,
                        .HV = s->HV,
                        .K = s->K,
                        .C = s->C,
                        .N = s->sequences ? s->sequences : -1,
                        .qk_dtype = s->qk,
                        .beta_dtype = DTYPE_F32,
                        .cu_dtype = DTYPE_I64};
    uint64_t bytes = 0, extent[OPERAND_COUNT];
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        problem_contiguous(&p, o, p.at[o].stride);
        extent[o] = problem_has(&p, o) ? (problem_extent(&p, o) + 255) / 256 * 256 : 0;
        bytes += extent[o];
    }
    int sets = bytes < COLD_BYTES ? (int)(COLD_BYTES / bytes) + 1 : 1;
    sets = sets < SETS_MAX ? sets : SETS_MAX;
    struct set set[SETS_MAX];
    CUdeviceptr memory, copy, scratch;
    uint64_t traffic = problem_traffic(&p);
    must(driver->MemAlloc(&memory, bytes * (uint64_t)sets), "cuMemAlloc");
    must(driver->MemAlloc(&copy, traffic * (sets > 1 ? (uint64_t)sets : 1)), "cuMemAlloc");
    must(driver->MemAlloc(&scratch, 65536), "cuMemAlloc");
    for (int i = 0; i < sets; i++) {
        CUdeviceptr at = memory + bytes * (uint64_t)i;
        for (enum operand o = 0; o < OPERAND_COUNT; o++) {
            set[i].address[o] = at;
            if (extent[o] && o != OPERAND_CU_SEQLENS)
                fill(at, extent[o], o, s);
            at += extent[o];
        }
        if (s->sequences) {
            int64_t cu[65] = {0};
            unsigned seed = 3;
            for (int64_t n = 1; n < s->sequences; n++)
                cu[n] = cu[n - 1] + 1 + rand_r(&seed) % (2 * s->T / s->sequences - 2);
            cu[s->sequences] = s->T;
            for (int64_t n = 1; n < s->sequences; n++)
                cu[n] = cu[n] < s->T ? cu[n] : s->T;
            must(driver->MemcpyHtoDAsync(set[i].address[OPERAND_CU_SEQLENS], cu, sizeof cu, stream), "copy");
            must(driver->StreamSynchronize(stream), "cuStreamSynchronize");
        }
    }
    struct cuda_sequences sequences = {.scratch = scratch};
    double ours[ROUNDS], theirs[ROUNDS];
    int launches = (int)(2e10 / (double)traffic);
    launches = launches < 4 ? 4 : launches > 400 ? 400 : launches;
    for (int round = -1; round < ROUNDS; round++) {
        char why[CUDA_WHY];
        double start = now();
        for (int i = 0; i < launches; i++) {
            if (!cuda_launch(kernels, stream, &p, set[i % sets].address, &sequences, why)) {
                fprintf(stderr, "kdad-gpu-bench: %s\n", why);
                exit(1);
            }
        }
        must(driver->StreamSynchronize(stream), "cuStreamSynchronize");
        double middle = now();
        for (int i = 0; i < launches; i++) {
            CUdeviceptr at = copy + (uint64_t)(i % sets) * traffic;
            must(driver->MemcpyDtoDAsync(at, at + traffic / 2, traffic / 2, stream), "cuMemcpyDtoDAsync");
        }
        must(driver->StreamSynchronize(stream), "cuStreamSynchronize");
        if (round >= 0) {
            ours[round] = (middle - start) / launches * 1e3;
            theirs[round] = (now() - middle) / launches * 1e3;
        }
    }
    double a = median(ours), b = median(theirs);
    printf("[%lld, %5lld, %2lld, %2lld, %3lld] C %3lld %s%s  %8.4f ms  copy %8.4f ms  %5.2f of the copy\n",
           (long long)s->B, (long long)s->T, (long long)s->H, (long long)s->HV, (long long)s->K,
           (long long)s->C, dtype_name(s->qk), s->sequences ? " varlen" : "", a, b, b / a);
    driver->MemFree(memory);
    driver->MemFree(copy);
    driver->MemFree(scratch);
}

int main(int argc, char **argv) {
    char why[CUDA_WHY] = "";
    CUdevice device;
    CUcontext context;
    driver = cuda_driver(why);
    if (!driver) {
        fprintf(stderr, "kdad-gpu-bench: %s\n", why);
        return 77;
    }
    must(driver->DeviceGet(&device, 0), "cuDeviceGet");
    must(driver->DevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(driver->CtxSetCurrent(context), "cuCtxSetCurrent");
    must(driver->StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority");
    kernels = cuda_kernels_load(driver, why);
    if (!kernels) {
        fprintf(stderr, "kdad-gpu-bench: %s\n", why);
        return 1;
    }
    size_t first = argc > 1 ? (size_t)atoi(argv[1]) : 0;
    size_t count = argc > 2 ? (size_t)atoi(argv[2]) : sizeof shapes / sizeof shapes[0] - first;
    for (size_t i = first; i < first + count && i < sizeof shapes / sizeof shapes[0]; i++)
        measure(&shapes[i]);
    return 0;
}

#else
int main(void) {
    return 77; /* skipped: a build without CUDA */
}
#endif
