/*
 * forked.c - the list, and the pthread_atfork handlers that use it. One lock, held only around the making and
 * closing of descriptors, so that fork never waits for the daemon.
 */
#include "client/forked.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct forked_fd *first;
static _Atomic uint32_t count;

static void before(void) {
    pthread_mutex_lock(&lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&lock);
}

/* The objects that hold the descriptors stay as they are: nobody looks at them here again. */
static void in_child(void) {
    for (const struct forked_fd *entry = first; entry; entry = entry->next)
        close(entry->fd);
    first = NULL;
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static void install(void) {
    pthread_atfork(before, in_parent, in_child);
}

uint32_t forked_count(void) {
    pthread_once(&once, install);
    return atomic_load_explicit(&count, memory_order_relaxed);
}

static int new_memfd(const char *name) {
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create(name, flags) : fd;
}

/* Lists a new descriptor and ends what forked_socket and forked_memfd have begun with the lock. */
static int list(struct forked_fd *entry, int fd) {
    entry->fd = fd;
    if (fd >= 0) {
        entry->previous = NULL;
        entry->next = first;
        if (first)
            first->previous = entry;
        first = entry;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

int forked_socket(struct forked_fd *entry) {
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    return list(entry, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

int forked_memfd(struct forked_fd *entry, const char *name) {
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    return list(entry, new_memfd(name));
}

void forked_close(struct forked_fd *entry) {
    pthread_mutex_lock(&lock);
    if (entry->fd >= 0) {
        if (entry->previous)
            entry->previous->next = entry->next;
        else
            first = entry->next;
        if (entry->next)
            entry->next->previous = entry->previous;
        close(entry->fd);
        entry->fd = -1;
    }
    pthread_mutex_unlock(&lock);
}
