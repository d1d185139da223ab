/*
 * fuzz_connection.c - any packets with any descriptors, as one connection to a whole daemon: its loop runs on
 * a thread of this process, so that its coverage guides the fuzzer and a sanitizer sees it. After each input
 * the daemon must answer, or have closed the connection with a sentence.
 */
#include "proto/packet.h"
#include "tests/fuzz/fuzz_session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);
int kdad_main(int argc, char **argv); /* daemon/main.c's main */

enum { MEMORY = 65536, PATIENCE_MS = 30000, QUESTION = 0x7777 };

static char directory[64];
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static pthread_t daemon_thread;
static int fds[SESSION_FDS][WIRE_FDS_MAX], fd_count[SESSION_FDS];

#define require(condition)                                                          \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s does not hold: %s\n", #condition, strerror(errno)); \
            abort();                                                                \
        }                                                                           \
    } while (0)

/* --- the daemon ---------------------------------------------------------------------------------------- */

static void *run_daemon(void *ready) {
    char number[16];
    snprintf(number, sizeof number, "%d", *(int *)ready);
    char *argv[] = {"kdad",    "--config",  "/dev/null", "--socket",   address.sun_path, "--backend", "cpu",
                    "--quiet", "--threads", "1",         "--ready-fd", number,           NULL};
    require(kdad_main((int)(sizeof argv / sizeof argv[0]) - 1, argv) == 0);
    return NULL;
}

static void stop_daemon(void) {
    kill(getpid(), SIGTERM);
    pthread_join(daemon_thread, NULL);
    rmdir(directory);
}

static int new_memfd(bool allocated, bool sealed) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(fd >= 0 && ftruncate(fd, MEMORY) == 0);
    require(!allocated || posix_fallocate(fd, 0, MEMORY) == 0);
    require(!sealed || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

static void make_descriptors(void) {
    static const int counts[SESSION_FDS] = {
        [SESSION_NONE] = 0, [SESSION_TWO] = 2, [SESSION_MANY] = WIRE_FDS_MAX};
    for (int kind = 0; kind < SESSION_FDS; kind++)
        fd_count[kind] = kind == SESSION_NONE ? 0 : counts[kind] ? counts[kind] : 1;
    fds[SESSION_MEMFD][0] = new_memfd(true, true);
    fds[SESSION_UNSEALED][0] = new_memfd(true, false);
    fds[SESSION_SPARSE][0] = new_memfd(false, true);
    fds[SESSION_DIRECTORY][0] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fds[SESSION_EVENTFD][0] = eventfd(0, EFD_CLOEXEC);
    fds[SESSION_SOCKET][0] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    for (int i = 0; i < WIRE_FDS_MAX; i++)
        fds[SESSION_TWO][i] = fds[SESSION_MANY][i] = fds[SESSION_MEMFD][0];
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static int ready[2];
    char byte;
    (void)argc;
    (void)argv;
    strcpy(directory, "/tmp/kdad-fuzz-XXXXXX");
    require(mkdtemp(directory) != NULL && pipe(ready) == 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/kdad.sock", directory);
    make_descriptors();
    require(pthread_create(&daemon_thread, NULL, run_daemon, &ready[1]) == 0);
    require(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    atexit(stop_daemon);
    return 0;
}

/* --- the client ---------------------------------------------------------------------------------------- */

struct client {
    int socket;
    struct wire_codec *codec;
    struct packet packet;
    struct wire_message message;
    bool told, answered, ended;
};

/* Receives one packet, if there is one or wait says so, and checks it. */
static void receive(struct client *c, bool wait) {
    struct pollfd readable = {.fd = c->socket, .events = POLLIN};
    char why[PROBLEM_WHY];
    int ready = poll(&readable, 1, wait ? PATIENCE_MS : 0);
    require(ready > 0 || !wait); /* the daemon hangs */
    if (ready <= 0)
        return;
    int got = packet_receive(c->socket, &c->packet, MSG_DONTWAIT);
    if (got < 0 && errno == ECONNRESET)
        return;
    require(got >= 0);
    if (got == 0) {
        c->ended = true;
        return;
    }
    packet_close_fds(&c->packet);
    require(!c->packet.truncated && !c->told);
    require(wire_decode(c->codec, c->packet.data, c->packet.size, &c->message, why));
    require(c->message.opcode >= WIRE_HELLO_REPLY);
    c->answered |= c->message.opcode == WIRE_STATUS_REPLY && c->message.id == QUESTION;
    c->told = c->message.opcode == WIRE_ERROR && c->message.error.closing;
}

/* Sends a packet; reads meanwhile, as the daemon may take none before. False if the connection has ended. */
static bool say(struct client *c, const void *bytes, size_t size, int kind) {
    while (!c->ended) {
        if (packet_send(c->socket, bytes, size, fds[kind], fd_count[kind], MSG_DONTWAIT) == 0)
            return true;
        if (errno == EMSGSIZE || errno == ETOOMANYREFS)
            return true;
        if (errno != EAGAIN)
            return false;
        struct pollfd both = {.fd = c->socket, .events = POLLIN | POLLOUT};
        require(poll(&both, 1, PATIENCE_MS) > 0);
        receive(c, false);
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct client client;
    struct session_record records[SESSION_RECORDS];
    struct wire_message question = {.opcode = WIRE_STATUS, .id = QUESTION};
    size_t count = session_split(data, size, records), length;
    struct client *c = &client;
    bool open = true, silent = false;
    if (!c->codec) {
        c->codec = wire_codec_new();
        c->packet.data = malloc(WIRE_PACKET_MAX);
    }
    c->told = c->answered = c->ended = false;
    c->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    require(connect(c->socket, (struct sockaddr *)&address, sizeof address) == 0);
    for (size_t i = 0; i < count && open; i++) {
        open = say(c, records[i].bytes, records[i].size, records[i].fds % SESSION_FDS);
        silent |= records[i].size == 0; /* is the end of the connection, without a word */
    }
    const void *bytes = wire_encode(c->codec, &question, &length);
    say(c, bytes, length, SESSION_NONE);
    while (!c->ended && !c->answered)
        receive(c, true);
    require(c->answered || c->told || silent);
    close(c->socket);
    return 0;
}

/* --- mutation ------------------------------------------------------------------------------------------ */

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    static uint8_t copy[1 << 17], packet[1 << 16];
    struct session_record records[SESSION_RECORDS];
    uint32_t state = seed;
    if (size > sizeof copy)
        size = sizeof copy;
    memcpy(copy, data, size);
    size_t count = session_split(copy, size, records);
    if (count == 0)
        records[count++] = (struct session_record){SESSION_NONE, 0, copy};
    size_t at = session_random(&state) % count, other = session_random(&state) % count;
    struct session_record *r = &records[at];
    switch (session_random(&state) % 8) {
    case 0:
        r->fds = (uint8_t)(session_random(&state) % SESSION_FDS);
        break;
    case 1: /* one more of the same */
        if (count < SESSION_RECORDS) {
            memmove(r + 1, r, (count - at) * sizeof *r);
            count++;
        }
        break;
    case 2:
        if (count > 1) {
            memmove(r, r + 1, (count - at - 1) * sizeof *r);
            count--;
        }
        break;
    case 3: {
        struct session_record swapped = *r;
        *r = records[other];
        records[other] = swapped;
        break;
    }
    default:
        memcpy(packet, r->bytes, r->size);
        r->size = (uint16_t)session_mutate_packet(packet, r->size, sizeof packet - 1, &state);
        r->bytes = packet;
        break;
    }
    return session_join(data, room, records, count);
}
