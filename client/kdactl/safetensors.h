/*
 * safetensors.h - files of named tensors: https://github.com/huggingface/safetensors, the format of 2022.
 *
 * A file is 8 bytes, little endian: the size of the header; the header, a JSON object that names each
 * tensor's type, shape and place; then the tensors' bytes. It is mapped for reading, and all of its header is
 * checked before a tensor can be had: types, shapes, and that the tensors' bytes fill the rest of the file
 * without a gap or an overlap. A tensor's bytes may lie at any address: copy them before taking them for
 * floats.
 */
#ifndef CLIENT_KDACTL_SAFETENSORS_H
#define CLIENT_KDACTL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SAFETENSORS_WHY = 256, /* bytes that hold the sentence of any error, with its end */
    SAFETENSORS_NDIM = 8,
    SAFETENSORS_HEADER_MAX = 100000000, /* bytes; the format's own limit */
};

struct safetensor {
    const char *name;
    const char *dtype; /* as in the file: "BF16", "F16", "F32", "F64", "I32", "I64" … */
    int ndim;
    int64_t shape[SAFETENSORS_NDIM];
    const void *data; /* not aligned */
    size_t size;      /* bytes */
};

struct safetensors_note {
    const char *key, *value;
};

struct safetensors {
    void *map;
    size_t map_size;
    void *json;                 /* owns all strings */
    struct safetensor *tensors; /* by name */
    size_t count;
};

/* Maps and checks a file. Returns false with a sentence in why. */
bool safetensors_open(struct safetensors *file, const char *path, char why[SAFETENSORS_WHY]);

/* Allows a file that was never opened, if all of it is zero. */
void safetensors_close(struct safetensors *file);

/* NULL if there is none of that name. */
const struct safetensor *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key);

/* Bytes of an element, 0 if the type is not known. */
size_t safetensors_dtype_size(const char *dtype);

/* Writes a file to an open descriptor. Sizes must match types and shapes. Returns false with a sentence. */
bool safetensors_write(int fd, const struct safetensor *tensors, size_t count,
                       const struct safetensors_note *metadata, size_t notes, char why[SAFETENSORS_WHY]);

#endif
