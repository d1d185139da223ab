/*
 * cpu.c - jobs on a CPU: items, addresses, and the choice of kernels.
 *
 * Items are numbered with the value head as the fastest: neighbours in number lie next to each other in
 * memory, and the value heads of a group share rows of q and k. Behind the chunks come copies, of COPY_ROWS
 * rows each, of the rows that belong to no sequence; there are none if every output is in place.
 *
 * A begun job is read-only: any number of threads may run its items at once. The kernels in use are one
 * atomic pointer, which the first job sets.
 */
#include "kernels/cpu/cpu.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/cpu/chunk.h"

enum {
    COPY_ROWS = 64,
    LARGE = 8 << 20, /* bytes of outputs from which on they are written past the caches */
};

/* ---------------------------------------------------------------------------------------------- kernels */

static _Atomic(const struct chunk_kernels *) kernels_in_use;

#if defined(__x86_64__)
static bool has_avx2(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

/* The kernels for an instruction set, NULL if they are not in this build or not for this processor. */
static const struct chunk_kernels *find_kernels(enum cpu_isa isa) {
    const bool best = isa == CPU_ISA_BEST;
#if defined(__x86_64__)
    if ((best || isa == CPU_ISA_AVX512) && has_avx512())
        return &chunk_avx512;
    if ((best || isa == CPU_ISA_AVX2) && has_avx2())
        return &chunk_avx2;
#elif defined(__aarch64__)
    if (best || isa == CPU_ISA_NEON)
        return &chunk_neon;
#endif
    return best || isa == CPU_ISA_PORTABLE ? &chunk_portable : NULL;
}

static const struct chunk_kernels *kernels(void) {
    const struct chunk_kernels *found = atomic_load_explicit(&kernels_in_use, memory_order_acquire);
    if (!found) {
        found = find_kernels(CPU_ISA_BEST);
        atomic_store_explicit(&kernels_in_use, found, memory_order_release);
    }
    return found;
}

bool cpu_use_isa(enum cpu_isa isa) {
    const struct chunk_kernels *found = find_kernels(isa);
    if (found)
        atomic_store_explicit(&kernels_in_use, found, memory_order_release);
    return found != NULL;
}

const char *cpu_isa_name(void) {
    return kernels()->name;
}

size_t cpu_scratch_size(void) {
    return CHUNK_SCRATCH;
}

/* ------------------------------------------------------------------------------------------- addresses */

static size_t element_size(const struct problem *p, enum operand o) {
    switch (o) {
    case OPERAND_Q:
    case OPERAND_K:
        return dtype_size(p->qk_dtype);
    case OPERAND_BETA:
        return dtype_size(p->beta_dtype);
    default:
        return sizeof(float);
    }
}

/* Rows and heads of one operand: its first row's element 0, and bytes from a row or head to the next. */
struct strip {
    char *at;
    ptrdiff_t row, head;
};

/* The stride of a dimension of size 1 can be anything, so nothing is computed with it. */
static struct strip strip_of(const struct problem *p, void *const data[OPERAND_COUNT], enum operand o,
                             int64_t batch, int64_t row) {
    const struct operand_view *view = &p->at[o];
    const int64_t size = (int64_t)element_size(p, o), heads = o == OPERAND_Q || o == OPERAND_K ? p->H : p->HV;
    return (struct strip){
        .at = (char *)data[o] + (batch * view->stride[0] + row * view->stride[1]) * size,
        .row = p->T > 1 ? view->stride[1] * size : 0,
        .head = heads > 1 ? view->stride[2] * size : 0,
    };
}

/* Copies rows first ... end - 1 of one batch from incoming gradients to the outputs that are not in place. */
static void copy_rows(const struct problem *p, void *const data[OPERAND_COUNT], int64_t batch, int64_t first,
                      int64_t end) {
    for (int i = 0; i < 4; i++) {
        const enum operand in = OPERAND_DQ + i, out = OPERAND_DQ_OUT + i;
        if (data[in] == data[out])
            continue;
        const size_t bytes = (in == OPERAND_DB ? 1 : (size_t)p->K) * sizeof(float);
        struct strip from = strip_of(p, data, in, batch, first), to = strip_of(p, data, out, batch, first);
        for (int64_t row = first; row < end; row++, from.at += from.row, to.at += to.row)
            for (int64_t head = 0; head < p->HV; head++)
                memcpy(to.at + head * to.head, from.at + head * from.head, bytes);
    }
}

void cpu_job_copy_through(const struct problem *p, void *const data[OPERAND_COUNT]) {
    if (problem_is_empty(p))
        return;
    for (int64_t batch = 0; batch < p->B; batch++)
        copy_rows(p, data, batch, 0, p->T);
}

/* ------------------------------------------------------------------------------------------------ jobs */

static int64_t chunks_in(const struct problem *p, int64_t rows) {
    return rows / p->C + (rows % p->C != 0);
}

static int64_t read_cu(const struct problem *p, const void *cu, int64_t i) {
    return p->cu_dtype == DTYPE_I32 ? ((const int32_t *)cu)[i] : ((const int64_t *)cu)[i];
}

/* Copies and checks cu_seqlens, counts chunks. */
static bool read_sequences(struct cpu_job *job, const void *cu, char why[PROBLEM_WHY]) {
    const struct problem *p = &job->problem;
    int64_t *block = malloc((2 * (size_t)p->N + 1) * sizeof *block);
    if (!block) {
        snprintf(why, PROBLEM_WHY, "out of memory for %" PRId64 " sequences", p->N);
        return false;
    }
    job->chunk_ends = block;
    job->row_ends = block + p->N;
    job->row_ends[0] = read_cu(p, cu, 0);
    if (job->row_ends[0] != 0) {
        snprintf(why, PROBLEM_WHY, "cu_seqlens: starts at %" PRId64 ", but must start at 0",
                 job->row_ends[0]);
        goto bad;
    }
    int64_t chunks = 0;
    for (int64_t i = 0; i < p->N; i++) {
        const int64_t start = job->row_ends[i], end = read_cu(p, cu, i + 1);
        if (end < start) {
            snprintf(why, PROBLEM_WHY,
                     "cu_seqlens: falls from %" PRId64 " to %" PRId64 " at %" PRId64 ", but must not fall",
                     start, end, i + 1);
            goto bad;
        }
        if (end > p->T) {
            snprintf(why, PROBLEM_WHY,
                     "cu_seqlens: is %" PRId64 " at %" PRId64 ", but must be at most T, which is %" PRId64,
                     end, i + 1, p->T);
            goto bad;
        }
        chunks += chunks_in(p, end - start);
        job->row_ends[i + 1] = end;
        job->chunk_ends[i] = chunks;
    }
    return true;
bad:
    cpu_job_end(job);
    return false;
}

static bool in_place(void *const data[OPERAND_COUNT]) {
    for (int i = 0; i < 4; i++)
        if (data[OPERAND_DQ + i] != data[OPERAND_DQ_OUT + i])
            return false;
    return true;
}

/* Chunks of all value heads of one batch. */
static int64_t chunk_count(const struct cpu_job *job) {
    const struct problem *p = &job->problem;
    if (!job->chunk_ends)
        return chunks_in(p, p->T);
    return p->N > 0 ? job->chunk_ends[p->N - 1] : 0;
}

bool cpu_job_begin(struct cpu_job *job, const struct problem *p, void *const data[OPERAND_COUNT],
                   char why[PROBLEM_WHY]) {
    job->problem = *p;
    memcpy(job->data, data, sizeof job->data);
    job->items = 0;
    job->chunk_ends = job->row_ends = NULL;
    if (problem_is_empty(p))
        return true;
    if (p->N >= 0 && !read_sequences(job, data[OPERAND_CU_SEQLENS], why))
        return false;
    job->items = p->B * chunk_count(job) * p->HV;
    if (job->row_ends && !in_place(data)) {
        const int64_t left = p->T - job->row_ends[p->N];
        job->items += left / COPY_ROWS + (left % COPY_ROWS != 0);
    }
    return true;
}

void cpu_job_end(struct cpu_job *job) {
    free(job->chunk_ends);
    job->chunk_ends = job->row_ends = NULL;
}

/* Rows of chunk `index` of a batch. */
static void chunk_rows(const struct cpu_job *job, int64_t index, int64_t *first, int64_t *end) {
    const int64_t size = job->problem.C;
    if (!job->chunk_ends) {
        *first = index * size;
        *end = job->problem.T;
    } else {
        /* The first sequence whose chunks end behind index. */
        int64_t low = 0, high = job->problem.N - 1;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (job->chunk_ends[middle] > index)
                high = middle;
            else
                low = middle + 1;
        }
        const int64_t before = low > 0 ? job->chunk_ends[low - 1] : 0;
        *first = job->row_ends[low] + (index - before) * size;
        *end = job->row_ends[low + 1];
    }
    if (*end - *first > size)
        *end = *first + size;
}

