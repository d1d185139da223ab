/*
 * measure.h - how far a result is from the float64 one.
 */
#ifndef CLIENT_KDACTL_MEASURE_H
#define CLIENT_KDACTL_MEASURE_H

#include <stdbool.h>
#include <stddef.h>

/* The error of n elements:
 *     (|out - ref| - 6e-8 |ref|) / |ref - incoming|, not below 0:
 * relative to the part that the operation adds, less what float32 cannot hold of the result. Norms are
 * 2-norms over the elements whose ref is finite. Infinite if one of these is not finite in out, if one whose
 * ref is not finite is finite in out, or if nothing is added and out is not incoming bit for bit. */
double measure_error(const float *out, const double *ref, const float *incoming, size_t n);

/* True if out is ref rounded to float32, bit for bit. */
bool measure_exact(const float *out, const double *ref, size_t n);

#endif
