#include "proto/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* The futex: the low half of done. */
static uint32_t *done_word(struct timeline *timeline) {
    return (uint32_t *)&timeline->done + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static struct timeline *map(int fd) {
    void *memory = mmap(NULL, sizeof(struct timeline), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

struct timeline *timeline_create(int *fd) {
    struct timeline *timeline;
    *fd = memfd_create("kdad-timeline", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return NULL;
    int error = posix_fallocate(*fd, 0, sizeof *timeline);
    if (error)
        errno = error;
    else if (fcntl(*fd, F_ADD_SEALS, SEALS) == 0 && (timeline = map(*fd)))
        return timeline;
    error = errno;
    close(*fd);
    *fd = -1;
    errno = error;
    return NULL;
}

struct timeline *timeline_map(int fd) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &st) < 0)
        return NULL;
    if (!(seals & F_SEAL_SHRINK) || st.st_size < (off_t)sizeof(struct timeline)) {
        errno = EPROTO;
        return NULL;
    }
    return map(fd);
}

void timeline_unmap(struct timeline *timeline) {
    if (timeline)
        munmap(timeline, sizeof *timeline);
}

static void wake(struct timeline *timeline) {
    syscall(SYS_futex, done_word(timeline), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void timeline_set_status(struct timeline *timeline, uint64_t ticket, enum wire_status status) {
    atomic_store_explicit(&timeline->status[ticket % WIRE_STREAM_SLOTS], (int32_t)status,
                          memory_order_release);
}

void timeline_wake(struct timeline *timeline) {
    if (atomic_load(&timeline->waiters))
        wake(timeline);
}

void timeline_finish(struct timeline *timeline, uint64_t ticket, enum wire_status status) {
    timeline_set_status(timeline, ticket, status);
    /* Sequentially consistent, and so is the waiter's side: one of the two sees the other. */
    atomic_store(&timeline->done, ticket);
    timeline_wake(timeline);
}

void timeline_set_done(struct timeline *timeline, uint64_t done) {
    atomic_store(&timeline->done, done);
    wake(timeline);
}

void timeline_sleep(struct timeline *timeline, uint64_t seen, int64_t timeout_ns) {
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    atomic_fetch_add(&timeline->waiters, 1);
    if (atomic_load(&timeline->done) == seen)
        syscall(SYS_futex, done_word(timeline), FUTEX_WAIT, (uint32_t)seen, &timeout, NULL, 0);
    atomic_fetch_sub(&timeline->waiters, 1);
}
