/*
 * codec.c - messages to bytes and back: the one codec of both ends.
 *
 * Encoding goes through msgpack-c's packer into a buffer of one packet's size. Decoding scans (scan.h), lets
 * msgpack-c parse into a zone that is used again and again, and reads fields in order through a cursor, which
 * notes the first field that is missing or wrong. Fields behind those that this version knows are ignored.
 */
#include "proto/scan.h"
#include "proto/wire.h"

#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZONE_CHUNK 32768

struct wire_codec {
    msgpack_zone zone;
    msgpack_packer packer;
    size_t size;
    bool overflow;
    char buffer[WIRE_PACKET_MAX];
};

struct wire_string wire_string(const char *text) {
    return (struct wire_string){text, (uint32_t)strlen(text)};
}

static int buffer_write(void *data, const char *bytes, size_t size) {
    struct wire_codec *codec = data;
    if (size > sizeof codec->buffer - codec->size) {
        codec->overflow = true;
        return -1;
    }
    if (size == 1) /* most are */
        codec->buffer[codec->size] = *bytes;
    else if (size > 0) /* an empty string may have no address */
        memcpy(codec->buffer + codec->size, bytes, size);
    codec->size += size;
    return 0;
}

struct wire_codec *wire_codec_new(void) {
    struct wire_codec *codec = malloc(sizeof *codec);
    if (!codec)
        return NULL;
    if (!msgpack_zone_init(&codec->zone, ZONE_CHUNK)) {
        free(codec);
        return NULL;
    }
    msgpack_packer_init(&codec->packer, codec, buffer_write);
    return codec;
}

void wire_codec_free(struct wire_codec *codec) {
    if (!codec)
        return;
    msgpack_zone_destroy(&codec->zone);
    free(codec);
}

/* --- decoding ------------------------------------------------------------------------------------------ */

struct cursor {
    const msgpack_object *next, *end;
    const char *wrong; /* the first field that could not be read */
};

static const msgpack_object *take(struct cursor *c, const char *field) {
    if (c->next == c->end) {
        if (!c->wrong)
            c->wrong = field;
        return NULL;
    }
    return c->next++;
}

static uint64_t take_uint(struct cursor *c, const char *field, uint64_t max) {
    const msgpack_object *o = take(c, field);
    if (o && o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= max)
        return o->via.u64;
    if (!c->wrong)
        c->wrong = field;
    return 0;
}

static uint32_t take_u32(struct cursor *c, const char *field) {
    return (uint32_t)take_uint(c, field, UINT32_MAX);
}

static uint64_t take_u64(struct cursor *c, const char *field) {
    return take_uint(c, field, UINT64_MAX);
}

