/*
 * session.c - fault-session EXPECTED: a trainer's short but complete session, for tests that let it, or its
 * daemon, fail, die or stop.
 *
 * Connects, opens a stream, allocates and registers memory, computes jobs on it and on plain memory, has one
 * fail, asks for the status, gives all back. What fails is tried again: the library must come out of a
 * failure that has passed. Results are compared with those in the file EXPECTED, bit by bit; if there is
 * none, it is written.
 *
 * With KDAD_FAULT_LATER, the session is run three times, the middle one with the fault, and must leave as
 * many descriptors and blocks as it found.
 *
 * Exit codes: 0 all went well; 3 calls failed, each with a sentence, and went well later; 4 one did not; 1
 * what must never be: the words are on standard output.
 */
#include "client/session.h"
#include "client/connection.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 192, H = 2, K = 64, C = 64, MANY = 18, TRIES = 3, ANSWER_MS = 20000, HANG_S = 100 };
enum { NARROW = T * H, WIDE = NARROW * K, SQUARE = NARROW * C };
enum { RESULTS = 3 * WIDE + NARROW };

static const char *expected_path;
static int failures; /* calls that failed */
static bool gave_up; /* one that did not go well later either */
static void (*arm)(bool on);
static long (*live)(void);

__attribute__((format(printf, 1, 2), noreturn)) static void never(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
    _exit(1);
}

/* A failure must be told in words, and a time that ran out is none: nothing here takes long. */
static bool went_well(const char *call, kdad_status status) {
    if (status == KDAD_OK)
        return true;
    failures++;
    printf("%s: %s: %s\n", call, kdad_status_string(status), kdad_error());
    if (!kdad_error()[0])
        never("%s: without a sentence", call);
    if (status == KDAD_TIMEOUT && !getenv("KDAD_FAULT_PATIENT"))
        never("%s: hangs", call);
    return false;
}

#define TRY(call, expression)                                    \
    do {                                                         \
        int tries_ = 0;                                          \
        while (!went_well(call, expression) && ++tries_ < TRIES) \
            ;                                                    \
        if (tries_ == TRIES) {                                   \
            gave_up = true;                                      \
            goto end;                                            \
        }                                                        \
    } while (0)

/* --- jobs ---------------------------------------------------------------------------------------------- */

static void fill(float *to, size_t count, unsigned seed, float scale) {
    for (size_t i = 0; i < count; i++)
        to[i] = scale * ((float)(rand_r(&seed) % 2048) / 1024.0F - 1.0F);
}

/* Gates fall along rows. */
static void fill_gates(float *g) {
    for (int t = 0; t < T; t++)
        for (int i = 0; i < H * K; i++)
            g[t * H * K + i] = -0.01F * (float)t;
}

struct tensors {
    float *q, *k, *g, *beta, *dAqk, *dAkk, *dq, *dk, *db, *dg, *results;
    int64_t *cu_seqlens;
};

enum {
    TENSORS_FLOATS = 6 * WIDE + 2 * NARROW + 2 * SQUARE + RESULTS,
    TENSORS_BYTES = 4 * TENSORS_FLOATS + 64
};

static void lay_out(struct tensors *t, float *memory) {
    float **const parts[] = {&t->q,  &t->k,    &t->g,  &t->dq,   &t->dk,
                             &t->dg, &t->beta, &t->db, &t->dAqk, &t->dAkk};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i] = memory;
        size_t count = i < 6 ? WIDE : i < 8 ? NARROW : SQUARE;
        fill(memory, count, (unsigned)i + 1, 0.5F);
        memory += count;
    }
    fill_gates(t->g);
    t->results = memory;
    t->cu_seqlens = (int64_t *)(void *)(memory + RESULTS + (RESULTS & 1));
    t->cu_seqlens[0] = 0;
    t->cu_seqlens[1] = T + 1; /* beyond the end */
}

