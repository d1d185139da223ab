/*
 * output.h - a file that appears whole, under its name, or not at all.
 */
#ifndef CLIENT_KDACTL_OUTPUT_H
#define CLIENT_KDACTL_OUTPUT_H

#include "client/kdactl/safetensors.h"

#include <stdio.h>

/* Writes a safetensors file beside path and renames it to path, which is replaced if it exists. Returns false
 * with a sentence in why. */
bool output_write(const char *path, const struct safetensor *tensors, size_t count,
                  const struct safetensors_note *metadata, size_t notes, char why[SAFETENSORS_WHY]);

/* The same for whatever the caller writes between these two: open returns NULL, close false, with a sentence
 * in why. What is not good is removed. One file at a time. */
FILE *output_open(const char *path, char why[SAFETENSORS_WHY]);
bool output_close(const char *path, FILE *file, bool good, char why[SAFETENSORS_WHY]);

/* Removes a file that is half written, if there is one: for a signal's handler. */
void output_abandon(void);

#endif