static int64_t take_int(struct cursor *c, const char *field) {
    const msgpack_object *o = take(c, field);
    if (o && o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return o->via.i64;
    if (o && o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= INT64_MAX)
        return (int64_t)o->via.u64;
    if (!c->wrong)
        c->wrong = field;
    return 0;
}

static bool take_bool(struct cursor *c, const char *field) {
    const msgpack_object *o = take(c, field);
    if (o && o->type == MSGPACK_OBJECT_BOOLEAN)
        return o->via.boolean;
    if (!c->wrong)
        c->wrong = field;
    return false;
}

static struct wire_string take_string(struct cursor *c, const char *field, uint32_t max) {
    const msgpack_object *o = take(c, field);
    if (o && o->type == MSGPACK_OBJECT_STR && o->via.str.size <= max)
        return (struct wire_string){o->via.str.ptr, o->via.str.size};
    if (!c->wrong)
        c->wrong = field;
    return (struct wire_string){"", 0};
}

static struct wire_string take_bytes(struct cursor *c, const char *field, uint32_t size) {
    const msgpack_object *o = take(c, field);
    if (o && o->type == MSGPACK_OBJECT_BIN && o->via.bin.size == size)
        return (struct wire_string){o->via.bin.ptr, o->via.bin.size};
    if (!c->wrong)
        c->wrong = field;
    return (struct wire_string){"", 0};
}

/* An array inside; an empty cursor that is wrong already if there is none. */
static struct cursor take_array(struct cursor *c, const char *field) {
    const msgpack_object *o = take(c, field);
    if (o && o->type == MSGPACK_OBJECT_ARRAY)
        return (struct cursor){o->via.array.ptr, o->via.array.ptr + o->via.array.size, NULL};
    if (!c->wrong)
        c->wrong = field;
    return (struct cursor){NULL, NULL, field};
}

static void join(struct cursor *c, const struct cursor *inner) {
    if (!c->wrong)
        c->wrong = inner->wrong;
}

static bool next_is_nil(const struct cursor *c) {
    return c->next != c->end && c->next->type == MSGPACK_OBJECT_NIL;
}

static void take_view(struct cursor *c, const struct problem *p, enum operand o, struct operand_view *v) {
    const char *name = operand_name(o);
    struct cursor in = take_array(c, name);
    v->allocation = take_u64(&in, name);
    v->allocation_size = 0;
    v->offset = take_u64(&in, name);
    problem_contiguous(p, o, v->stride);
    if (in.next != in.end) {
        int64_t shape[4];
        int strides = problem_shape(p, o, shape) - 1;
        for (int i = 0; i < strides; i++)
            v->stride[i] = take_int(&in, name);
    }
    join(c, &in);
}

static void take_problem(struct cursor *c, struct problem *p) {
    struct cursor sizes = take_array(c, "sizes");
    p->B = take_int(&sizes, "B");
    p->T = take_int(&sizes, "T");
    p->H = take_int(&sizes, "H");
    p->HV = take_int(&sizes, "HV");
    p->K = take_int(&sizes, "K");
    p->C = take_int(&sizes, "chunk_size");
    p->N = take_int(&sizes, "N");
    join(c, &sizes);
    struct cursor types = take_array(c, "types");
    p->qk_dtype = (enum dtype)take_uint(&types, "type of q and k", DTYPE_I64);
    p->beta_dtype = (enum dtype)take_uint(&types, "type of beta", DTYPE_I64);
    p->cu_dtype = (enum dtype)take_uint(&types, "type of cu_seqlens", DTYPE_I64);
    join(c, &types);
    struct cursor views = take_array(c, "operands");
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (o == OPERAND_CU_SEQLENS && p->N < 0)
            p->at[o] = (struct operand_view){0};
        else if (operand_is_output(o) && next_is_nil(&views)) {
            take(&views, operand_name(o));
            p->at[o] = p->at[o - (OPERAND_DQ_OUT - OPERAND_DQ)];
        } else
            take_view(&views, p, o, &p->at[o]);
    }
    join(c, &views);
}

static void take_status_client(struct cursor *c, struct wire_status_client *row) {
    struct cursor in = take_array(c, "client");
    row->number = take_u64(&in, "number");
    row->pid = take_int(&in, "pid");
    row->uid = take_int(&in, "uid");
    row->name = take_string(&in, "name", WIRE_NAME_MAX);
    row->age_ns = take_u64(&in, "age");
    row->streams = take_u64(&in, "streams");
    row->buffers = take_u64(&in, "buffers");
    row->buffer_bytes = take_u64(&in, "buffer bytes");
    row->jobs_queued = take_u64(&in, "jobs queued");
    row->jobs_done = take_u64(&in, "jobs done");
    row->jobs_failed = take_u64(&in, "jobs failed");
    row->busy_ns = take_u64(&in, "busy time");
    row->bytes_moved = take_u64(&in, "bytes moved");
    row->p50_ns = take_u64(&in, "median");
    row->p99_ns = take_u64(&in, "99th percentile");
    join(c, &in);
}

static void take_status_device(struct cursor *c, struct wire_status_device *row) {
    struct cursor in = take_array(c, "device");
    row->device = take_string(&in, "device", WIRE_NAME_MAX);
    row->name = take_string(&in, "name", WIRE_NAME_MAX);
    row->mps = take_u32(&in, "MPS");
    row->own_bytes = take_u64(&in, "own bytes");
    row->copy_rate = take_u64(&in, "copy rate");
    row->last_bytes = take_u64(&in, "bytes of the last jobs");
    row->last_ns = take_u64(&in, "time of the last jobs");
    join(c, &in);
}

static void take_status_user(struct cursor *c, struct wire_status_user *row) {
    struct cursor in = take_array(c, "user");
    row->uid = take_int(&in, "uid");
    row->connections = take_u64(&in, "connections");
    row->streams = take_u64(&in, "streams");
    row->buffers = take_u64(&in, "buffers");
    row->buffer_bytes = take_u64(&in, "buffer bytes");
    row->jobs_queued = take_u64(&in, "jobs queued");
    join(c, &in);
}

