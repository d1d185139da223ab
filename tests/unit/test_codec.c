/*
 * The codec: what is encoded decodes to the same; the document's example is what the codec makes; and no
 * bytes, however wrong, do more than be refused.
 */
#include "proto/scan.h"
#include "proto/wire.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct wire_codec *codec, *other;
static char why[PROBLEM_WHY];

static void setup(void) {
    codec = wire_codec_new();
    other = wire_codec_new();
    ck_assert_ptr_nonnull(codec);
    ck_assert_ptr_nonnull(other);
}

static void teardown(void) {
    wire_codec_free(codec);
    wire_codec_free(other);
}

/* The problem of the document's example. */
static void example_problem(struct problem *p) {
    *p = (struct problem){.B = 1,
                          .T = 250,
                          .H = 1,
                          .HV = 2,
                          .K = 64,
                          .C = 64,
                          .N = 5,
                          .qk_dtype = DTYPE_BF16,
                          .beta_dtype = DTYPE_F32,
                          .cu_dtype = DTYPE_I64};
    uint64_t offset = 0;
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        int64_t shape[4];
        int ndim = problem_shape(p, o, shape);
        struct operand_view *v = &p->at[o];
        v->allocation = 1;
        v->offset = offset;
        int64_t size = 1;
        for (int i = 0; i < 3; i++)
            v->stride[i] = 1;
        for (int i = ndim - 1; i >= 0; i--) {
            if (i < 3)
                v->stride[i] = size;
            size *= shape[i];
        }
        if (o == OPERAND_G) { /* every second row of a larger tensor */
            v->stride[0] *= 2;
            v->stride[1] *= 2;
            size *= 2;
        }
        uint64_t bytes = (uint64_t)size * dtype_size(problem_dtype(p, o));
        offset += (bytes + 63) / 64 * 64;
        if (o == OPERAND_DG) /* cu_seqlens lies before the outputs */
            offset += 64;
    }
    p->at[OPERAND_CU_SEQLENS].offset = p->at[OPERAND_DQ_OUT].offset - 64;
}

