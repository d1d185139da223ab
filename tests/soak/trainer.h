/*
 * trainer.h - one client of a soak.
 */
#ifndef TESTS_SOAK_TRAINER_H
#define TESTS_SOAK_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

/* What a client tells, in memory that it shares with who started it. Atomic counters. */
struct trainer_slot {
    uint64_t connected;
    uint64_t done;       /* jobs that ended as they must: those below are among them */
    uint64_t wrong;      /* whose results were not the bits that they must be */
    uint64_t lost;       /* jobs that ended with the daemon, and were told so */
    uint64_t refused;    /* connects while there was no daemon */
    uint64_t unexpected; /* any other error */
    char words[300];     /* about the last of these */
};

/* Connects, computes and disconnects until *stop. */
void trainer_run(struct trainer_slot *slot, uint64_t seed, const bool *stop);

#endif