/* Buckets behind those that came are empty. */
static void take_histogram(struct cursor *c, const char *field, struct histogram *histogram) {
    struct cursor in = take_array(c, field);
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        histogram->count[i] = in.next != in.end ? take_u64(&in, field) : 0;
    join(c, &in);
}

static void take_status_reply(struct cursor *c, struct wire_status_reply *s) {
    s->version = take_string(c, "version", WIRE_NAME_MAX);
    s->backend = take_string(c, "backend", WIRE_NAME_MAX);
    s->detail = take_string(c, "detail", WIRE_NAME_MAX);
    s->pid = take_int(c, "pid");
    s->uptime_ns = take_u64(c, "uptime");
    s->threads = take_u32(c, "threads");
    s->connections = take_u64(c, "connections");
    s->streams = take_u64(c, "streams");
    s->buffers = take_u64(c, "buffers");
    s->buffer_bytes = take_u64(c, "buffer bytes");
    s->jobs_queued = take_u64(c, "jobs queued");
    s->jobs_done = take_u64(c, "jobs done");
    s->jobs_failed = take_u64(c, "jobs failed");
    s->busy_ns = take_u64(c, "busy time");
    s->bytes_moved = take_u64(c, "bytes moved");
    take_histogram(c, "queue times", &s->queue);
    take_histogram(c, "run times", &s->run);
    take_histogram(c, "whole times", &s->whole);
    s->queue_ns = take_u64(c, "sum of queue times");
    s->run_ns = take_u64(c, "sum of run times");
    struct cursor devices = take_array(c, "device rows");
    for (s->device_count = 0; s->device_count < WIRE_STATUS_DEVICES && devices.next != devices.end;
         s->device_count++)
        take_status_device(&devices, &s->device[s->device_count]);
    join(c, &devices);
    s->clients = take_u32(c, "clients");
    struct cursor rows = take_array(c, "client rows");
    for (s->count = 0; s->count < WIRE_STATUS_CLIENTS && rows.next != rows.end; s->count++)
        take_status_client(&rows, &s->client[s->count]);
    join(c, &rows);
    take_status_user(c, &s->limits);
    struct cursor users = take_array(c, "user rows");
    for (s->user_count = 0; s->user_count < WIRE_STATUS_USERS && users.next != users.end; s->user_count++)
        take_status_user(&users, &s->user[s->user_count]);
    join(c, &users);
}

static void take_trace_job(struct cursor *c, struct wire_trace_job *job) {
    struct cursor in = take_array(c, "job");
    job->client = take_u64(&in, "client");
    job->pid = take_int(&in, "pid");
    job->stream = take_u64(&in, "stream");
    job->ticket = take_u64(&in, "ticket");
    job->status = take_u64(&in, "status");
    job->received_ns = take_u64(&in, "time of arrival");
    job->started_ns = take_u64(&in, "time of the start");
    job->ended_ns = take_u64(&in, "time of the end");
    job->B = take_int(&in, "B");
    job->T = take_int(&in, "T");
    job->HV = take_int(&in, "HV");
    job->K = take_int(&in, "K");
    job->bytes = take_u64(&in, "bytes");
    join(c, &in);
}

static void take_trace_reply(struct cursor *c, struct wire_trace_reply *t) {
    t->now_ns = take_u64(c, "time");
    t->next = take_u64(c, "next");
    t->lost = take_u64(c, "lost");
    struct cursor jobs = take_array(c, "jobs");
    for (t->count = 0; t->count < WIRE_TRACE_JOBS && jobs.next != jobs.end; t->count++)
        take_trace_job(&jobs, &t->job[t->count]);
    join(c, &jobs);
}

static void take_segments(struct cursor *c, struct wire_register *r) {
    struct cursor in = take_array(c, "segments");
    for (r->segments = 0; r->segments < WIRE_FDS_MAX && in.next != in.end; r->segments++)
        r->segment[r->segments] = take_u64(&in, "segments");
    if (in.next != in.end || r->segments == 0) /* too many, or none */
        in.wrong = "segments";
    join(c, &in);
}

