/*
 * cuda_none.c - client/cuda.h in a build without CUDA: opening fails, and the rest is never called.
 */
#include "client/cuda.h"

struct cuda_stream {
    int unused;
};

kdad_status cuda_stream_open(void *stream, struct cuda_stream **opened, char device[WIRE_NAME_MAX + 1]) {
    (void)stream;
    (void)opened;
    (void)device;
    return error_set(KDAD_UNSUPPORTED, "stream: this build of libkdad has no CUDA");
}

void cuda_stream_close(struct cuda_stream *stream) {
    (void)stream;
}

kdad_status cuda_timeline_register(struct cuda_stream *stream, struct timeline *timeline, uint64_t *address) {
    (void)stream;
    (void)timeline;
    (void)address;
    return KDAD_UNSUPPORTED;
}

void cuda_timeline_unregister(struct cuda_stream *stream, struct timeline *timeline) {
    (void)stream;
    (void)timeline;
}

kdad_status cuda_stream_follow(struct cuda_stream *stream, struct timeline *timeline,
                               uint64_t timeline_address, uint64_t ticket, const struct problem *problem) {
    (void)stream;
    (void)timeline;
    (void)timeline_address;
    (void)ticket;
    (void)problem;
    return KDAD_UNSUPPORTED;
}

void cuda_memory_init(struct cuda_memory *memory) {
    (void)memory;
}

void cuda_memory_destroy(struct cuda_memory *memory) {
    (void)memory;
}

kdad_status cuda_memory_place(struct cuda_memory *memory, struct cuda_stream *stream, struct session *session,
                              struct problem *placed, const uint64_t extent[OPERAND_COUNT],
                              int64_t deadline) {
    (void)memory;
    (void)stream;
    (void)session;
    (void)placed;
    (void)extent;
    (void)deadline;
    return KDAD_UNSUPPORTED;
}

void cuda_memory_placed(struct cuda_memory *memory, struct session *session, const struct problem *placed,
                        int64_t deadline) {
    (void)memory;
    (void)session;
    (void)placed;
    (void)deadline;
}

bool cuda_memory_release(struct cuda_memory *memory, struct session *session, int64_t before) {
    (void)memory;
    (void)session;
    (void)before;
    return false;
}

kdad_status cuda_memory_trim(struct cuda_memory *memory, struct session *session, int64_t deadline) {
    (void)memory;
    (void)session;
    (void)deadline;
    return KDAD_OK;
}

kdad_status cuda_stream_check(struct cuda_stream *stream) {
    (void)stream;
    return KDAD_UNSUPPORTED;
}

kdad_status cuda_stream_tell(struct cuda_stream *stream, struct timeline *timeline, uint64_t timeline_address,
                             uint64_t ticket) {
    (void)stream;
    (void)timeline;
    (void)timeline_address;
    (void)ticket;
    return KDAD_UNSUPPORTED;
}

kdad_status cuda_local_open(struct cuda_stream *stream, const struct kernels_library *library,
                            struct cuda_local **opened) {
    (void)stream;
    (void)library;
    (void)opened;
    return KDAD_UNSUPPORTED;
}

void cuda_local_close(struct cuda_local *local) {
    (void)local;
}

kdad_status cuda_local_launch(struct cuda_local *local, const struct problem *problem,
                              const uint64_t extent[OPERAND_COUNT], kdad_ticket ticket, bool *captured) {
    (void)local;
    (void)problem;
    (void)extent;
    (void)ticket;
    (void)captured;
    return KDAD_UNSUPPORTED;
}

kdad_status cuda_local_look(struct cuda_local *local, kdad_ticket ticket, kdad_ticket last) {
    (void)local;
    (void)ticket;
    (void)last;
    return KDAD_UNSUPPORTED;
}

const char *cuda_local_sentence(const struct cuda_local *local, kdad_ticket ticket) {
    (void)local;
    (void)ticket;
    return NULL;
}

void cuda_local_clear(struct cuda_local *local, kdad_ticket ticket) {
    (void)local;
    (void)ticket;
}
