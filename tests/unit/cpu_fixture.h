/*
 * cpu_fixture.h - whole problems for the tests of the CPU kernels.
 *
 * Every operand has an allocation of its own, in which all that is no element is filled with NaN bytes. Above
 * the diagonal dAqk and dAkk are NaN. So what reads where it must not shows in the results, and what writes
 * where it must not shows in the filling. A problem follows from its shape and the seed alone.
 */
#ifndef TESTS_UNIT_CPU_FIXTURE_H
#define TESTS_UNIT_CPU_FIXTURE_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/cpu.h"
#include "tests/oracle.h"

#define GOAL 2e-6 /* the error that each output may have */

enum {
    GUARD = 192, /* bytes of filling before and behind */
    FILLING = 0xff,
    MAX_SEQUENCES = 8,
};

enum layout {
    CONTIGUOUS,
    GAPS,        /* strides larger than they need be, addresses at odd elements */
    HEADS_FIRST, /* memory as [B, H, T, K] */
    BROADCAST,   /* stride 0 in some dimension of each input */
};

struct shape {
    int64_t B, T, H, HV, K, C;
    enum dtype qk, beta;
    enum layout layout;
    double gate; /* the largest step by which g falls from a row to the next */
    double rise; /* the largest step by which it rises instead, every third row */
    int64_t N;   /* sequences; their ends follow. 0: no cu_seqlens */
    int64_t ends[MAX_SEQUENCES];
    enum dtype cu;
    bool in_place;
    bool no_incoming;
};

struct fixture {
    struct problem p;
    void *data[OPERAND_COUNT];
    unsigned char *memory[OPERAND_COUNT]; /* NULL where an output is in place */
    size_t bytes[OPERAND_COUNT];
    int64_t cu[MAX_SEQUENCES + 1];
    int32_t cu32[MAX_SEQUENCES + 1];
};

enum {
    VARIANTS = 4, /* at most */
    CHUNK_SIZES = 4,
};
extern const int64_t chunk_sizes[CHUNK_SIZES];
extern const struct shape plain; /* bfloat16, contiguous, not in place, three chunks of 64 and a tail */

/* Random numbers. */
void reseed(uint64_t number);
double uniform(double low, double high);
int64_t pick(int64_t low, int64_t high);

struct fixture make(const struct shape *s);
void destroy(struct fixture *f);

/* The addresses of all operands. */
void *const *operands(struct fixture *f);

/* One element; i is 0 for operands of three dimensions. get is for float32 alone. */
void put(const struct fixture *f, enum operand o, int64_t b, int64_t t, int64_t h, int64_t i, float value);
float get(const struct fixture *f, enum operand o, int64_t b, int64_t t, int64_t h, int64_t i);

/* Sizes of the four dimensions of an operand, the last one 1 where there are three. */
void dimensions(const struct fixture *f, enum operand o, int64_t shape[4]);

/* Which row of its chunk row t is; rows of no sequence count as one more sequence. */
int64_t row_in_chunk(const struct fixture *f, int64_t t);

void *new_scratch(void); /* filled with NaN */
void run(struct fixture *f);

/* What run does instead, if set: the same tests are then those of another backend. */
extern void (*fixture_runner)(struct fixture *f);

/* The kernels have variants, each tested in turn: of the CPU's one for each instruction set; of another
 * backend those that fixture_variant turns on and names, or one if that is not set. False for one that is not
 * here. */
extern const char *(*fixture_variant)(int variant);
bool use_variant(int variant);
const char *variant_name(void);

/* Four of the operands from `first` on, contiguous. */
struct outputs {
    float *of[4];
    size_t count[4];
};

struct outputs gather(struct fixture *f, enum operand first);
struct outputs run_and_gather(struct fixture *f);
void free_outputs(struct outputs *x);
void assert_equal(const struct outputs *a, const struct outputs *b); /* bit for bit */

/* Runs a case in every variant: errors within GOAL, and nothing touched but the outputs' elements. */
void compare(const struct shape *s, uint64_t number);

/* The largest errors that compare has seen in this process. */
void print_worst(const char *of);

/* Runs the tests of a suite and returns main's exit status. */
int run_suite(const char *name, const TTest *const tests[], size_t count);

#endif