static struct kdad_chunk_kda_bwd_intra_args arguments(const struct tensors *t) {
    float *r = t->results;
    return (struct kdad_chunk_kda_bwd_intra_args){
        .q = kdad_tensor_4d(t->q, KDAD_F32, 1, T, H, K),
        .k = kdad_tensor_4d(t->k, KDAD_F32, 1, T, H, K),
        .g = kdad_tensor_4d(t->g, KDAD_F32, 1, T, H, K),
        .beta = kdad_tensor_3d(t->beta, KDAD_F32, 1, T, H),
        .dAqk = kdad_tensor_4d(t->dAqk, KDAD_F32, 1, T, H, C),
        .dAkk = kdad_tensor_4d(t->dAkk, KDAD_F32, 1, T, H, C),
        .dq = kdad_tensor_4d(t->dq, KDAD_F32, 1, T, H, K),
        .dk = kdad_tensor_4d(t->dk, KDAD_F32, 1, T, H, K),
        .db = kdad_tensor_3d(t->db, KDAD_F32, 1, T, H),
        .dg = kdad_tensor_4d(t->dg, KDAD_F32, 1, T, H, K),
        .dq_out = kdad_tensor_4d(r, KDAD_F32, 1, T, H, K),
        .dk_out = kdad_tensor_4d(r + WIDE, KDAD_F32, 1, T, H, K),
        .dg_out = kdad_tensor_4d(r + 2 * WIDE, KDAD_F32, 1, T, H, K),
        .db_out = kdad_tensor_3d(r + 3 * WIDE, KDAD_F32, 1, T, H),
        .chunk_size = C,
    };
}

static void check_results(const void *results, const char *what) {
    static unsigned char expected[RESULTS * sizeof(float)];
    FILE *file = fopen(expected_path, "rb");
    if (!file) {
        file = fopen(expected_path, "wb");
        if (!file || fwrite(results, sizeof expected, 1, file) != 1)
            never("%s: cannot be written: %s", expected_path, strerror(errno));
    } else if (fread(expected, sizeof expected, 1, file) != 1) {
        never("%s: cannot be read", expected_path);
    } else if (memcmp(expected, results, sizeof expected) != 0) {
        never("%s: done, with a wrong result", what);
    }
    fclose(file);
}

static kdad_status compute(struct kdad_stream *stream, const struct tensors *t, const char *what) {
    struct kdad_chunk_kda_bwd_intra_args a = arguments(t);
    kdad_ticket ticket;
    memset(t->results, 0xff, RESULTS * sizeof(float));
    kdad_status status = kdad_chunk_kda_bwd_intra(stream, &a, &ticket);
    if (status == KDAD_OK)
        status = kdad_wait(stream, ticket, ANSWER_MS);
    if (arm)
        arm(false);
    if (status == KDAD_OK)
        check_results(t->results, what);
    if (arm)
        arm(true);
    return status;
}

/* A job that must fail, with this error and no other. */
static kdad_status compute_beyond(struct kdad_stream *stream, const struct tensors *t) {
    struct kdad_chunk_kda_bwd_intra_args a = arguments(t);
    kdad_ticket ticket;
    a.cu_seqlens = (struct kdad_tensor){t->cu_seqlens, KDAD_I64, 1, {2}, {1}};
    kdad_status status = kdad_chunk_kda_bwd_intra(stream, &a, &ticket);
    if (status == KDAD_OK)
        status = kdad_wait(stream, ticket, ANSWER_MS);
    if (status == KDAD_OK)
        never("a job of sequences beyond its rows is done");
    return status == KDAD_BAD_DATA ? KDAD_OK : status;
}

/* --- the session --------------------------------------------------------------------------------------- */

static kdad_status ask(struct kdad_connection *connection) {
    struct wire_message request = {.opcode = WIRE_STATUS};
    static struct session_reply reply;
    kdad_status status = connection_request(connection, &request, ANSWER_MS, &reply);
    if (status == KDAD_OK)
        session_reply_free(&reply);
    return status;
}

static kdad_status trace(struct kdad_connection *connection) {
    struct wire_message request = {.opcode = WIRE_TRACE};
    static struct session_reply reply;
    kdad_status status = connection_request(connection, &request, ANSWER_MS, &reply);
    if (status == KDAD_OK)
        session_reply_free(&reply);
    return status;
}

