/*
 * faulty.h - daemons and sessions (session.c) of which one call fails, kills or stops its process (points.c).
 *
 * What must never be is printed and counted: faulty_problems.
 */
#ifndef TESTS_FAULT_FAULTY_H
#define TESTS_FAULT_FAULTY_H

#include <stdbool.h>
#include <sys/types.h>

enum { FAULTY_HANG_S = 60 }; /* longer than whatever a process may take */

/* A place for a socket and files; removed by faulty_end. Sets KDAD_SOCKET. False: cannot be had here. */
bool faulty_begin(void);
int faulty_end(void); /* returns the problems */

__attribute__((format(printf, 1, 2))) void faulty_problem(const char *format, ...);

/* What one call of a kind is to do: "alloc", 17, "fail". */
struct fault {
    const char *kind;
    unsigned long call; /* 0: no fault */
    const char *action;
};

/* A daemon's process. */
struct faulty_daemon {
    pid_t pid;   /* 0: ended */
    int status;  /* wait status, once it has ended */
    bool served; /* it said that it was ready */
};

/* Starts kdad, and waits until it serves, has ended or (stop) has stopped. */
void faulty_daemon_start(struct faulty_daemon *daemon, struct fault fault);

/* The same on the socket that one before has left. */
void faulty_daemon_restart(struct faulty_daemon *daemon, struct fault fault);

/* True if it has ended by now. */
bool faulty_daemon_ended(struct faulty_daemon *daemon);

/* Waits until it has as many descriptors as that, or fewer. */
void faulty_daemon_settles(struct faulty_daemon *daemon, int descriptors, const char *what);
int faulty_daemon_descriptors(const struct faulty_daemon *daemon);

/* Ends it by SIGTERM: it must exit with 0 and leave no socket. */
void faulty_daemon_stop(struct faulty_daemon *daemon, const char *what);

/* It has ended by itself: that must have been by an exit with 1 and a sentence. */
void faulty_daemon_check_exit(const struct faulty_daemon *daemon, const char *what);

/* Starts a session. patient: it may find a daemon that does not answer in time. */
pid_t faulty_session_start(struct fault fault, bool patient);

/* Whether waits for processes have those go on that have stopped. */
void faulty_continue(bool on);

/* Waits for a process: its wait status. One that goes on for ever is killed, and is a problem. */
int faulty_wait(pid_t pid, const char *what);

/* Waits for a session. Its exit code, or 128 and the signal that it died by; 1 and a signal that was not
 * meant are problems. */
int faulty_session_end(pid_t pid, const char *what, int signal);

/* The session without a fault: must go well. */
void faulty_session_good(const char *what);

/* What the last process with a fault has logged. */
bool faulty_hit(char *where, size_t size);
long faulty_live(void); /* -1: it told nothing */

#endif