static void take_message(struct cursor *c, struct wire_message *m) {
    switch (m->opcode) {
    case WIRE_HELLO:
        m->hello.major = take_u32(c, "major version");
        m->hello.minor = take_u32(c, "minor version");
        m->hello.version = take_string(c, "version", WIRE_NAME_MAX);
        m->hello.features = take_u64(c, "features");
        m->hello.name = take_string(c, "name", WIRE_NAME_MAX);
        break;
    case WIRE_HELLO_REPLY:
        m->hello_reply.major = take_u32(c, "major version");
        m->hello_reply.minor = take_u32(c, "minor version");
        m->hello_reply.version = take_string(c, "version", WIRE_NAME_MAX);
        m->hello_reply.features = take_u64(c, "features");
        m->hello_reply.backend = take_string(c, "backend", WIRE_NAME_MAX);
        m->hello_reply.streams_max = take_u32(c, "most streams");
        m->hello_reply.buffers_max = take_u32(c, "most buffers");
        break;
    case WIRE_STREAM_OPEN:
        m->stream_open.device = take_string(c, "device", WIRE_NAME_MAX);
        m->stream_open.priority = (int32_t)take_int(c, "priority");
        break;
    case WIRE_STREAM_OPEN_REPLY:
        m->stream_open_reply.stream = take_u64(c, "stream");
        m->stream_open_reply.slots = take_u32(c, "slots");
        break;
    case WIRE_STREAM_CLOSE:
        m->stream_close.stream = take_u64(c, "stream");
        break;
    case WIRE_REGISTER:
        m->reg.kind = take_u32(c, "kind");
        m->reg.size = take_u64(c, "size");
        m->reg.device = m->reg.handle = (struct wire_string){"", 0};
        m->reg.segments = 0;
        if (m->reg.kind == WIRE_BUFFER_CUDA_IPC || m->reg.kind == WIRE_BUFFER_CUDA_VMM)
            m->reg.device = take_string(c, "device", WIRE_NAME_MAX);
        if (m->reg.kind == WIRE_BUFFER_CUDA_IPC)
            m->reg.handle = take_bytes(c, "handle", WIRE_HANDLE_SIZE);
        else if (m->reg.kind == WIRE_BUFFER_CUDA_VMM)
            take_segments(c, &m->reg);
        break;
    case WIRE_REGISTER_REPLY:
        m->reg_reply.buffer = take_u64(c, "buffer");
        break;
    case WIRE_RELEASE:
        m->release.buffer = take_u64(c, "buffer");
        break;
    case WIRE_SUBMIT:
        m->submit.stream = take_u64(c, "stream");
        m->submit.ticket = take_u64(c, "ticket");
        m->submit.operation = take_u32(c, "operation");
        take_problem(c, &m->submit.problem);
        break;
    case WIRE_STATUS:
        m->status.before = take_u64(c, "before");
        break;
    case WIRE_STATUS_REPLY:
        take_status_reply(c, &m->status_reply);
        break;
    case WIRE_TRACE:
        m->trace.from = take_u64(c, "from");
        break;
    case WIRE_TRACE_REPLY:
        take_trace_reply(c, &m->trace_reply);
        break;
    case WIRE_JOB_ERROR:
        m->job_error.stream = take_u64(c, "stream");
        m->job_error.ticket = take_u64(c, "ticket");
        m->job_error.status = take_u32(c, "status");
        m->job_error.sentence = take_string(c, "sentence", WIRE_SENTENCE_MAX);
        break;
    case WIRE_ERROR:
        m->error.status = take_u32(c, "status");
        m->error.sentence = take_string(c, "sentence", WIRE_SENTENCE_MAX);
        m->error.closing = take_bool(c, "closing");
        break;
    default: /* the two empty replies, and opcodes that are not known */
        break;
    }
}

