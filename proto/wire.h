/*
 * wire.h - the protocol between kdad and its clients: opcodes, limits, statuses, messages. wire.md is its
 * manual.
 *
 * A packet is one msgpack array on an AF_UNIX SOCK_SEQPACKET socket, with its descriptors attached. Its first
 * element is the opcode, its second the id that the client chose (0 where there is none). wire_encode and
 * wire_decode are the one codec of both ends. Decoding trusts nothing: a scan bounds depth, counts and
 * lengths before msgpack-c sees a byte, and no allocation follows a number of the peer's.
 */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include "kernels/problem.h"
#include "proto/histogram.h"

#define WIRE_MAJOR 1
#define WIRE_MINOR 0

enum {
    WIRE_PACKET_MAX = 65536, /* bytes of a packet */
    WIRE_FDS_MAX = 253,      /* descriptors of a packet: what Linux allows */
    WIRE_DEPTH_MAX = 6,      /* nested arrays and maps */
    WIRE_OBJECTS_MAX = 16384 /* msgpack objects of a packet */,
    WIRE_HANDLE_SIZE = 64,   /* bytes of a CUDA IPC handle */
    WIRE_NAME_MAX = 64,      /* bytes of a name: client, version, backend, device */
    WIRE_SENTENCE_MAX = 255, /* bytes of an error's sentence */
    WIRE_STREAM_SLOTS = 1024 /* jobs that a stream may have in flight; a power of two */,
    WIRE_STREAMS_MAX = 256,  /* streams of a connection */
    WIRE_BUFFERS_MAX = 4096, /* buffers of a connection */
    WIRE_HELLO_MS = 5000,    /* a client that has not said HELLO by then is closed */
    WIRE_STATUS_CLIENTS = 64 /* clients that one STATUS_REPLY tells of */,
    WIRE_STATUS_DEVICES = 64 /* and devices */,
    WIRE_STATUS_USERS = 64 /* and users */,
    WIRE_TRACE_JOBS = 128, /* jobs of one TRACE_REPLY */
};

enum wire_opcode {
    /* client to daemon */
    WIRE_HELLO = 1,
    WIRE_STREAM_OPEN = 2,
    WIRE_STREAM_CLOSE = 3,
    WIRE_REGISTER = 4, /* descriptors as its kind says */
    WIRE_RELEASE = 5,
    WIRE_SUBMIT = 6, /* no reply */
    WIRE_STATUS = 7,
    WIRE_TRACE = 8,
    /* daemon to client */
    WIRE_HELLO_REPLY = 65,
    WIRE_STREAM_OPEN_REPLY = 66, /* one descriptor: the stream's timeline */
    WIRE_STREAM_CLOSE_REPLY = 67,
    WIRE_REGISTER_REPLY = 68,
    WIRE_RELEASE_REPLY = 69,
    WIRE_STATUS_REPLY = 71,
    WIRE_TRACE_REPLY = 72,
    WIRE_JOB_ERROR = 80,
    WIRE_ERROR = 81,
};

/* What became of a job or a request. The same numbers stand in kdad.h, in the timeline's status words and
 * here. */
enum wire_status {
    WIRE_OK = 0,
    WIRE_INVALID = 1,     /* an argument is wrong */
    WIRE_BAD_DATA = 2,    /* seen only when the job ran: cu_seqlens */
    WIRE_LIMIT = 3,       /* a limit of this client is reached */
    WIRE_NO_MEMORY = 4,   /* the daemon's, or the buffer's pages */
    WIRE_UNSUPPORTED = 5, /* this daemon cannot do that */
    WIRE_NOT_FOUND = 6,   /* no such stream or buffer of this connection */
    WIRE_DENIED = 7,      /* the daemon does not serve this user */
    WIRE_CANCELLED = 8,   /* queued when the stream closed or the daemon stopped */
    WIRE_PROTOCOL = 9,    /* the peer broke the protocol: the connection closes */
    WIRE_INTERNAL = 10,
};

