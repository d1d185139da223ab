/*
 * trainer.c - one client of a soak: random legal jobs, several at once, each compared bit by bit with what
 * the same kernels give in this process.
 */
#include "tests/soak/trainer.h"

#include "client/kdad.h"
#include "kernels/cpu/cpu.h"
#include "tests/oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAMS = 3, AT_ONCE = 4, BATCHES_MAX = 60, WAIT_MS = 60000, SEQUENCES = 5 };

/* Who is run, and what it tells. */
struct trainer {
    struct trainer_slot *slot;
    uint64_t random;
    void *scratch;
    struct kdad_connection *connection;
    struct kdad_stream *streams[STREAMS];
};

/* A job: its tensors in memory of either kind, and the same with what must come of them. */
struct job {
    struct problem p;
    bool in_place, bad;
    void *data[OPERAND_COUNT], *expected[OPERAND_COUNT];
    size_t bytes[OPERAND_COUNT];
    bool plain[OPERAND_COUNT];
    kdad_ticket ticket;
    struct kdad_stream *stream; /* NULL: not submitted */
};

static uint32_t draw(struct trainer *t, uint32_t below) {
    t->random = t->random * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(t->random >> 33) % below;
}

static void tell(struct trainer *t, uint64_t *counter, const char *call, kdad_status status) {
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    if (counter == &t->slot->unexpected)
        snprintf(t->slot->words, sizeof t->slot->words, "%s: %s: %s", call, kdad_status_string(status),
                 kdad_error());
}

/* What a daemon that dies or stops makes of a call. */
static bool is_loss(kdad_status status) {
    return status == KDAD_DAEMON_LOST || status == KDAD_NO_DAEMON || status == KDAD_CANCELLED;
}

/* --- a job's making ------------------------------------------------------------------------------------ */

static void draw_problem(struct trainer *t, struct job *j) {
    static const int64_t widths[] = {1, 7, 16, 32, 64, 100, 128, 256}, chunks[] = {16, 32, 64, 128};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct problem *p = &j->p;
    int64_t group = 1 + draw(t, 2);
    bool sequences = draw(t, 3) == 0;
    *p = (struct problem){
        .B = sequences ? 1 : 1 + draw(t, 3),
        .T = 1 + draw(t, draw(t, 4) ? 80 : 400),
        .H = 1 + draw(t, 2),
        .K = widths[draw(t, 8)],
        .C = chunks[draw(t, 4)],
        .N = sequences ? 1 + (int64_t)draw(t, SEQUENCES) : -1,
        .qk_dtype = types[draw(t, 3)],
        .beta_dtype = types[draw(t, 3)],
        .cu_dtype = draw(t, 2) ? DTYPE_I64 : DTYPE_I32,
    };
    p->HV = p->H * group;
    j->in_place = draw(t, 2);
    j->bad = sequences && draw(t, 10) == 0;
}

static size_t width_of(enum dtype type) {
    return type == DTYPE_I64 ? 8 : type == DTYPE_F32 || type == DTYPE_I32 ? 4 : 2;
}

static size_t lay_out(struct problem *p, enum operand o) {
    int64_t shape[4];
    int ndim = problem_shape(p, o, shape);
    int64_t row = ndim == 4 ? shape[2] * shape[3] : ndim == 3 ? shape[2] : 1;
    p->at[o] = (struct operand_view){.allocation = o + 1, .allocation_size = UINT64_MAX};
    if (ndim == 1)
        return (size_t)shape[0] * width_of(problem_dtype(p, o));
    p->at[o] = (struct operand_view){o + 1, UINT64_MAX, 0, {shape[1] * row, row, ndim == 4 ? shape[3] : 1}};
    return (size_t)(shape[0] * shape[1] * row) * width_of(problem_dtype(p, o));
}

static float gate(size_t row, float value) {
    return -0.02F * (float)row - 0.01F * value;
}

