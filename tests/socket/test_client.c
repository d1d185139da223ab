/*
 * libkdad against a real daemon: connecting, jobs in memory of either kind, tickets, limits. What happens
 * when a daemon or a process ends is in test_loss.c.
 */
#include "proto/packet.h"
#include "tests/harness.h"
#include "tests/socket/sample.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct harness server;
static struct kdad_connection *connection;
static struct kdad_stream *stream;

static void setup(void) {
    harness_start(&server, NULL);
    ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &connection));
    ck_ok(kdad_stream_open(connection, NULL, &stream));
}

static void teardown(void) {
    ck_ok(kdad_stream_close(stream));
    kdad_disconnect(connection);
    harness_stop(&server);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static kdad_ticket submit(const struct sample *s) {
    kdad_ticket ticket = 0;
    ck_ok(kdad_chunk_kda_bwd_intra(stream, &s->args, &ticket));
    return ticket;
}

static void run(const struct sample *s) {
    ck_ok(kdad_wait(stream, submit(s), KDAD_DEFAULT_TIMEOUT));
}

/* The stream gives right results. */
static void check_results(void) {
    struct sample s;
    sample_make(&s, &sample_small, connection, 0, 0, 99);
    run(&s);
    sample_check(&s);
    sample_free(&s);
}

/* --- connecting ---------------------------------------------------------------------------------------- */

/* A daemon that does as a test says: it answers the first packet of the first client with one of its own. */
struct impostor {
    char path[64];
    int listener;
    struct wire_message answer;
    const char *bytes; /* instead of the answer */
    bool silent;       /* closes at once */
    pthread_t thread;
};

static void *answer_one(void *argument) {
    struct impostor *i = argument;
    struct wire_codec *codec = wire_codec_new();
    uint8_t data[WIRE_PACKET_MAX];
    struct packet packet = {.data = data};
    size_t size;
    int socket = accept(i->listener, NULL, NULL);
    if (!i->silent) {
        packet_receive(socket, &packet, 0);
        i->answer.id = 1;
        const void *answer = i->bytes ? i->bytes : wire_encode(codec, &i->answer, &size);
        packet_send(socket, answer, i->bytes ? strlen(i->bytes) : size, NULL, 0, 0);
    }
    close(socket);
    wire_codec_free(codec);
    return NULL;
}

static void impostor_listen(struct impostor *i, int backlog) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(i->path, sizeof i->path, "/tmp/kdad-impostor-%d", (int)getpid());
    snprintf(address.sun_path, sizeof address.sun_path, "%s", i->path);
    unlink(i->path);
    i->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(i->listener, (struct sockaddr *)&address, sizeof address), 0);
    if (backlog >= 0)
        ck_assert_int_eq(listen(i->listener, backlog), 0);
}

static void impostor_close(struct impostor *i) {
    close(i->listener);
    unlink(i->path);
}

static void connect_to_impostor(struct impostor *i, kdad_status status, const char *sentence) {
    struct kdad_connection *c = NULL;
    impostor_listen(i, 8);
    pthread_create(&i->thread, NULL, answer_one, i);
    ck_status(kdad_connect(i->path, KDAD_DEFAULT_TIMEOUT, &c), status);
    ck_assert_ptr_null(c);
    ck_sentence(sentence);
    ck_sentence(i->path);
    pthread_join(i->thread, NULL);
    impostor_close(i);
}

START_TEST(a_missing_daemon_is_named) {
    struct kdad_connection *c = NULL;
    struct impostor stale = {.silent = true};
    char path[200];
    ck_assert_str_eq(kdad_error(), "");
    ck_status(kdad_connect("/nowhere/kdad.sock", 100, &c), KDAD_NO_DAEMON);
    ck_assert_str_eq(kdad_error(), "no daemon answers on /nowhere/kdad.sock: No such file or directory");
    impostor_listen(&stale, -1);
    ck_status(kdad_connect(stale.path, 100, &c), KDAD_NO_DAEMON);
    ck_sentence("Connection refused");
    impostor_close(&stale);
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    ck_status(kdad_connect(path, 100, &c), KDAD_INVALID);
    ck_sentence("socket: path has 199 bytes");
    ck_status(kdad_connect(path, 100, NULL), KDAD_INVALID);
    ck_assert_ptr_null(c);
}
END_TEST