static void set_chunk(struct chunk *c, const struct cpu_job *job, int64_t item) {
    const struct problem *p = &job->problem;
    const int64_t chunks = chunk_count(job), head = item % p->HV;
    const int64_t batch = chunks > 0 ? item / p->HV / chunks : 0, index = item / p->HV - batch * chunks;
    int64_t first, end;
    chunk_rows(job, index, &first, &end);
    c->rows = (int)(end - first);
    c->size = (int)p->C;
    c->width = (int)p->K;
    c->large = p->B * p->T * p->HV * p->K * 3 * (int64_t)sizeof(float) >= LARGE;
    c->qk_dtype = p->qk_dtype;
    c->beta_dtype = p->beta_dtype;
    for (enum operand o = OPERAND_Q; o < OPERAND_CU_SEQLENS; o++) {
        const struct strip strip = strip_of(p, job->data, o, batch, first);
        const bool shared = o == OPERAND_Q || o == OPERAND_K;
        c->at[o] = strip.at + (shared ? head * p->H / p->HV : head) * strip.head;
        c->step[o] = strip.row;
    }
}

void cpu_job_run(const struct cpu_job *job, int64_t first, int64_t count, void *scratch) {
    const struct problem *p = &job->problem;
    const struct chunk_kernels *with = kernels();
    const int64_t chunk_items = p->B * chunk_count(job) * p->HV;
    const int64_t end = first + count, chunks_end = end < chunk_items ? end : chunk_items;
    int64_t item = first;
    if (item < chunks_end) {
        struct chunk chunk[2];
        set_chunk(&chunk[item & 1], job, item);
        for (; item < chunks_end; item++) {
            struct chunk *next = item + 1 < chunks_end ? &chunk[(item + 1) & 1] : NULL;
            if (next)
                set_chunk(next, job, item + 1);
            with->run(&chunk[item & 1], next, scratch);
        }
    }
    for (; item < end; item++) {
        const int64_t row = job->row_ends[p->N] + (item - chunk_items) * COPY_ROWS;
        copy_rows(p, job->data, 0, row, p->T - row < COPY_ROWS ? p->T : row + COPY_ROWS);
    }
}

/* Fitted to measurements with AVX2: what each element costs to move, and what each of its pairs costs. */
int64_t cpu_item_cost(const struct problem *p) {
    const int64_t rows = p->T < p->C ? p->T : p->C, width = (p->K + 15) / 16 * 16;
    return 100 + rows * width * (50 + rows) / 13;
}