bool wire_decode(struct wire_codec *codec, const void *data, size_t size, struct wire_message *message,
                 char why[PROBLEM_WHY]) {
    message->opcode = 0;
    message->id = 0;
    const char *wrong = scan_msgpack(data, size);
    if (wrong) {
        snprintf(why, PROBLEM_WHY, "packet: %s", wrong);
        return false;
    }
    msgpack_object object;
    size_t offset = 0;
    msgpack_zone_clear(&codec->zone);
    msgpack_unpack_return parsed = msgpack_unpack(data, size, &offset, &codec->zone, &object);
    if (parsed != MSGPACK_UNPACK_SUCCESS && parsed != MSGPACK_UNPACK_EXTRA_BYTES) {
        snprintf(why, PROBLEM_WHY, "packet: msgpack cannot be parsed");
        return false;
    }
    if (object.type != MSGPACK_OBJECT_ARRAY) {
        snprintf(why, PROBLEM_WHY, "packet: is not a msgpack array");
        return false;
    }
    struct cursor c = {object.via.array.ptr, object.via.array.ptr + object.via.array.size, NULL};
    message->opcode = take_u32(&c, "opcode");
    message->id = take_u64(&c, "id");
    if (!c.wrong)
        take_message(&c, message);
    if (c.wrong) {
        snprintf(why, PROBLEM_WHY,
                 "packet: opcode %u: field '%s' is missing, of a wrong type or out of range", message->opcode,
                 c.wrong);
        return false;
    }
    return true;
}

/* --- encoding ------------------------------------------------------------------------------------------ */

static void put_array(msgpack_packer *k, size_t count) {
    msgpack_pack_array(k, count);
}

static void put_uint(msgpack_packer *k, uint64_t value) {
    msgpack_pack_uint64(k, value);
}

static void put_int(msgpack_packer *k, int64_t value) {
    msgpack_pack_int64(k, value);
}

static void put_bool(msgpack_packer *k, bool value) {
    if (value)
        msgpack_pack_true(k);
    else
        msgpack_pack_false(k);
}

static void put_string(msgpack_packer *k, struct wire_string s, uint32_t max) {
    uint32_t size = s.size < max ? s.size : max;
    msgpack_pack_str(k, size);
    msgpack_pack_str_body(k, s.data, size);
}

/* Strides of dimensions of size 1 mean nothing. */
static bool is_same_layout(const int64_t *a, const int64_t *b, const int64_t *shape, int strides) {
    for (int i = 0; i < strides; i++) {
        if (shape[i] != 1 && a[i] != b[i])
            return false;
    }
    return true;
}

static void put_view(msgpack_packer *k, const struct problem *p, enum operand o) {
    const struct operand_view *v = &p->at[o];
    int64_t shape[4], contiguous[3];
    int strides = problem_shape(p, o, shape) - 1;
    problem_contiguous(p, o, contiguous);
    if (is_same_layout(v->stride, contiguous, shape, strides))
        strides = 0;
    put_array(k, 2 + (size_t)strides);
    put_uint(k, v->allocation);
    put_uint(k, v->offset);
    for (int i = 0; i < strides; i++)
        put_int(k, v->stride[i]);
}

static bool is_in_place(const struct problem *p, enum operand o) {
    const struct operand_view *out = &p->at[o], *in = &p->at[o - (OPERAND_DQ_OUT - OPERAND_DQ)];
    return out->allocation == in->allocation && out->offset == in->offset &&
           memcmp(out->stride, in->stride, sizeof in->stride) == 0;
}

static void put_problem(msgpack_packer *k, const struct problem *p) {
    put_array(k, 7);
    put_int(k, p->B);
    put_int(k, p->T);
    put_int(k, p->H);
    put_int(k, p->HV);
    put_int(k, p->K);
    put_int(k, p->C);
    put_int(k, p->N);
    put_array(k, 3);
    put_uint(k, p->qk_dtype);
    put_uint(k, p->beta_dtype);
    put_uint(k, p->cu_dtype);
    put_array(k, p->N >= 0 ? OPERAND_COUNT : OPERAND_COUNT - 1);
    for (enum operand o = 0; o < OPERAND_COUNT; o++) {
        if (!problem_has(p, o))
            continue;
        if (operand_is_output(o) && is_in_place(p, o))
            msgpack_pack_nil(k);
        else
            put_view(k, p, o);
    }
}

static void put_status_client(msgpack_packer *k, const struct wire_status_client *row) {
    put_array(k, 15);
    put_uint(k, row->number);
    put_int(k, row->pid);
    put_int(k, row->uid);
    put_string(k, row->name, WIRE_NAME_MAX);
    put_uint(k, row->age_ns);
    put_uint(k, row->streams);
    put_uint(k, row->buffers);
    put_uint(k, row->buffer_bytes);
    put_uint(k, row->jobs_queued);
    put_uint(k, row->jobs_done);
    put_uint(k, row->jobs_failed);
    put_uint(k, row->busy_ns);
    put_uint(k, row->bytes_moved);
    put_uint(k, row->p50_ns);
    put_uint(k, row->p99_ns);
}