START_TEST(a_wrong_daemon_is_named) {
    struct impostor silent = {.silent = true};
    connect_to_impostor(&silent, KDAD_NO_DAEMON, "closed the connection");
    struct impostor noise = {.bytes = "\x93garbage"};
    connect_to_impostor(&noise, KDAD_PROTOCOL, "does not speak the protocol");
    struct impostor other = {.answer = {.opcode = WIRE_HELLO_REPLY}};
    other.answer.hello_reply = (struct wire_hello_reply){
        .major = 7, .minor = 3, .version = wire_string("7.3"), .backend = wire_string("cpu")};
    connect_to_impostor(&other, KDAD_PROTOCOL, "speaks protocol 7.3");
    struct impostor lost = {.answer = {.opcode = WIRE_STREAM_CLOSE_REPLY}};
    connect_to_impostor(&lost, KDAD_PROTOCOL, "with opcode 67");
    struct impostor full = {.answer = {.opcode = WIRE_ERROR}};
    full.answer.error = (struct wire_error){WIRE_LIMIT, wire_string("the daemon is full"), true};
    connect_to_impostor(&full, KDAD_LIMIT, "the daemon is full");
}
END_TEST

START_TEST(a_daemon_that_does_not_answer_times_out) {
    struct impostor deaf = {.silent = true};
    struct kdad_connection *c;
    int waiting[2];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    impostor_listen(&deaf, 0);
    int64_t start = now_ms();
    ck_status(kdad_connect(deaf.path, 50, &c), KDAD_TIMEOUT);
    ck_sentence("did not answer in time");
    ck_assert_int_ge(now_ms() - start, 50);
    close(accept(deaf.listener, NULL, NULL));
    snprintf(address.sun_path, sizeof address.sun_path, "%s", deaf.path);
    for (int i = 0; i < 2; i++) { /* more than the backlog holds */
        waiting[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
        (void)connect(waiting[i], (struct sockaddr *)&address, sizeof address);
    }
    start = now_ms();
    ck_status(kdad_connect(deaf.path, 50, &c), KDAD_TIMEOUT);
    ck_sentence("did not accept the connection in time");
    ck_assert_int_ge(now_ms() - start, 50);
    close(waiting[0]);
    close(waiting[1]);
    impostor_close(&deaf);
}
END_TEST

START_TEST(another_user_is_refused) {
    struct kdad_connection *c;
    if (getuid() != 0)
        return;
    pid_t pid = fork();
    if (pid == 0)
        _exit(setuid(65534) == 0 && kdad_connect(server.socket, 1000, &c) == KDAD_DENIED ? 0 : 1);
    int status;
    waitpid(pid, &status, 0);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(a_stream_needs_a_device_that_is_there) {
    struct kdad_stream *s = stream;
    char name[100];
    ck_status(kdad_stream_open(connection, "GPU-0", &s), KDAD_UNSUPPORTED);
    ck_assert_ptr_null(s);
    ck_sentence("GPU-0");
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    ck_status(kdad_stream_open(connection, name, &s), KDAD_INVALID);
    ck_status(kdad_stream_open(connection, NULL, NULL), KDAD_INVALID);
    ck_status(kdad_stream_open(NULL, NULL, &s), KDAD_INVALID);
    ck_ok(kdad_stream_open(connection, "cpu", &s));
    ck_ok(kdad_stream_close(s));
    ck_ok(kdad_stream_close(NULL));
    kdad_disconnect(NULL);
    kdad_free(connection, NULL);
}
END_TEST

START_TEST(streams_are_limited_and_given_back) {
    struct kdad_stream *many[WIRE_STREAMS_MAX];
    many[0] = stream;
    for (int i = 1; i < WIRE_STREAMS_MAX; i++)
        ck_ok(kdad_stream_open(connection, NULL, &many[i]));
    struct kdad_stream *more;
    ck_status(kdad_stream_open(connection, NULL, &more), KDAD_LIMIT);
    ck_ok(kdad_stream_close(many[7]));
    ck_ok(kdad_stream_open(connection, NULL, &many[7]));
    for (int i = 1; i < WIRE_STREAMS_MAX; i++)
        ck_ok(kdad_stream_close(many[i]));
}
END_TEST

START_TEST(a_process_without_descriptors_keeps_its_connection) {
    struct rlimit limit, few;
    struct kdad_stream *more;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int next = dup(0);
    close(next);
    few = (struct rlimit){(rlim_t)next, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_status(kdad_stream_open(connection, NULL, &more), KDAD_NO_MEMORY);
    ck_sentence("no descriptor left");
    ck_assert_ptr_null(kdad_alloc(connection, 1));
    ck_sentence("Too many open files");
    struct kdad_connection *c;
    ck_status(kdad_connect(server.socket, 1000, &c), KDAD_NO_MEMORY);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    check_results();
}
END_TEST

/* --- jobs ---------------------------------------------------------------------------------------------- */

static const struct sample_shape shapes[] = {
    {1, 1, 1, 1, 16, 16, -1, KDAD_F32, KDAD_F32, KDAD_I64},
    {2, 75, 2, 4, 40, 32, -1, KDAD_BF16, KDAD_F32, KDAD_I64},
    {1, 130, 1, 2, 64, 64, 4, KDAD_F16, KDAD_BF16, KDAD_I64},
    {1, 97, 3, 3, 7, 16, 5, KDAD_F32, KDAD_F16, KDAD_I32},
    {1, 300, 1, 1, 128, 128, -1, KDAD_BF16, KDAD_F32, KDAD_I64},
};
static const uint32_t kinds[] = {
    0,                /* all of it is kdad_alloc's */
    SAMPLE_ALL_PLAIN, /* none of it */
    1u << OPERAND_DQ_OUT | 1u << OPERAND_DQ | 1u << OPERAND_Q | 1u << OPERAND_CU_SEQLENS,
    SAMPLE_ALL_PLAIN & ~(1u << OPERAND_DB_OUT | 1u << OPERAND_G),
};
static const int layouts[] = {0, SAMPLE_IN_PLACE, SAMPLE_STRIDED, SAMPLE_STRIDED | SAMPLE_EXPANDED,
                              SAMPLE_STRIDED | SAMPLE_IN_PLACE};

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

START_TEST(results_are_right) {
    const struct sample_shape *shape = &shapes[_i];
    for (int kind = 0; kind < COUNT(kinds); kind++) {
        for (int layout = 0; layout < COUNT(layouts); layout++) {
            struct sample s;
            sample_make(&s, shape, connection, kinds[kind], layouts[layout], 1 + (uint32_t)layout);
            run(&s);
            sample_check(&s);
            sample_free(&s);
        }
    }
}
END_TEST

START_TEST(the_identical_view_is_in_place) {
    for (int plain = 0; plain < 2; plain++) {
        struct sample s;
        sample_make(&s, &sample_small, connection, plain ? SAMPLE_ALL_PLAIN : 0, SAMPLE_IN_PLACE, 3);
        s.args.dq_out = s.args.dq;
        s.args.dk_out = s.args.dk;
        s.args.db_out = s.args.db;
        s.args.dg_out = s.args.dg;
        run(&s);
        sample_check(&s);
        sample_free(&s);
    }
}
END_TEST

START_TEST(empty_jobs_succeed_without_memory) {
    const struct sample_shape empties[] = {{0, 5, 1, 2, 16, 16, -1, KDAD_F32, KDAD_F32, KDAD_I64},
                                           {2, 0, 1, 2, 16, 16, -1, KDAD_F32, KDAD_F32, KDAD_I64},
                                           {2, 5, 1, 0, 16, 16, -1, KDAD_F32, KDAD_F32, KDAD_I64}};
    for (int i = 0; i < COUNT(empties); i++) {
        struct sample s;
        sample_make(&s, &empties[i], connection, SAMPLE_ALL_PLAIN, 0, 3);
        run(&s);
        struct kdad_tensor *t = &s.args.q;
        for (int o = 0; o < OPERAND_COUNT - 1; o++)
            t[o].data = NULL;
        run(&s);
        sample_free(&s);
    }
}
END_TEST

START_TEST(bad_cu_seqlens_leave_the_incoming_gradients) {
    const struct sample_shape shape = {1, 130, 1, 2, 64, 64, 4, KDAD_F32, KDAD_F32, KDAD_I64};
    for (int round = 0; round < 8; round++) {
        struct sample s;
        bool in_place = round & 1;
        sample_make(&s, &shape, connection, round & 2 ? SAMPLE_ALL_PLAIN : 0,
                    SAMPLE_BAD_SEQLENS | (in_place ? SAMPLE_IN_PLACE : 0) | (round & 4 ? SAMPLE_STRIDED : 0),
                    4);
        kdad_ticket ticket = submit(&s);
        ck_status(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT), KDAD_BAD_DATA);
        ck_sentence("cu_seqlens");
        for (int i = 0; i < 4; i++) {
            size_t n = oracle_count(&s.problem, OPERAND_DQ_OUT + i);
            float *out = malloc(n * sizeof *out);
            oracle_gather(out, &s.problem, s.data, OPERAND_DQ_OUT + i);
            ck_assert_mem_eq(out, s.incoming[i], n * sizeof *out);
            free(out);
        }
        ck_status(kdad_poll(stream, ticket), KDAD_BAD_DATA);
        sample_free(&s);
    }
}
END_TEST

/* Only some of the last sentences are kept, but no status waits for the others. */
START_TEST(many_failures_are_told_at_once) {
    enum { JOBS = 500 };
    const struct sample_shape shape = {1, 20, 1, 1, 16, 16, 2, KDAD_F32, KDAD_F32, KDAD_I64};
    struct sample s;
    sample_make(&s, &shape, connection, 0, SAMPLE_BAD_SEQLENS, 4);
    kdad_ticket last = 0;
    for (int i = 0; i < JOBS; i++)
        last = submit(&s);
    ck_status(kdad_wait(stream, last, KDAD_DEFAULT_TIMEOUT), KDAD_BAD_DATA);
    ck_sentence("job 500: cu_seqlens");
    int64_t start = now_ms();
    for (kdad_ticket t = 1; t <= last; t++)
        ck_status(kdad_poll(stream, t), KDAD_BAD_DATA);
    ck_assert_int_lt(now_ms() - start, 1000);
    ck_status(kdad_poll(stream, 1), KDAD_BAD_DATA);
    ck_sentence("job 1: bad data");
    sample_free(&s);
}
END_TEST

static void refused(const struct sample *s, const char *sentence) {
    kdad_ticket ticket = 99;
    ck_status(kdad_chunk_kda_bwd_intra(stream, &s->args, &ticket), KDAD_INVALID);
    ck_assert_uint_eq(ticket, 99);
    ck_sentence(sentence);
}

START_TEST(a_refused_submission_leaves_the_stream_usable) {
    struct sample s;
    sample_make(&s, &sample_small, connection, 1u << OPERAND_Q | 1u << OPERAND_DG_OUT, 0, 5);
    struct kdad_chunk_kda_bwd_intra_args good = s.args;
    kdad_ticket first = submit(&s);
    s.args.chunk_size = 48;
    refused(&s, "chunk_size: is 48");
    s.args = good;
    s.args.dAqk.shape[3] = 64;
    refused(&s, "dAqk: last dimension is 64, but chunk_size is 32");
    s.args = good;
    s.args.k.data = NULL;
    refused(&s, "k: data is NULL");
    s.args = good;
    s.args.beta.ndim = 0;
    refused(&s, "beta: is missing");
    s.args = good;
    s.args.dk_out.data = s.args.g.data;
    refused(&s, "dk_out: overlaps g");
    s.args = good;
    s.args.dg_out.data = s.args.q.data; /* plain memory overlaps as well */
    refused(&s, "dg_out: overlaps q");
    s.args = good;
    s.args.g.dtype = (kdad_dtype)77;
    refused(&s, "g: type is unknown");
    s.args = good;
    s.args.dq.data = (char *)s.args.dq.data + 2;
    refused(&s, "dq: address is not a multiple of 4");
    s.args = good;
    s.args.chunk_indices = kdad_tensor_1d(NULL, KDAD_I64, 4);
    refused(&s, "chunk_indices: has 1 dimensions");
    s.args.chunk_indices.ndim = 2;
    s.args.chunk_indices.shape[1] = 3;
    refused(&s, "chunk_indices: shape is [4, 3]");
    s.args = good;
    s.args.dAkk.data = (char *)s.args.dAkk.data + 4096; /* reaches beyond the end of its memory */
    refused(&s, "dAkk: lies only partly in memory of kdad_alloc");
    s.args.dAkk.data = (char *)s.args.dAkk.data - 8192; /* and before its start */
    kdad_status status = kdad_chunk_kda_bwd_intra(stream, &s.args, NULL);
    ck_assert_int_eq(status, KDAD_INVALID);
    ck_status(kdad_chunk_kda_bwd_intra(stream, NULL, NULL), KDAD_INVALID);
    ck_status(kdad_chunk_kda_bwd_intra(NULL, &good, NULL), KDAD_INVALID);
    ck_ok(kdad_wait(stream, first, KDAD_DEFAULT_TIMEOUT));
    sample_check(&s);
    s.args = good;
    ck_assert_uint_eq(submit(&s), first + 1);
    ck_ok(kdad_wait(stream, first + 1, KDAD_DEFAULT_TIMEOUT));
    sample_check(&s);
    sample_free(&s);
}
END_TEST

/* In-place jobs on plain memory, submitted without a wait between them: each works on the last one's result.
 */
START_TEST(plain_jobs_depend_on_each_other_in_order) {
    enum { JOBS = 40 };
    struct sample s;
    sample_make(&s, &sample_small, connection, SAMPLE_ALL_PLAIN, SAMPLE_IN_PLACE | SAMPLE_STRIDED, 6);
    kdad_ticket last = 0;
    for (int i = 0; i < JOBS; i++)
        last = submit(&s);
    ck_ok(kdad_wait(stream, last, KDAD_DEFAULT_TIMEOUT));
    for (int i = 0; i < 4; i++) {
        size_t n = oracle_count(&s.problem, OPERAND_DQ_OUT + i);
        float *out = malloc(n * sizeof *out);
        const double *once = oracle_result(&s.want, OPERAND_DQ + i);
        oracle_gather(out, &s.problem, s.data, OPERAND_DQ_OUT + i);
        for (size_t j = 0; j < n; j++) {
            double want = s.incoming[i][j] + JOBS * (once[j] - s.incoming[i][j]);
            ck_assert_msg(out[j] - want < 1e-3 && want - out[j] < 1e-3, "%d %zu: %g, not %g", i, j, out[j],
                          want);
        }
        free(out);
    }
    sample_free(&s);
}
END_TEST

/* Inputs may change as soon as they are submitted; outputs hold what they held until they are waited for. */
START_TEST(plain_memory_is_copied_when_promised) {
    struct sample s;
    sample_make(&s, &sample_small, connection, SAMPLE_ALL_PLAIN, 0, 7);
    kdad_ticket ticket = submit(&s);
    for (enum operand o = 0; o < OPERAND_DQ_OUT; o++)
        memset(s.block[o], 0xff, s.bytes[o]);
    struct sample other;
    sample_make(&other, &sample_tiny, connection, SAMPLE_ALL_PLAIN, 0, 8);
    kdad_ticket later = submit(&other);
    while (kdad_poll(stream, later) == KDAD_PENDING)
        ;
    sample_check(&other);
    sample_check(&s); /* done before it: copied with it */
    ck_ok(kdad_wait(stream, ticket, 0));
    sample_free(&other);
    sample_free(&s);
}
END_TEST

/* More than the staging memory holds, and more jobs than slots, with no wait at all. */
START_TEST(plain_jobs_beyond_all_limits_wait_for_room) {
    struct sample big, tiny;
    sample_make(&big, &sample_large, connection, SAMPLE_ALL_PLAIN, 0, 9);
    for (int i = 0; i < 40; i++) /* of some 45 MB each */
        submit(&big);
    sample_make(&tiny, &sample_tiny, connection, SAMPLE_ALL_PLAIN, 0, 10);
    kdad_ticket last = 0;
    for (int i = 0; i < 3000; i++)
        last = submit(&tiny);
    ck_ok(kdad_wait(stream, last, KDAD_DEFAULT_TIMEOUT));
    sample_check(&big);
    sample_check(&tiny);
    sample_free(&tiny);
    sample_free(&big);
}
END_TEST

START_TEST(memory_is_page_aligned_zeroed_and_limited) {
    char *a = kdad_alloc(connection, 5), *b = kdad_alloc(connection, 0), *c = kdad_alloc(connection, 5 << 20);
    ck_assert(a && b && c);
    ck_assert_uint_eq((uintptr_t)a % 4096, 0);
    for (int i = 0; i < 5 << 20; i += 511)
        ck_assert_int_eq(c[i], 0);
    ck_assert_ptr_null(kdad_alloc(connection, SIZE_MAX));
    ck_sentence("bytes");
    ck_assert_ptr_null(kdad_alloc(connection, (size_t)1 << 50));
    kdad_free(connection, a);
    kdad_free(connection, a); /* unknown now: ignored */
    kdad_free(connection, c + 4096);
    kdad_free(connection, c);
    kdad_free(connection, b);
}
END_TEST

START_TEST(memory_may_be_freed_and_had_again) {
    for (int i = 0; i < 300; i++) { /* an address comes back as other memory */
        struct sample s;
        sample_make(&s, i & 1 ? &sample_tiny : &sample_small, connection, 0, 0, (uint32_t)i);
        run(&s);
        sample_check(&s);
        sample_free(&s);
    }
}
END_TEST

/* --- tickets ------------------------------------------------------------------------------------------- */

START_TEST(tickets_count_and_can_be_asked_again) {
    struct sample s;
    sample_make(&s, &sample_tiny, connection, 0, 0, 11);
    ck_status(kdad_wait(stream, 1, 10), KDAD_NOT_FOUND);
    ck_status(kdad_wait(stream, 0, 10), KDAD_NOT_FOUND);
    for (kdad_ticket t = 1; t <= 3000; t++)
        ck_assert_uint_eq(submit(&s), t);
    ck_ok(kdad_wait(stream, 3000, KDAD_DEFAULT_TIMEOUT));
    for (kdad_ticket t = 3000; t > 3000 - 1024; t--)
        ck_ok(kdad_wait(stream, t, 0));
    ck_ok(kdad_poll(stream, 3000 - 1023));
    ck_status(kdad_poll(stream, 3000 - 1024), KDAD_NOT_FOUND);
    ck_sentence("is not one of the last 1024");
    ck_status(kdad_wait(stream, 1, 10), KDAD_NOT_FOUND);
    ck_status(kdad_wait(stream, 3001, 10), KDAD_NOT_FOUND);
    ck_sentence("ticket 3001: the stream's last job is 3000");
    ck_status(kdad_wait(NULL, 1, 10), KDAD_INVALID);
    ck_status(kdad_poll(NULL, 1), KDAD_INVALID);
    sample_check(&s);
    sample_free(&s);
}
END_TEST

START_TEST(waits_time_out_while_the_daemon_is_stopped) {
    struct sample s;
    sample_make(&s, &sample_small, connection, SAMPLE_ALL_PLAIN, 0, 12);
    run(&s);
    memcpy(s.block[OPERAND_DQ_OUT], s.saved[OPERAND_DQ_OUT], s.bytes[OPERAND_DQ_OUT]);
    kill(server.pid, SIGSTOP);
    kdad_ticket ticket = submit(&s);
    ck_status(kdad_poll(stream, ticket), KDAD_PENDING);
    ck_status(kdad_wait(stream, ticket, 0), KDAD_TIMEOUT);
    int64_t start = now_ms();
    ck_status(kdad_wait(stream, ticket, 60), KDAD_TIMEOUT);
    ck_sentence("is not done after 60 ms");
    ck_assert_int_ge(now_ms() - start, 59);
    ck_assert_int_lt(now_ms() - start, 5000);
    ck_assert_mem_eq(s.block[OPERAND_DQ_OUT], s.saved[OPERAND_DQ_OUT], s.bytes[OPERAND_DQ_OUT]);
    ck_ok(kdad_poll(stream, ticket - 1));
    kill(server.pid, SIGCONT);
    ck_ok(kdad_wait(stream, ticket, KDAD_DEFAULT_TIMEOUT));
    sample_check(&s);
    sample_free(&s);
}
END_TEST

/* A daemon that does not read: the socket fills, then a submission times out, and has taken no ticket. */
START_TEST(a_full_socket_times_out_and_goes_on) {
    struct kdad_connection *c;
    struct kdad_stream *s;
    struct sample job;
    kdad_ticket last = 0, ticket;
    ck_ok(kdad_connect(server.socket, 200, &c));
    ck_ok(kdad_stream_open(c, NULL, &s));
    sample_make(&job, &sample_tiny, c, 0, 0, 13);
    ck_ok(kdad_chunk_kda_bwd_intra(s, &job.args, &last)); /* registers */
    ck_ok(kdad_wait(s, last, KDAD_DEFAULT_TIMEOUT));
    kill(server.pid, SIGSTOP);
    kdad_status status;
    int64_t start;
    do {
        start = now_ms();
        status = kdad_chunk_kda_bwd_intra(s, &job.args, &ticket);
        last = status == KDAD_OK ? ticket : last;
    } while (status == KDAD_OK);
    ck_assert_int_eq(status, KDAD_TIMEOUT);
    ck_assert_int_ge(now_ms() - start, 199);
    ck_status(kdad_poll(s, last), KDAD_PENDING);
    ck_status(kdad_poll(s, last + 1), KDAD_NOT_FOUND);
    struct kdad_stream *none;
    ck_status(kdad_stream_open(c, NULL, &none), KDAD_TIMEOUT);
    kill(server.pid, SIGCONT);
    ck_ok(kdad_chunk_kda_bwd_intra(s, &job.args, &ticket));
    ck_assert_uint_eq(ticket, last + 1);
    ck_ok(kdad_wait(s, ticket, KDAD_DEFAULT_TIMEOUT));
    sample_check(&job);
    sample_free(&job);
    kdad_disconnect(c); /* with its stream */
}
END_TEST

START_TEST(closing_a_stream_cancels_and_returns) {
    struct sample s;
    struct kdad_stream *other;
    sample_make(&s, &sample_large, connection, 0, SAMPLE_UNCHECKED, 14);
    ck_ok(kdad_stream_open(connection, NULL, &other));
    for (int i = 0; i < 900; i++)
        ck_ok(kdad_chunk_kda_bwd_intra(other, &s.args, NULL));
    int64_t start = now_ms();
    ck_ok(kdad_stream_close(other));
    ck_assert_int_lt(now_ms() - start, 10000);
    check_results();
    sample_free(&s);
}
END_TEST

START_TEST(the_version_and_the_words_are_told) {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KDAD_VERSION_MAJOR, KDAD_VERSION_MINOR, KDAD_VERSION_PATCH);
    ck_assert_str_eq(kdad_version(), version);
    ck_assert_str_eq(kdad_status_string(KDAD_INVALID), "invalid argument");
    ck_assert_str_eq(kdad_status_string(KDAD_DAEMON_LOST), "daemon lost");
    ck_assert_str_eq(kdad_status_string((kdad_status)1234), "unknown status");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("client");
    TCase *without = tcase_create("without a daemon");
    TCase *with = tcase_create("with a daemon");
    tcase_add_test(without, a_missing_daemon_is_named);
    tcase_add_test(without, a_wrong_daemon_is_named);
    tcase_add_test(without, a_daemon_that_does_not_answer_times_out);
    tcase_add_test(without, the_version_and_the_words_are_told);
    tcase_add_checked_fixture(with, setup, teardown);
    tcase_add_test(with, another_user_is_refused);
    tcase_add_test(with, a_stream_needs_a_device_that_is_there);
    tcase_add_test(with, streams_are_limited_and_given_back);
    tcase_add_test(with, a_process_without_descriptors_keeps_its_connection);
    tcase_add_loop_test(with, results_are_right, 0, COUNT(shapes));
    tcase_add_test(with, the_identical_view_is_in_place);
    tcase_add_test(with, empty_jobs_succeed_without_memory);
    tcase_add_test(with, bad_cu_seqlens_leave_the_incoming_gradients);
    tcase_add_test(with, many_failures_are_told_at_once);
    tcase_add_test(with, a_refused_submission_leaves_the_stream_usable);
    tcase_add_test(with, plain_jobs_depend_on_each_other_in_order);
    tcase_add_test(with, plain_memory_is_copied_when_promised);
    tcase_add_test(with, plain_jobs_beyond_all_limits_wait_for_room);
    tcase_add_test(with, memory_is_page_aligned_zeroed_and_limited);
    tcase_add_test(with, memory_may_be_freed_and_had_again);
    tcase_add_test(with, tickets_count_and_can_be_asked_again);
    tcase_add_test(with, waits_time_out_while_the_daemon_is_stopped);
    tcase_add_test(with, a_full_socket_times_out_and_goes_on);
    tcase_add_test(with, closing_a_stream_cancels_and_returns);
    suite_add_tcase(suite, without);
    suite_add_tcase(suite, with);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
