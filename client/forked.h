/*
 * forked.h - descriptors that must not live on in a forked child.
 *
 * A child that kept its parent's socket open would hide the parent's death from the daemon. So every
 * descriptor that lasts is listed here from its birth, and the child closes them all before fork returns in
 * it. Objects note forked_count when they are made: a difference later means that they belong to a parent.
 */
#ifndef CLIENT_FORKED_H
#define CLIENT_FORKED_H

#include <stdint.h>

/* A listed descriptor; -1 while there is none. */
struct forked_fd {
    int fd;
    struct forked_fd *next, *previous;
};

/* Forks between the process that loaded the library and this one. */
uint32_t forked_count(void);

/* Makes a descriptor and lists it; no fork comes between. Returns it, or -1 with errno. */
int forked_socket(struct forked_fd *entry);
int forked_memfd(struct forked_fd *entry, const char *name);

/* Closes and unlists it, if it is open. */
void forked_close(struct forked_fd *entry);

#endif