/* One message of each opcode, with fields at their limits. */
static int sample(struct wire_message *m, int i) {
    static char name[WIRE_NAME_MAX + 1], sentence[WIRE_SENTENCE_MAX + 1];
    memset(name, 'n', WIRE_NAME_MAX);
    memset(sentence, 's', WIRE_SENTENCE_MAX);
    memset(m, 0, sizeof *m);
    m->id = UINT64_MAX - (uint64_t)i;
    switch (i) {
    case 0:
        m->opcode = WIRE_HELLO;
        m->hello = (struct wire_hello){1, 7, wire_string("0.1.0"), UINT64_MAX, wire_string(name)};
        return 1;
    case 1:
        m->opcode = WIRE_HELLO_REPLY;
        m->hello_reply = (struct wire_hello_reply){1, 0, wire_string(""), 0, wire_string("cpu"), 256, 4096};
        return 1;
    case 2:
        m->opcode = WIRE_STREAM_OPEN;
        m->stream_open = (struct wire_stream_open){wire_string("cpu"), -5};
        return 1;
    case 3:
        m->opcode = WIRE_STREAM_OPEN_REPLY;
        m->stream_open_reply = (struct wire_stream_open_reply){UINT64_MAX, 1024};
        return 1;
    case 4:
        m->opcode = WIRE_STREAM_CLOSE;
        m->stream_close.stream = 3;
        return 1;
    case 5:
        m->opcode = WIRE_STREAM_CLOSE_REPLY;
        return 1;
    case 6:
        m->opcode = WIRE_REGISTER;
        m->reg = (struct wire_register){.kind = 1, .size = UINT64_MAX};
        return 1;
    case 7:
        m->opcode = WIRE_REGISTER_REPLY;
        m->reg_reply.buffer = 1;
        return 1;
    case 8:
        m->opcode = WIRE_RELEASE;
        m->release.buffer = 1;
        return 1;
    case 9:
        m->opcode = WIRE_RELEASE_REPLY;
        return 1;
    case 10:
        m->opcode = WIRE_SUBMIT;
        m->submit = (struct wire_submit){.stream = 1, .ticket = 1, .operation = 1};
        example_problem(&m->submit.problem);
        return 1;
    case 11: /* in place, without cu_seqlens, with strides that a problem may not have */
        m->opcode = WIRE_SUBMIT;
        m->submit = (struct wire_submit){.stream = 1, .ticket = UINT64_MAX, .operation = 1};
        example_problem(&m->submit.problem);
        m->submit.problem.N = -1;
        m->submit.problem.at[OPERAND_G].stride[0] = INT64_MIN;
        m->submit.problem.at[OPERAND_CU_SEQLENS] = (struct operand_view){0};
        for (enum operand o = OPERAND_DQ_OUT; o <= OPERAND_DG_OUT; o++)
            m->submit.problem.at[o] = m->submit.problem.at[o - 4];
        return 1;
    case 12:
        m->opcode = WIRE_STATUS;
        m->status.before = UINT64_MAX;
        return 1;
    case 13:
        m->opcode = WIRE_STATUS_REPLY;
        m->status_reply = (struct wire_status_reply){.version = wire_string("1"),
                                                     .pid = -1,
                                                     .clients = 9999,
                                                     .jobs_done = UINT64_MAX,
                                                     .device_count = WIRE_STATUS_DEVICES,
                                                     .count = WIRE_STATUS_CLIENTS};
        memset(&m->status_reply.queue, 0xff, sizeof m->status_reply.queue);
        memset(&m->status_reply.run, 0xff, sizeof m->status_reply.run / 2);
        for (int d = 0; d < WIRE_STATUS_DEVICES; d++)
            m->status_reply.device[d] = (struct wire_status_device){
                wire_string(name), wire_string(name), d % 2, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
        m->status_reply.backend = m->status_reply.detail = wire_string(name);
        for (int c = 0; c < WIRE_STATUS_CLIENTS; c++) {
            struct wire_status_client row;
            memset(&row, 0xff, sizeof row);
            row.pid = INT64_MAX;
            row.uid = INT64_MIN;
            row.name = wire_string(name);
            m->status_reply.client[c] = row;
        }
        m->status_reply.user_count = WIRE_STATUS_USERS;
        memset(m->status_reply.user, 0xff, sizeof m->status_reply.user);
        m->status_reply.limits = m->status_reply.user[0];
        return 1;
    case 14:
        m->opcode = WIRE_JOB_ERROR;
        m->job_error = (struct wire_job_error){1, 2, WIRE_BAD_DATA, wire_string(sentence)};
        return 1;
    case 15:
        m->opcode = WIRE_ERROR;
        m->error = (struct wire_error){WIRE_LIMIT, wire_string(sentence), true};
        return 1;
    case 16:
        m->opcode = WIRE_TRACE;
        m->trace.from = UINT64_MAX;
        return 1;
    case 17:
        m->opcode = WIRE_TRACE_REPLY;
        memset(&m->trace_reply, 0xff, sizeof m->trace_reply);
        m->trace_reply.count = WIRE_TRACE_JOBS;
        m->trace_reply.job[1].pid = m->trace_reply.job[2].T = INT64_MIN;
        return 1;
    case 18:
        m->opcode = WIRE_REGISTER;
        m->reg = (struct wire_register){.kind = WIRE_BUFFER_CUDA_VMM,
                                        .size = UINT64_MAX,
                                        .device = wire_string(name),
                                        .segments = WIRE_FDS_MAX};
        for (int s = 0; s < WIRE_FDS_MAX; s++)
            m->reg.segment[s] = UINT64_MAX - (uint64_t)s;
        return 1;
    default:
        return 0;
    }
}

/* Bytes decode to a message that encodes to the same bytes: no field is lost, none invented. */
START_TEST(round_trip) {
    struct wire_message in, out;
    for (int i = 0; sample(&in, i); i++) {
        size_t size, size2;
        const void *bytes = wire_encode(codec, &in, &size);
        ck_assert_ptr_nonnull(bytes);
        ck_assert_msg(wire_decode(other, bytes, size, &out, why), "sample %d: %s", i, why);
        ck_assert_uint_eq(out.opcode, in.opcode);
        ck_assert_uint_eq(out.id, in.id);
        if (in.opcode == WIRE_SUBMIT) {
            const struct problem *p = &in.submit.problem, *q = &out.submit.problem;
            ck_assert_mem_eq(p, q, offsetof(struct problem, qk_dtype));
            ck_assert_mem_eq(p->at, q->at, sizeof p->at);
            ck_assert_int_eq(p->qk_dtype, q->qk_dtype);
            ck_assert_int_eq(p->beta_dtype, q->beta_dtype);
            ck_assert_int_eq(p->cu_dtype, q->cu_dtype);
        }
        const void *again = wire_encode(other, &out, &size2);
        ck_assert_uint_eq(size2, size);
        ck_assert_mem_eq(again, bytes, size);
    }
}
END_TEST

START_TEST(every_truncation_is_refused) {
    struct wire_message in, out;
    for (int i = 0; sample(&in, i); i++) {
        size_t size;
        const char *bytes = wire_encode(codec, &in, &size);
        for (size_t cut = 0; cut < size; cut++) {
            char *exact = malloc(cut ? cut : 1); /* so that a sanitizer sees a read behind the end */
            memcpy(exact, bytes, cut);
            ck_assert(!wire_decode(other, exact, cut, &out, why));
            free(exact);
        }
    }
}
END_TEST

START_TEST(trailing_fields_are_ignored) {
    struct wire_message out;
    const uint8_t release[] = {0x95, 5, 5, 1, 0xc0, 0x92, 1, 2};
    ck_assert(wire_decode(codec, release, sizeof release, &out, why));
    ck_assert_uint_eq(out.release.buffer, 1);
    const uint8_t unknown[] = {0x94, 0x63, 10, 0x91, 1, 0xa1, 'x'};
    ck_assert(wire_decode(codec, unknown, sizeof unknown, &out, why));
    ck_assert_uint_eq(out.opcode, 99);
    ck_assert_uint_eq(out.id, 10);
}
END_TEST

START_TEST(wrong_fields_are_named) {
    struct wire_message out;
    const uint8_t text_for_number[] = {0x93, 5, 5, 0xa1, 'x'};
    ck_assert(!wire_decode(codec, text_for_number, sizeof text_for_number, &out, why));
    ck_assert_str_eq(why, "packet: opcode 5: field 'buffer' is missing, of a wrong type or out of range");
    const uint8_t negative[] = {0x93, 5, 5, 0xff};
    ck_assert(!wire_decode(codec, negative, sizeof negative, &out, why));
    const uint8_t missing[] = {0x94, 4, 5, 1};
    ck_assert(!wire_decode(codec, missing, sizeof missing, &out, why));
    const uint8_t no_segments[] = {0x96, 4, 5, 3, 1, 0xa1, 'x', 0x90};
    ck_assert(!wire_decode(codec, no_segments, sizeof no_segments, &out, why));
    ck_assert_str_eq(why, "packet: opcode 4: field 'segments' is missing, of a wrong type or out of range");
    uint8_t many[10 + WIRE_FDS_MAX + 1] = {0x96, 4, 5, 3, 1, 0xa1, 'x', 0xdc, 0, WIRE_FDS_MAX + 1};
    ck_assert(!wire_decode(codec, many, sizeof many, &out, why));
    const uint8_t map[] = {0x80};
    ck_assert(!wire_decode(codec, map, sizeof map, &out, why));
    ck_assert_str_eq(why, "packet: is not a msgpack array");
    uint8_t long_name[WIRE_NAME_MAX + 8] = {0x94, 2, 2, 0xd9, WIRE_NAME_MAX + 1};
    ck_assert(!wire_decode(codec, long_name, 5 + WIRE_NAME_MAX + 2, &out, why));
}
END_TEST

static const char *scan(const char *hex) {
    uint8_t bytes[256];
    size_t n = 0;
    for (; *hex; hex += 2) {
        unsigned value;
        while (*hex == ' ')
            hex++;
        ck_assert_int_eq(sscanf(hex, "%2x", &value), 1);
        bytes[n++] = (uint8_t)value;
    }
    return scan_msgpack(bytes, n);
}

START_TEST(scan_bounds_what_follows) {
    ck_assert_str_eq(scan("dd08000000"), "a count beyond the packet's end"); /* asks msgpack-c for 4 GiB */
    ck_assert_str_eq(scan("ddffffffff"), "a count beyond the packet's end");
    ck_assert_str_eq(scan("dfffffffff00"), "a count beyond the packet's end");
    ck_assert_str_eq(scan("df8000000000"), "a count beyond the packet's end"); /* 2 · 2^31 wraps in 32 bits */
    ck_assert_str_eq(scan("dbffffffff"), "a length beyond the packet's end");
    ck_assert_str_eq(scan("c6ffffffff"), "a length beyond the packet's end");
    ck_assert_str_eq(scan("dc00"), "a length beyond the packet's end");
    ck_assert_str_eq(scan("cf00"), "a length beyond the packet's end");
    ck_assert_str_eq(scan("9201"), "a count beyond the packet's end");
    ck_assert_str_eq(scan("929101"), "message is cut short");
    ck_assert_str_eq(scan("9101c0"), "bytes behind the message");
    ck_assert_str_eq(scan("9191919191919101"), "nested too deep");
    ck_assert_ptr_null(scan("91919191919101"));
    ck_assert_str_eq(scan("91c1"), "a msgpack type that the protocol does not use");
    ck_assert_str_eq(scan("91d40101"), "a msgpack type that the protocol does not use");
    ck_assert_str_eq(scan("91c70000"), "a msgpack type that the protocol does not use");
    ck_assert_str_eq(scan_msgpack((const uint8_t *)"", 0), "message is cut short");
    static uint8_t many[WIRE_OBJECTS_MAX + 8] = {0xdc, (WIRE_OBJECTS_MAX + 1) >> 8,
                                                 (WIRE_OBJECTS_MAX + 1) & 255};
    ck_assert_str_eq(scan_msgpack(many, 3 + WIRE_OBJECTS_MAX + 1), "too many objects");
}
END_TEST

/* Every one- to three-byte prefix of nothing, and random damage to good packets: refused or decoded, no more.
 */
START_TEST(damage_is_harmless) {
    struct wire_message in, out;
    unsigned seed = 1;
    for (unsigned bytes = 0; bytes < 1u << 24; bytes += 7) {
        uint8_t *exact = malloc(3);
        exact[0] = (uint8_t)bytes;
        exact[1] = (uint8_t)(bytes >> 8);
        exact[2] = (uint8_t)(bytes >> 16);
        wire_decode(other, exact, 1 + bytes % 3, &out, why);
        free(exact);
    }
    for (int round = 0; round < 60000; round++) {
        size_t size;
        ck_assert(sample(&in, round % 16));
        const char *bytes = wire_encode(codec, &in, &size);
        char *exact = malloc(size);
        memcpy(exact, bytes, size);
        for (int i = rand_r(&seed) % 4; i >= 0; i--)
            exact[(size_t)rand_r(&seed) % size] = (char)rand_r(&seed);
        if (wire_decode(other, exact, size, &out, why)) {
            size_t again;
            wire_encode(codec, &out, &again);
        }
        free(exact);
    }
}
END_TEST

/* The bytes in wire.md, in order, are what the codec makes of the messages that it describes. */
START_TEST(document_is_true) {
    FILE *f = fopen(KDAD_SOURCE_DIR "/proto/wire.md", "r");
    ck_assert_ptr_nonnull(f);
    char line[512], expected[8192], found[8192];
    size_t n = 0;
    bool inside = false;
    while (fgets(line, sizeof line, f)) {
        inside |= strncmp(line, "## An example in bytes", 22) == 0;
        if (!inside || strncmp(line, "      ", 6) != 0)
            continue;
        for (const char *p = line + 6;
             p[0] && p[1] && p[2] && strchr("0123456789abcdef", p[0]) && strchr("0123456789abcdef", p[1]);
             p += 3) {
            n += (size_t)sprintf(expected + n, "%.2s", p);
            if (p[2] != ' ' || p[3] == ' ')
                break;
        }
    }
    fclose(f);
    struct wire_message m[] = {
        {.opcode = WIRE_HELLO, .id = 1, .hello = {1, 0, wire_string("0.1.0"), 0, wire_string("example")}},
        {.opcode = WIRE_HELLO_REPLY,
         .id = 1,
         .hello_reply = {1, 0, wire_string("0.1.0"), 0, wire_string("cpu"), WIRE_STREAMS_MAX,
                         WIRE_BUFFERS_MAX}},
        {.opcode = WIRE_STREAM_OPEN, .id = 2, .stream_open = {wire_string("cpu"), 0}},
        {.opcode = WIRE_STREAM_OPEN_REPLY, .id = 2, .stream_open_reply = {1, WIRE_STREAM_SLOTS}},
        {.opcode = WIRE_REGISTER, .id = 3, .reg = {.kind = 1, .size = 4194304}},
        {.opcode = WIRE_REGISTER_REPLY, .id = 3, .reg_reply = {1}},
        {.opcode = WIRE_SUBMIT, .submit = {.stream = 1, .ticket = 1, .operation = 1}},
        {.opcode = WIRE_STREAM_CLOSE, .id = 4, .stream_close = {1}},
        {.opcode = WIRE_STREAM_CLOSE_REPLY, .id = 4},
        {.opcode = WIRE_RELEASE, .id = 5, .release = {1}},
        {.opcode = WIRE_RELEASE_REPLY, .id = 5},
    };
    example_problem(&m[6].submit.problem);
    size_t at = 0;
    for (size_t i = 0; i < sizeof m / sizeof m[0]; i++) {
        size_t size;
        const uint8_t *bytes = wire_encode(codec, &m[i], &size);
        for (size_t b = 0; b < size; b++)
            at += (size_t)sprintf(found + at, "%02x", bytes[b]);
    }
    ck_assert_str_eq(expected, found);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("codec");
    TCase *c = tcase_create("codec");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, round_trip);
    tcase_add_test(c, every_truncation_is_refused);
    tcase_add_test(c, trailing_fields_are_ignored);
    tcase_add_test(c, wrong_fields_are_named);
    tcase_add_test(c, scan_bounds_what_follows);
    tcase_add_test(c, damage_is_harmless);
    tcase_add_test(c, document_is_true);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
