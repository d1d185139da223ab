/*
 * packet.h - one packet in, one packet out: SOCK_SEQPACKET with descriptors. Used by both ends.
 */
#ifndef PROTO_PACKET_H
#define PROTO_PACKET_H

#include "proto/wire.h"

#include <sys/socket.h>

/* A received packet. Its descriptors are close-on-exec and owned by whoever holds the packet; take one by
 * setting its entry to -1; packet_close_fds closes the rest. */
struct packet {
    uint8_t *data; /* WIRE_PACKET_MAX bytes, given by the caller */
    size_t size;
    int fds[WIRE_FDS_MAX];
    int fd_count;
    bool truncated; /* longer than WIRE_PACKET_MAX, or with more than WIRE_FDS_MAX descriptors */
    bool lost;      /* descriptors did not come: this process may have no more */
};

/* Receives one packet. Returns 1 with a packet, 0 at end of file, -1 with errno (EAGAIN: nothing there). */
int packet_receive(int socket, struct packet *packet, int flags);

/* Receives up to count packets that are there already, without waiting. Returns how many, 0 at end of file,
 * -1 with errno. A packet of size 0 at the end of the batch is the end of file. */
int packet_receive_many(int socket, struct packet *packets, int count);

/* Sends one packet whole. Returns 0, or -1 with errno. No SIGPIPE. */
int packet_send(int socket, const void *data, size_t size, const int *fds, int fd_count, int flags);

/* Closes a socket. What was sent through it reaches the other end all the same: that of a socket which is
 * closed with unread packets in it would see a reset in its place. */
void packet_close(int socket);

void packet_close_fds(struct packet *packet);

#endif