static void put_status_device(msgpack_packer *k, const struct wire_status_device *row) {
    put_array(k, 7);
    put_string(k, row->device, WIRE_NAME_MAX);
    put_string(k, row->name, WIRE_NAME_MAX);
    put_uint(k, row->mps);
    put_uint(k, row->own_bytes);
    put_uint(k, row->copy_rate);
    put_uint(k, row->last_bytes);
    put_uint(k, row->last_ns);
}

static void put_status_user(msgpack_packer *k, const struct wire_status_user *row) {
    put_array(k, 6);
    put_int(k, row->uid);
    put_uint(k, row->connections);
    put_uint(k, row->streams);
    put_uint(k, row->buffers);
    put_uint(k, row->buffer_bytes);
    put_uint(k, row->jobs_queued);
}

static void put_histogram(msgpack_packer *k, const struct histogram *histogram) {
    unsigned count = HISTOGRAM_BUCKETS;
    while (count > 0 && histogram->count[count - 1] == 0)
        count--;
    put_array(k, count);
    for (unsigned i = 0; i < count; i++)
        put_uint(k, histogram->count[i]);
}

static void put_status_reply(msgpack_packer *k, const struct wire_status_reply *s) {
    put_string(k, s->version, WIRE_NAME_MAX);
    put_string(k, s->backend, WIRE_NAME_MAX);
    put_string(k, s->detail, WIRE_NAME_MAX);
    put_int(k, s->pid);
    put_uint(k, s->uptime_ns);
    put_uint(k, s->threads);
    put_uint(k, s->connections);
    put_uint(k, s->streams);
    put_uint(k, s->buffers);
    put_uint(k, s->buffer_bytes);
    put_uint(k, s->jobs_queued);
    put_uint(k, s->jobs_done);
    put_uint(k, s->jobs_failed);
    put_uint(k, s->busy_ns);
    put_uint(k, s->bytes_moved);
    put_histogram(k, &s->queue);
    put_histogram(k, &s->run);
    put_histogram(k, &s->whole);
    put_uint(k, s->queue_ns);
    put_uint(k, s->run_ns);
    put_array(k, s->device_count);
    for (uint32_t i = 0; i < s->device_count; i++)
        put_status_device(k, &s->device[i]);
    put_uint(k, s->clients);
    put_array(k, s->count);
    for (uint32_t i = 0; i < s->count; i++)
        put_status_client(k, &s->client[i]);
    put_status_user(k, &s->limits);
    put_array(k, s->user_count);
    for (uint32_t i = 0; i < s->user_count; i++)
        put_status_user(k, &s->user[i]);
}

static void put_trace_job(msgpack_packer *k, const struct wire_trace_job *job) {
    put_array(k, 13);
    put_uint(k, job->client);
    put_int(k, job->pid);
    put_uint(k, job->stream);
    put_uint(k, job->ticket);
    put_uint(k, job->status);
    put_uint(k, job->received_ns);
    put_uint(k, job->started_ns);
    put_uint(k, job->ended_ns);
    put_int(k, job->B);
    put_int(k, job->T);
    put_int(k, job->HV);
    put_int(k, job->K);
    put_uint(k, job->bytes);
}

static void put_trace_reply(msgpack_packer *k, const struct wire_trace_reply *t) {
    put_uint(k, t->now_ns);
    put_uint(k, t->next);
    put_uint(k, t->lost);
    put_array(k, t->count);
    for (uint32_t i = 0; i < t->count; i++)
        put_trace_job(k, &t->job[i]);
}

/* Elements of a message's array, opcode and id included; 0 for an opcode that is not known. */
static size_t field_count(const struct wire_message *m) {
    switch (m->opcode) {
    case WIRE_STREAM_CLOSE_REPLY:
    case WIRE_RELEASE_REPLY:
        return 2;
    case WIRE_STREAM_CLOSE:
    case WIRE_REGISTER_REPLY:
    case WIRE_RELEASE:
    case WIRE_STATUS:
    case WIRE_TRACE:
        return 3;
    case WIRE_STREAM_OPEN:
    case WIRE_STREAM_OPEN_REPLY:
        return 4;
    case WIRE_REGISTER:
        return m->reg.kind == WIRE_BUFFER_CUDA_IPC || m->reg.kind == WIRE_BUFFER_CUDA_VMM ? 6 : 4;
    case WIRE_ERROR:
        return 5;
    case WIRE_JOB_ERROR:
    case WIRE_TRACE_REPLY:
        return 6;
    case WIRE_HELLO:
        return 7;
    case WIRE_SUBMIT:
        return 8;
    case WIRE_HELLO_REPLY:
        return 9;
    case WIRE_STATUS_REPLY:
        return 27;
    default:
        return 0;
    }
}

