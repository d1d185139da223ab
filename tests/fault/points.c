/*
 * points.c - libfault-points.so: loaded ahead of a program (LD_PRELOAD), it makes one call of one kind fail,
 * kill the process or stop it.
 *
 * KDAD_FAULT=KIND:N:ACTION names it: the N-th call of that kind, counted from the process's start, or, with
 * KDAD_FAULT_LATER set, while fault_arm says so. Kinds: alloc (malloc and its like), descriptor (whatever
 * makes one), map (mmap, ftruncate, posix_fallocate), send, receive, thread. Actions: fail, kill (SIGKILL),
 * stop (SIGSTOP, and then as if nothing had been). KDAD_FAULT_LOG names a file that gets a line when that
 * call comes, and one at the end with the number of blocks that are still allocated.
 *
 * With KDAD_FAULT_CLOCK set, the time of day jumps by hours at each look at it, forth and back.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define POINT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

enum kind { ALLOC, DESCRIPTOR, MAP, SEND, RECEIVE, THREAD, KINDS };
enum action { FAIL, KILL, STOP };

static const char *const kind_names[KINDS] = {"alloc", "descriptor", "map", "send", "receive", "thread"};
static const char *const action_names[] = {"fail", "kill", "stop"};

static atomic_bool armed;
static atomic_ulong calls[KINDS];
static atomic_long live;
static enum kind target;
static unsigned long target_call; /* 0: none */
static enum action action;
static const char *log_path;
static bool jumping_clock;

static void write_log(const char *text, int size) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (write(fd, text, (size_t)size) < 0)
            _exit(99);
        close(fd);
    }
}

/* For addr2line. */
static void log_hit(void *caller) {
    char text[512];
    Dl_info info = {0};
    dladdr(caller, &info);
    const char *file = info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
    int size =
        snprintf(text, sizeof text, "hit %s %lu in %.100s+%#lx\n", kind_names[target], target_call,
                 file ? file + 1 : "?", (unsigned long)((uintptr_t)caller - (uintptr_t)info.dli_fbase));
    write_log(text, size);
}

/* Counts a call. True if it is to fail. */
static bool struck(enum kind kind, void *caller) {
    if (target_call == 0 || !atomic_load(&armed) || kind != target ||
        atomic_fetch_add(&calls[kind], 1) + 1 != target_call)
        return false;
    log_hit(caller);
    if (action != FAIL)
        kill(getpid(), action == KILL ? SIGKILL : SIGSTOP);
    return action == FAIL;
}

/* Whether calls are counted. */
POINT void fault_arm(bool on);
POINT void fault_arm(bool on) {
    atomic_store(&armed, on);
}

/* Blocks that are allocated. */
POINT long fault_live(void);
POINT long fault_live(void) {
    return atomic_load(&live);
}

__attribute__((constructor)) static void begin(void) {
    const char *what = getenv("KDAD_FAULT");
    char kind[16], verb[8];
    unsigned long call;
    log_path = getenv("KDAD_FAULT_LOG");
    jumping_clock = getenv("KDAD_FAULT_CLOCK");
    if (!what || !log_path)
        return;
    if (sscanf(what, "%15[a-z]:%lu:%7[a-z]", kind, &call, verb) != 3)
        abort();
    while (target < KINDS && strcmp(kind_names[target], kind) != 0)
        target++;
    while (action <= STOP && strcmp(action_names[action], verb) != 0)
        action++;
    if (target == KINDS || action > STOP)
        abort();
    target_call = call;
    armed = !getenv("KDAD_FAULT_LATER");
}

__attribute__((destructor)) static void end(void) {
    char text[64];
    if (log_path)
        write_log(text, snprintf(text, sizeof text, "live %ld\n", atomic_load(&live)));
}

/* --- memory -------------------------------------------------------------------------------------------- */

extern void *libc_malloc(size_t) __asm__("__libc_malloc");
extern void *libc_calloc(size_t, size_t) __asm__("__libc_calloc");
extern void *libc_realloc(void *, size_t) __asm__("__libc_realloc");
extern void *libc_memalign(size_t, size_t) __asm__("__libc_memalign");
extern void libc_free(void *) __asm__("__libc_free");

static void *counted(void *block) {
    if (block)
        atomic_fetch_add(&live, 1);
    return block;
}

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

POINT void *malloc(size_t size) {
    return struck(ALLOC, CALLER) ? no_memory() : counted(libc_malloc(size));
}

POINT void *calloc(size_t count, size_t size) {
    return struck(ALLOC, CALLER) ? no_memory() : counted(libc_calloc(count, size));
}

