/*
 * packet.c - sendmsg and recvmsg with descriptors. MSG_CMSG_CLOEXEC on all that comes in.
 */
#include "proto/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH_MAX = 32 };

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))];
};

static void prepare(struct msghdr *header, struct iovec *iov, union control *control, struct packet *packet) {
    *iov = (struct iovec){packet->data, WIRE_PACKET_MAX};
    *header = (struct msghdr){
        .msg_iov = iov,
        .msg_iovlen = 1,
        .msg_control = control->bytes,
        .msg_controllen = sizeof control->bytes,
    };
}

static void finish(const struct msghdr *header, size_t size, struct packet *packet) {
    packet->size = size;
    packet->fd_count = 0;
    struct msghdr *h = (struct msghdr *)header;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (packet->fd_count < WIRE_FDS_MAX)
                packet->fds[packet->fd_count++] = fd;
            else
                close(fd);
        }
    }
    bool cut = (header->msg_flags & MSG_CTRUNC) != 0;
    packet->lost = cut && packet->fd_count < WIRE_FDS_MAX;
    packet->truncated = (header->msg_flags & MSG_TRUNC) != 0 || (cut && !packet->lost);
}

int packet_receive(int socket, struct packet *packet, int flags) {
    struct msghdr header;
    struct iovec iov;
    union control control;
    ssize_t n;
    prepare(&header, &iov, &control, packet);
    do
        n = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -1;
    finish(&header, (size_t)n, packet);
    return n > 0;
}

int packet_receive_many(int socket, struct packet *packets, int count) {
    struct mmsghdr headers[BATCH_MAX];
    struct iovec iov[BATCH_MAX];
    union control control[BATCH_MAX];
    int n;
    if (count > BATCH_MAX)
        count = BATCH_MAX;
    for (int i = 0; i < count; i++)
        prepare(&headers[i].msg_hdr, &iov[i], &control[i], &packets[i]);
    do
        n = recvmmsg(socket, headers, (unsigned)count, MSG_DONTWAIT | MSG_CMSG_CLOEXEC, NULL);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -1;
    for (int i = 0; i < n; i++) {
        finish(&headers[i].msg_hdr, headers[i].msg_len, &packets[i]);
        if (packets[i].size == 0 && packets[i].fd_count == 0)
            return i == 0 ? 0 : i + 1; /* end of file: it repeats for the rest of the batch */
    }
    return n;
}

int packet_send(int socket, const void *data, size_t size, const int *fds, int fd_count, int flags) {
    union control control;
    struct iovec iov = {(void *)data, size};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;
    if (fd_count > 0) {
        memset(&control, 0, sizeof control);
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)fd_count * sizeof(int));
    }
    do
        n = sendmsg(socket, &header, flags | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -1 : 0;
}

void packet_close(int socket) {
    char byte;
    shutdown(socket, SHUT_RDWR); /* nothing comes any more */
    while (recv(socket, &byte, 1, MSG_DONTWAIT) > 0)
        continue;
    close(socket);
}

void packet_close_fds(struct packet *packet) {
    for (int i = 0; i < packet->fd_count; i++) {
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    }
    packet->fd_count = 0;
}