static void put_fields(msgpack_packer *k, const struct wire_message *m) {
    switch (m->opcode) {
    case WIRE_HELLO:
        put_uint(k, m->hello.major);
        put_uint(k, m->hello.minor);
        put_string(k, m->hello.version, WIRE_NAME_MAX);
        put_uint(k, m->hello.features);
        put_string(k, m->hello.name, WIRE_NAME_MAX);
        break;
    case WIRE_HELLO_REPLY:
        put_uint(k, m->hello_reply.major);
        put_uint(k, m->hello_reply.minor);
        put_string(k, m->hello_reply.version, WIRE_NAME_MAX);
        put_uint(k, m->hello_reply.features);
        put_string(k, m->hello_reply.backend, WIRE_NAME_MAX);
        put_uint(k, m->hello_reply.streams_max);
        put_uint(k, m->hello_reply.buffers_max);
        break;
    case WIRE_STREAM_OPEN:
        put_string(k, m->stream_open.device, WIRE_NAME_MAX);
        put_int(k, m->stream_open.priority);
        break;
    case WIRE_STREAM_OPEN_REPLY:
        put_uint(k, m->stream_open_reply.stream);
        put_uint(k, m->stream_open_reply.slots);
        break;
    case WIRE_STREAM_CLOSE:
        put_uint(k, m->stream_close.stream);
        break;
    case WIRE_REGISTER:
        put_uint(k, m->reg.kind);
        put_uint(k, m->reg.size);
        if (m->reg.kind == WIRE_BUFFER_CUDA_IPC) {
            put_string(k, m->reg.device, WIRE_NAME_MAX);
            msgpack_pack_bin(k, m->reg.handle.size);
            msgpack_pack_bin_body(k, m->reg.handle.data, m->reg.handle.size);
        } else if (m->reg.kind == WIRE_BUFFER_CUDA_VMM) {
            put_string(k, m->reg.device, WIRE_NAME_MAX);
            put_array(k, m->reg.segments);
            for (uint32_t i = 0; i < m->reg.segments; i++)
                put_uint(k, m->reg.segment[i]);
        }
        break;
    case WIRE_REGISTER_REPLY:
        put_uint(k, m->reg_reply.buffer);
        break;
    case WIRE_RELEASE:
        put_uint(k, m->release.buffer);
        break;
    case WIRE_SUBMIT:
        put_uint(k, m->submit.stream);
        put_uint(k, m->submit.ticket);
        put_uint(k, m->submit.operation);
        put_problem(k, &m->submit.problem);
        break;
    case WIRE_STATUS:
        put_uint(k, m->status.before);
        break;
    case WIRE_STATUS_REPLY:
        put_status_reply(k, &m->status_reply);
        break;
    case WIRE_TRACE:
        put_uint(k, m->trace.from);
        break;
    case WIRE_TRACE_REPLY:
        put_trace_reply(k, &m->trace_reply);
        break;
    case WIRE_JOB_ERROR:
        put_uint(k, m->job_error.stream);
        put_uint(k, m->job_error.ticket);
        put_uint(k, m->job_error.status);
        put_string(k, m->job_error.sentence, WIRE_SENTENCE_MAX);
        break;
    case WIRE_ERROR:
        put_uint(k, m->error.status);
        put_string(k, m->error.sentence, WIRE_SENTENCE_MAX);
        put_bool(k, m->error.closing);
        break;
    default:
        break;
    }
}

const void *wire_encode(struct wire_codec *codec, const struct wire_message *message, size_t *size) {
    codec->size = 0;
    codec->overflow = false;
    put_array(&codec->packer, field_count(message));
    put_uint(&codec->packer, message->opcode);
    put_uint(&codec->packer, message->id);
    put_fields(&codec->packer, message);
    *size = codec->size;
    return codec->overflow ? NULL : codec->buffer;
}