POINT void *realloc(void *block, size_t size) {
    if (struck(ALLOC, CALLER))
        return no_memory();
    return block ? libc_realloc(block, size) : counted(libc_realloc(block, size));
}

POINT int posix_memalign(void **block, size_t alignment, size_t size) {
    void *got = struck(ALLOC, CALLER) ? NULL : counted(libc_memalign(alignment, size));
    if (!got)
        return ENOMEM;
    *block = got;
    return 0;
}

POINT void *aligned_alloc(size_t alignment, size_t size) {
    return struck(ALLOC, CALLER) ? no_memory() : counted(libc_memalign(alignment, size));
}

POINT void free(void *block) {
    if (block)
        atomic_fetch_sub(&live, 1);
    libc_free(block);
}

/* --- what libc has behind its names -------------------------------------------------------------------- */

/* The next library's function of that name. */
#define NEXT(name)                 \
    static __typeof__(name) *next; \
    if (!next)                     \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

#define FAIL_IF_STRUCK(kind, error) \
    if (struck(kind, CALLER)) {     \
        errno = error;              \
        return -1;                  \
    }

POINT void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    NEXT(mmap);
    if (struck(MAP, CALLER)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return next(address, size, protection, flags, fd, offset);
}

POINT int ftruncate(int fd, off_t size) {
    NEXT(ftruncate);
    FAIL_IF_STRUCK(MAP, ENOSPC)
    return next(fd, size);
}

POINT int posix_fallocate(int fd, off_t offset, off_t size) {
    NEXT(posix_fallocate);
    return struck(MAP, CALLER) ? ENOSPC : next(fd, offset, size);
}

static int mode_of(int flags, va_list list) {
    return flags & O_CREAT ? va_arg(list, int) : 0;
}

POINT int open(const char *path, int flags, ...) {
    NEXT(open);
    va_list list;
    va_start(list, flags);
    int mode = mode_of(flags, list);
    va_end(list);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(path, flags, mode);
}

POINT int open64(const char *path, int flags, ...) {
    NEXT(open64);
    va_list list;
    va_start(list, flags);
    int mode = mode_of(flags, list);
    va_end(list);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(path, flags, mode);
}

POINT int socket(int domain, int type, int protocol) {
    NEXT(socket);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(domain, type, protocol);
}

POINT int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    NEXT(accept4);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(fd, address, size, flags);
}

POINT int memfd_create(const char *name, unsigned flags) {
    NEXT(memfd_create);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(name, flags);
}

POINT int eventfd(unsigned value, int flags) {
    NEXT(eventfd);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(value, flags);
}

POINT int epoll_create1(int flags) {
    NEXT(epoll_create1);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(flags);
}

POINT int pipe2(int fds[2], int flags) {
    NEXT(pipe2);
    FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(fds, flags);
}

POINT long syscall(long number, ...) {
    NEXT(syscall);
    long argument[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) /* those that were not given are not looked at */
        argument[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_pidfd_open)
        FAIL_IF_STRUCK(DESCRIPTOR, EMFILE)
    return next(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

POINT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    NEXT(sendmsg);
    FAIL_IF_STRUCK(SEND, ENOBUFS)
    return next(fd, message, flags);
}

POINT ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    NEXT(recvmsg);
    FAIL_IF_STRUCK(RECEIVE, ENOMEM)
    return next(fd, message, flags);
}

POINT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
    NEXT(recvmmsg);
    FAIL_IF_STRUCK(RECEIVE, ENOMEM)
    return next(fd, messages, count, flags, timeout);
}

/* --- the clock ----------------------------------------------------------------------------------------- */

static time_t jump(void) {
    static atomic_uint looks;
    return jumping_clock ? (time_t)(atomic_fetch_add(&looks, 1) % 7 * 3600) - 10800 : 0;
}

POINT int clock_gettime(clockid_t clock, struct timespec *to) {
    NEXT(clock_gettime);
    int result = next(clock, to);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        to->tv_sec += jump();
    return result;
}

POINT int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    NEXT(gettimeofday);
    int result = next(to, zone);
    to->tv_sec += jump();
    return result;
}

POINT time_t time(time_t *to) {
    NEXT(time);
    time_t now = next(NULL) + jump();
    if (to)
        *to = now;
    return now;
}

POINT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                         void *argument) {
    NEXT(pthread_create);
    return struck(THREAD, CALLER) ? EAGAIN : next(thread, attributes, run, argument);
}