/* Values of some size; gates fall along all rows. */
static void fill(struct trainer *t, const struct job *j, enum operand o) {
    enum dtype type = problem_dtype(&j->p, o);
    size_t count = j->bytes[o] / width_of(type);
    size_t row = o == OPERAND_G ? (size_t)(j->p.HV * j->p.K) : 1;
    for (size_t i = 0; i < count; i++) {
        float value = (float)draw(t, 4096) / 2048.0F - 1.0F;
        if (o == OPERAND_G)
            value = gate(i / row, value);
        uint16_t half = type == DTYPE_BF16  ? oracle_to_bf16(value)
                        : type == DTYPE_F16 ? oracle_to_f16(value)
                                            : 0;
        char *at = (char *)j->data[o] + i * width_of(type);
        if (type == DTYPE_F32)
            memcpy(at, &value, sizeof value);
        else
            memcpy(at, &half, sizeof half);
    }
}

static void fill_sequences(struct trainer *t, const struct job *j) {
    const struct problem *p = &j->p;
    int64_t end = 0;
    for (int64_t n = 0; n <= p->N; n++) {
        int64_t value = n == p->N && j->bad ? p->T + 1 : end;
        int32_t narrow = (int32_t)value;
        char *at = (char *)j->data[OPERAND_CU_SEQLENS] + (size_t)n * width_of(p->cu_dtype);
        if (p->cu_dtype == DTYPE_I64)
            memcpy(at, &value, sizeof value);
        else
            memcpy(at, &narrow, sizeof narrow);
        end += draw(t, (uint32_t)(p->T - end) + 1);
    }
}

/* The same job in this process. */
static bool compute_expected(struct trainer *t, struct job *j) {
    struct cpu_job cpu;
    char why[PROBLEM_WHY];
    if (!problem_check(&j->p, why)) {
        snprintf(t->slot->words, sizeof t->slot->words, "a legal job is refused here: %s", why);
        return false;
    }
    if (!cpu_job_begin(&cpu, &j->p, j->expected, why)) {
        cpu_job_copy_through(&j->p, j->expected);
        return j->bad;
    }
    cpu_job_run(&cpu, 0, cpu.items, t->scratch);
    cpu_job_end(&cpu);
    return true;
}

static void *allocate(struct trainer *t, struct job *j, enum operand o) {
    j->plain[o] = draw(t, 3) == 0;
    return j->plain[o] ? malloc(j->bytes[o]) : kdad_alloc(t->connection, j->bytes[o]);
}

static bool is_output(enum operand o) {
    return o >= OPERAND_DQ_OUT && o <= OPERAND_DG_OUT;
}

static bool make(struct trainer *t, struct job *j) {
    draw_problem(t, j);
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        enum operand incoming = o - (OPERAND_DQ_OUT - OPERAND_DQ);
        if (!problem_has(&j->p, o))
            continue;
        j->bytes[o] = lay_out(&j->p, o);
        if (is_output(o) && j->in_place) {
            j->p.at[o] = j->p.at[incoming];
            j->data[o] = j->data[incoming];
            j->expected[o] = j->expected[incoming];
            continue;
        }
        j->data[o] = allocate(t, j, o);
        j->expected[o] = malloc(j->bytes[o]);
        if (!j->data[o] || !j->expected[o])
            return false;
        if (o == OPERAND_CU_SEQLENS)
            fill_sequences(t, j);
        else
            fill(t, j, o);
        memcpy(j->expected[o], j->data[o], j->bytes[o]);
    }
    return true;
}

static void destroy(struct trainer *t, struct job *j) {
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (is_output(o) && j->in_place)
            continue;
        free(j->expected[o]);
        if (j->plain[o])
            free(j->data[o]);
        else
            kdad_free(t->connection, j->data[o]);
    }
}

/* --- a job's way --------------------------------------------------------------------------------------- */

static struct kdad_tensor tensor(const struct job *j, enum operand o) {
    struct kdad_tensor to = {.data = j->data[o], .dtype = (kdad_dtype)problem_dtype(&j->p, o)};
    if (!problem_has(&j->p, o) || (is_output(o) && j->in_place))
        return (struct kdad_tensor){0};
    to.ndim = problem_shape(&j->p, o, to.shape);
    for (int i = 0; i < 3; i++)
        to.stride[i] = to.ndim == 1 ? 1 : j->p.at[o].stride[i];
    to.stride[3] = 1;
    return to;
}