enum wire_buffer_kind {
    WIRE_BUFFER_HOST = 1,     /* a memfd sealed with F_SEAL_SHRINK, all of its pages allocated */
    WIRE_BUFFER_CUDA_IPC = 2, /* a whole allocation of a GPU, by its CUDA IPC handle */
    WIRE_BUFFER_CUDA_VMM = 3, /* physical segments of a GPU, by their descriptors, mapped side by side */
};

/* Whether the daemon's context on a GPU is one of MPS's, by the driver's word. */
enum wire_mps {
    WIRE_MPS_OFF = 0,
    WIRE_MPS_ON = 1,
    WIRE_MPS_UNKNOWN = 2, /* the driver does not say, or the device is no GPU */
};

enum wire_operation {
    WIRE_CHUNK_KDA_BWD_INTRA = 1,
};

/* A string inside a decoded packet: valid as long as the packet's bytes. Not ended by a zero. */
struct wire_string {
    const char *data;
    uint32_t size;
};

struct wire_hello {
    uint32_t major, minor;
    struct wire_string version; /* of the library */
    uint64_t features;          /* none is defined yet: 0 */
    struct wire_string name;    /* for people: the program's */
};

struct wire_hello_reply {
    uint32_t major, minor;
    struct wire_string version; /* of the daemon */
    uint64_t features;
    struct wire_string backend;
    uint32_t streams_max, buffers_max;
};

struct wire_stream_open {
    struct wire_string device; /* "cpu", or the UUID of a GPU; "" for the daemon's default */
    int32_t priority;          /* 0; smaller is more urgent, where the backend has priorities */
};

struct wire_stream_open_reply {
    uint64_t stream;
    uint32_t slots; /* jobs that may be in flight: status words in the timeline */
};

struct wire_stream_close {
    uint64_t stream;
};

struct wire_register {
    uint32_t kind;                  /* enum wire_buffer_kind */
    uint64_t size;                  /* bytes, > 0 */
    struct wire_string device;      /* cuda kinds: the GPU's UUID */
    struct wire_string handle;      /* CUDA_IPC: its 64 bytes */
    uint32_t segments;              /* CUDA_VMM: how many, 1 ... WIRE_FDS_MAX, a descriptor each */
    uint64_t segment[WIRE_FDS_MAX]; /* their sizes, which together are size */
};

struct wire_register_reply {
    uint64_t buffer;
};

struct wire_release {
    uint64_t buffer;
};

/* problem.at[].allocation holds buffer ids on the wire; allocation_size does not travel. */
struct wire_submit {
    uint64_t stream;
    uint64_t ticket; /* the stream's job number: 1, 2, 3 … */
    uint32_t operation;
    struct problem problem;
};

struct wire_status_request {
    uint64_t before; /* only clients with a smaller number; 0: all */
};

/* A client's row. Times in nanoseconds. */
struct wire_status_client {
    uint64_t number; /* of the connection: 1, 2, 3 … from the daemon's start */
    int64_t pid, uid;
    struct wire_string name;
    uint64_t age_ns;
    uint64_t streams, buffers, buffer_bytes;
    uint64_t jobs_queued, jobs_done, jobs_failed;
    uint64_t busy_ns;        /* thread time spent on its packets and jobs */
    uint64_t bytes_moved;    /* that its jobs had to read and write at least */
    uint64_t p50_ns, p99_ns; /* quantiles of its last jobs, from packet to done */
};

struct wire_status_device {
    struct wire_string device, name; /* as in STREAM_OPEN; and for people */
    uint32_t mps;                    /* enum wire_mps */
    uint64_t own_bytes;              /* of the device's memory: what the daemon has allocated for itself */
    uint64_t copy_rate;              /* bytes a second that a copy reads and writes; 0: not known */
    uint64_t last_bytes, last_ns;    /* of the last jobs: what they had to move, and how long they ran */
};

