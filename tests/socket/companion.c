#include "tests/socket/companion.h"

#include "tests/socket/sample.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct work {
    struct kdad_connection *connection;
    struct kdad_stream *stream;
    struct sample sample;
    void *first[4]; /* the outputs' blocks of the first job, which was checked */
};

static void compute(struct work *w) {
    kdad_ticket ticket;
    ck_ok(kdad_chunk_kda_bwd_intra(w->stream, &w->sample.args, &ticket));
    ck_ok(kdad_wait(w->stream, ticket, KDAD_DEFAULT_TIMEOUT));
}

static void begin(struct work *w) {
    ck_ok(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &w->connection));
    ck_ok(kdad_stream_open(w->connection, NULL, &w->stream));
    sample_make(&w->sample, &sample_small, w->connection, 0, 0, 4242);
    compute(w);
    sample_check(&w->sample);
    for (int i = 0; i < 4; i++) {
        size_t bytes = w->sample.bytes[OPERAND_DQ_OUT + i];
        w->first[i] = malloc(bytes);
        ck_assert_ptr_nonnull(w->first[i]);
        memcpy(w->first[i], w->sample.block[OPERAND_DQ_OUT + i], bytes);
    }
}

/* One more job, into outputs that hold nothing of the one before. */
static void go_on(struct work *w) {
    const struct sample *s = &w->sample;
    for (int i = 0; i < 4; i++)
        memcpy(s->block[OPERAND_DQ_OUT + i], s->saved[OPERAND_DQ_OUT + i], s->bytes[OPERAND_DQ_OUT + i]);
    compute(w);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(memcmp(s->block[OPERAND_DQ_OUT + i], w->first[i], s->bytes[OPERAND_DQ_OUT + i]) == 0,
                      "a well-behaved client's output %d has changed", i);
}

static void end(struct work *w) {
    for (int i = 0; i < 4; i++)
        free(w->first[i]);
    sample_free(&w->sample);
    ck_ok(kdad_stream_close(w->stream));
    kdad_disconnect(w->connection);
}

/* The companion's process: until stop's other end is closed, and one job longer. */
static void be_companion(int stop, int begun) {
    struct work work = {0};
    struct pollfd ended = {.fd = stop, .events = POLLIN};
    begin(&work);
    if (write(begun, "x", 1) != 1)
        _exit(2);
    bool last = false;
    do {
        last = poll(&ended, 1, 1) > 0;
        go_on(&work);
    } while (!last);
    end(&work);
    exit(0); /* sanitizers look for leaks */
}

void companion_start(struct companion *companion) {
    int stop[2], begun[2];
    char byte;
    ck_assert_int_eq(pipe(stop), 0);
    ck_assert_int_eq(pipe(begun), 0);
    companion->pid = fork();
    ck_assert_int_ge(companion->pid, 0);
    if (companion->pid == 0) {
        close(stop[1]);
        close(begun[0]);
        be_companion(stop[0], begun[1]);
    }
    close(stop[0]);
    close(begun[1]);
    companion->stop = stop[1];
    ck_assert_msg(read(begun[0], &byte, 1) == 1, "the well-behaved client did not begin");
    close(begun[0]);
}

void companion_stop(struct companion *companion) {
    int status;
    close(companion->stop);
    ck_assert_int_eq(waitpid(companion->pid, &status, 0), companion->pid);
    ck_assert_msg(status == 0, "the well-behaved client ended with wait status %#x", status);
}
