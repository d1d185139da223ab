/*
 * oracle.h - the operation in double precision, for tests to compare with, and how they measure an error.
 *
 * Written from the formula, one line of it a line of code, over the same problems as the kernels, and sharing
 * no code with them. It is slow, and it takes the problem as checked.
 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/problem.h"

/* Results in contiguous arrays: dq, dk, dg of B * T * HV * K doubles, db of B * T * HV. */
struct oracle {
    double *dq, *dk, *db, *dg;
};

/* Number of elements of operand o. */
size_t oracle_count(const struct problem *p, enum operand o);

/* Allocates and computes the results. False if memory is short or cu_seqlens is bad. */
bool oracle_run(struct oracle *results, const struct problem *p, void *const data[OPERAND_COUNT]);
void oracle_free(struct oracle *results);

/* The results in the order of the operands: for OPERAND_DQ or OPERAND_DQ_OUT it is results->dq, and so on. */
const double *oracle_result(const struct oracle *results, enum operand o);

/* Copies operand o, of float32, to a contiguous array of oracle_count(p, o) floats. */
void oracle_gather(float *to, const struct problem *p, void *const data[OPERAND_COUNT], enum operand o);

/* The error of n elements of an output:
 *     (|out - ref| - 6e-8 |ref|) / |ref - incoming|, not below 0
 * with 2-norms over the elements whose ref is finite. Infinite if one of these is not finite in out, if one
 * whose ref is not finite is finite in out, or if nothing is added (ref equals incoming) and out is not
 * incoming bit for bit. */
double oracle_error(const float *out, const double *ref, const float *incoming, size_t n);

/* 16-bit floats. To them: rounded to the nearest, ties to even. */
uint16_t oracle_to_bf16(float value);
uint16_t oracle_to_f16(float value);
double oracle_from_bf16(uint16_t half);
double oracle_from_f16(uint16_t half);

#endif