/* What the processes of one user hold, or may hold. */
struct wire_status_user {
    int64_t uid; /* -1: what any user may hold */
    uint64_t connections, streams, buffers, buffer_bytes, jobs_queued;
};

struct wire_status_reply {
    struct wire_string version, backend, detail; /* detail: e.g. the cpu backend's instruction set */
    int64_t pid;
    uint64_t uptime_ns;
    uint32_t threads;
    uint64_t connections; /* since start */
    uint64_t streams, buffers, buffer_bytes;
    uint64_t jobs_queued, jobs_done, jobs_failed;
    uint64_t busy_ns;
    uint64_t bytes_moved;
    /* Of jobs that ran, since the start: from packet to start, from start to end, and the two together. */
    struct histogram queue, run, whole;
    uint64_t queue_ns, run_ns; /* sums */
    uint32_t device_count;
    struct wire_status_device device[WIRE_STATUS_DEVICES];
    uint32_t clients; /* in all */
    uint32_t count;   /* that follow: the newest first */
    struct wire_status_client client[WIRE_STATUS_CLIENTS];
    struct wire_status_user limits; /* of each user */
    uint32_t user_count;
    struct wire_status_user user[WIRE_STATUS_USERS]; /* those with a connection */
};

struct wire_trace {
    uint64_t from; /* jobs from this number on; 0: begin */
};

/* A job that has ended. Times are the daemon's CLOCK_MONOTONIC. */
struct wire_trace_job {
    uint64_t client; /* its number */
    int64_t pid;
    uint64_t stream, ticket;
    uint64_t status; /* enum wire_status */
    uint64_t received_ns;
    uint64_t started_ns; /* 0: it never ran */
    uint64_t ended_ns;
    int64_t B, T, HV, K;
    uint64_t bytes; /* that it had to read and write at least */
};

struct wire_trace_reply {
    uint64_t now_ns;
    uint64_t next; /* what to ask for next */
    uint64_t lost; /* jobs from that number on that the daemon does not hold any more */
    uint32_t count;
    struct wire_trace_job job[WIRE_TRACE_JOBS];
};

struct wire_job_error {
    uint64_t stream, ticket;
    uint32_t status;
    struct wire_string sentence;
};

struct wire_error {
    uint32_t status;
    struct wire_string sentence;
    bool closing; /* the connection closes behind this packet */
};

struct wire_message {
    uint32_t opcode; /* enum wire_opcode */
    uint64_t id;
    union {
        struct wire_hello hello;
        struct wire_hello_reply hello_reply;
        struct wire_stream_open stream_open;
        struct wire_stream_open_reply stream_open_reply;
        struct wire_stream_close stream_close;
        struct wire_register reg;
        struct wire_register_reply reg_reply;
        struct wire_release release;
        struct wire_submit submit;
        struct wire_status_request status;
        struct wire_status_reply status_reply;
        struct wire_trace trace;
        struct wire_trace_reply trace_reply;
        struct wire_job_error job_error;
        struct wire_error error;
    };
};

/* Memory that decoding and encoding work in; one for each thread that does either. */
struct wire_codec;
struct wire_codec *wire_codec_new(void); /* NULL: out of memory */
void wire_codec_free(struct wire_codec *codec);

/* Decodes one packet. Strings point into data. Returns false with a sentence in why if the packet breaks the
 * protocol; the message's opcode and id are then set as far as they could be read, else 0. An opcode that is
 * not known decodes well: the caller answers it with an error. */
bool wire_decode(struct wire_codec *codec, const void *data, size_t size, struct wire_message *message,
                 char why[PROBLEM_WHY]);

/* Encodes a message. Returns the packet, valid until the codec's next use, and its size; NULL if out of
 * memory or larger than a packet may be. Strings longer than their limit are cut. */
const void *wire_encode(struct wire_codec *codec, const struct wire_message *message, size_t *size);

struct wire_string wire_string(const char *text);

#endif