static kdad_status allocate(struct kdad_connection *connection, size_t bytes, void **memory) {
    *memory = kdad_alloc(connection, bytes);
    return *memory ? KDAD_OK : KDAD_NO_MEMORY;
}

static void session(void *plain) {
    struct kdad_connection *connection = NULL;
    struct kdad_stream *stream = NULL;
    void *memory = NULL, *betas[MANY] = {NULL};
    struct kdad_stream *streams[MANY] = {NULL};
    struct tensors shared, own, other;
    TRY("connect", kdad_connect(NULL, ANSWER_MS, &connection));
    TRY("stream", kdad_stream_open(connection, NULL, &stream));
    TRY("alloc", allocate(connection, TENSORS_BYTES, &memory));
    lay_out(&shared, memory);
    lay_out(&own, plain);
    TRY("job", compute(stream, &shared, "job"));
    TRY("job again", compute(stream, &shared, "job again"));
    TRY("job of plain memory", compute(stream, &own, "job of plain memory"));
    TRY("job beyond", compute_beyond(stream, &shared));
    for (int i = 0; i < MANY; i++) { /* more than tables have room for at first */
        TRY("one of many streams", kdad_stream_open(connection, NULL, &streams[i]));
        TRY("one of many buffers", allocate(connection, 4 * NARROW, &betas[i]));
        memcpy(betas[i], shared.beta, 4 * NARROW);
        other = shared;
        other.beta = betas[i];
        TRY("one of many jobs", compute(streams[i], &other, "one of many jobs"));
    }
    for (int i = 0; i < MANY; i++) {
        went_well("close one of many", kdad_stream_close(streams[i]));
        kdad_free(connection, betas[i]);
    }
    TRY("status", ask(connection));
    TRY("trace", trace(connection));
    TRY("job that is traced", compute(stream, &shared, "job that is traced"));
    kdad_free(connection, memory);
    memory = NULL;
    went_well("close", kdad_stream_close(stream));
    stream = NULL;
    TRY("trim", kdad_trim(connection));
end:
    kdad_disconnect(connection); /* with what is left */
}

static int count_descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void *meet(void *barrier) {
    pthread_barrier_wait(barrier);
    return NULL;
}

/* What libc keeps of threads that were. */
static void warm_up(void) {
    enum { MEETING = 3 };
    pthread_t threads[MEETING];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, MEETING);
    for (int i = 0; i < MEETING; i++)
        pthread_create(&threads[i], NULL, meet, &barrier);
    for (int i = 0; i < MEETING; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
}

/* Three sessions: without, with and without the fault. */
static void run_armed(void *plain) {
    void (*counting)(bool) = arm;
    arm = NULL;
    warm_up();
    session(plain);
    if (failures > 0)
        never("fails before the fault");
    int descriptors = count_descriptors();
    long blocks = live();
    arm = counting;
    arm(true);
    session(plain);
    arm(false);
    arm = NULL;
    if (count_descriptors() != descriptors)
        never("%d descriptors, and %d before the fault", count_descriptors(), descriptors);
    if (live() != blocks)
        never("%ld blocks are allocated, and %ld before the fault", live(), blocks);
    int failed = failures;
    session(plain);
    if (failures > failed)
        never("fails when the fault has passed");
}

int main(int argc, char **argv) {
    static char line[BUFSIZ];
    setvbuf(stdout, line, _IOLBF, sizeof line);
    static float plain[TENSORS_BYTES / sizeof(float)];
    if (argc != 2)
        return 2;
    expected_path = argv[1];
    alarm(HANG_S);
    if (getenv("KDAD_FAULT_LATER")) {
        *(void **)&arm = dlsym(RTLD_DEFAULT, "fault_arm");
        *(void **)&live = dlsym(RTLD_DEFAULT, "fault_live");
        if (!arm || !live)
            return 2;
        run_armed(plain);
    } else {
        session(plain);
    }
    return gave_up ? 4 : failures > 0 ? 3 : 0;
}