static kdad_status submit(struct job *j) {
    struct kdad_chunk_kda_bwd_intra_args a = {.chunk_size = (int)j->p.C};
    struct kdad_tensor *const fields[OPERAND_COUNT] = {
        &a.q,  &a.k,  &a.g,      &a.beta,   &a.dAqk,   &a.dAkk,   &a.dq,        &a.dk,
        &a.db, &a.dg, &a.dq_out, &a.dk_out, &a.db_out, &a.dg_out, &a.cu_seqlens};
    for (enum operand o = 0; o < OPERAND_COUNT; o++)
        *fields[o] = tensor(j, o);
    return kdad_chunk_kda_bwd_intra(j->stream, &a, &j->ticket);
}

static void check(struct trainer *t, struct job *j, kdad_status status) {
    struct trainer_slot *slot = t->slot;
    if (is_loss(status)) {
        tell(t, &slot->lost, "wait", status);
        return;
    }
    if (status != (j->bad ? KDAD_BAD_DATA : KDAD_OK)) {
        tell(t, &slot->unexpected, "wait", status);
        return;
    }
    __atomic_fetch_add(&slot->done, 1, __ATOMIC_RELAXED);
    if (!compute_expected(t, j)) {
        __atomic_fetch_add(&slot->unexpected, 1, __ATOMIC_RELAXED);
        return;
    }
    for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++) {
        if (memcmp(j->data[o], j->expected[o], j->bytes[o]) == 0)
            continue;
        __atomic_fetch_add(&slot->wrong, 1, __ATOMIC_RELAXED);
        snprintf(slot->words, sizeof slot->words, "output %d differs: B %d T %d H %d HV %d K %d C %d N %d",
                 (int)(o - OPERAND_DQ_OUT), (int)j->p.B, (int)j->p.T, (int)j->p.H, (int)j->p.HV, (int)j->p.K,
                 (int)j->p.C, (int)j->p.N);
        return;
    }
}

/* Some jobs at once, on one stream or several. False: the connection is of no use any more. */
static bool run_batch(struct trainer *t) {
    struct job jobs[AT_ONCE] = {0};
    int count = 1 + (int)draw(t, AT_ONCE);
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        struct job *j = &jobs[i];
        good = make(t, j);
        if (!good) {
            tell(t, &t->slot->unexpected, "memory", KDAD_NO_MEMORY);
            break;
        }
        j->stream = t->streams[draw(t, STREAMS)];
        kdad_status status = submit(j);
        if (status == KDAD_OK)
            continue;
        tell(t, is_loss(status) ? &t->slot->lost : &t->slot->unexpected, "submit", status);
        j->stream = NULL;
        good = false;
    }
    for (int i = 0; i < count; i++) {
        if (jobs[i].stream)
            check(t, &jobs[i], kdad_wait(jobs[i].stream, jobs[i].ticket, WAIT_MS));
    }
    for (int i = 0; i < count; i++)
        destroy(t, &jobs[i]);
    return good;
}

static bool open_all(struct trainer *t) {
    kdad_status status = kdad_connect(NULL, WAIT_MS, &t->connection);
    for (int i = 0; i < STREAMS && status == KDAD_OK; i++)
        status = kdad_stream_open(t->connection, NULL, &t->streams[i]);
    if (status == KDAD_OK)
        return true;
    tell(t, is_loss(status) ? &t->slot->refused : &t->slot->unexpected, "connect", status);
    return false;
}

void trainer_run(struct trainer_slot *slot, uint64_t seed, const bool *stop) {
    struct trainer t = {.slot = slot, .random = seed};
    if (posix_memalign(&t.scratch, 64, cpu_scratch_size()) != 0)
        _exit(1);
    while (!__atomic_load_n(stop, __ATOMIC_RELAXED)) {
        int batches = 1 + (int)draw(&t, BATCHES_MAX);
        t.connection = NULL;
        if (open_all(&t)) {
            __atomic_fetch_add(&slot->connected, 1, __ATOMIC_RELAXED);
            while (batches-- > 0 && !__atomic_load_n(stop, __ATOMIC_RELAXED) && run_batch(&t))
                continue;
        } else {
            usleep(5000); /* until the next daemon is there */
        }
        kdad_disconnect(t.connection);
    }
    free(t.scratch);
}
