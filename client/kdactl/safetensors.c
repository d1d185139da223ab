#include "client/kdactl/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PREFIX = 8 /* bytes of the header's size */
};

static const char metadata_name[] = "__metadata__";

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"F64", 8},     {"I64", 8}, {"U64", 8},
};

size_t safetensors_dtype_size(const char *dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, dtype) == 0)
            return dtypes[i].size;
    return 0;
}

__attribute__((format(printf, 2, 3))) static bool refuse(char why[SAFETENSORS_WHY], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, SAFETENSORS_WHY, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- Reading ---------------------------------------------------------------------------------------------
 */

/* A number of the header: a whole one, not below 0, that a double holds exactly. */
static bool read_number(const cJSON *item, uint64_t *number) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 0x1p53))
        return false;
    *number = (uint64_t)item->valuedouble;
    return (double)*number == item->valuedouble;
}

static bool read_shape(const cJSON *array, struct safetensor *t, char why[SAFETENSORS_WHY]) {
    if (!cJSON_IsArray(array))
        return refuse(why, "%.64s: shape is missing or no array", t->name);
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        uint64_t length;
        if (t->ndim == SAFETENSORS_NDIM)
            return refuse(why, "%.64s: has more than %d dimensions", t->name, SAFETENSORS_NDIM);
        if (!read_number(item, &length))
            return refuse(why, "%.64s: shape has an entry that is no whole number from 0 to 2^53", t->name);
        t->shape[t->ndim++] = (int64_t)length;
    }
    return true;
}

/* Bytes of all elements; false if they are too many for any file. */
static bool count_bytes(const struct safetensor *t, uint64_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] == 0)
            return true;
    *bytes = safetensors_dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(*bytes, (uint64_t)t->shape[i], bytes))
            return false;
    return true;
}

static bool read_tensor(const cJSON *entry, struct safetensor *t, const uint8_t *data, uint64_t data_size,
                        char why[SAFETENSORS_WHY]) {
    t->name = entry->string;
    if (!cJSON_IsObject(entry))
        return refuse(why, "%.64s: its entry in the header is no object", t->name);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(dtype))
        return refuse(why, "%.64s: dtype is missing or no string", t->name);
    t->dtype = dtype->valuestring;
    if (safetensors_dtype_size(t->dtype) == 0)
        return refuse(why, "%.64s: dtype is '%.32s', which is not known", t->name, t->dtype);
    if (!read_shape(cJSON_GetObjectItemCaseSensitive(entry, "shape"), t, why))
        return false;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    uint64_t begin, end, bytes;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !read_number(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !read_number(cJSON_GetArrayItem(offsets, 1), &end))
        return refuse(why, "%.64s: data_offsets are missing or no two whole numbers", t->name);
    if (begin > end || end > data_size)
        return refuse(why,
                      "%.64s: data_offsets are [%" PRIu64 ", %" PRIu64 "], but the file has %" PRIu64
                      " bytes of data",
                      t->name, begin, end, data_size);
    if (!count_bytes(t, &bytes))
        return refuse(why, "%.64s: its shape is larger than any file", t->name);
    if (bytes != end - begin)
        return refuse(why, "%.64s: has %" PRIu64 " bytes, but its dtype and shape need %" PRIu64, t->name,
                      end - begin, bytes);
    t->data = data + begin;
    t->size = (size_t)bytes;
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const struct safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    return (x->size > y->size) - (x->size < y->size);
}

/* Tensors fill the data without a gap, and no name is there twice. Leaves them sorted by name. */
static bool check_tensors(struct safetensors *file, const uint8_t *data, size_t data_size,
                          char why[SAFETENSORS_WHY]) {
    qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    const uint8_t *end = data;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensor *t = &file->tensors[i];
        const uint8_t *start = t->data;
        if (start < end)
            return refuse(why, "%.64s: its bytes overlap those of %.64s", t->name, file->tensors[i - 1].name);
        if (start > end)
            return refuse(why, "%td bytes of data before those of %.64s belong to no tensor", start - end,
                          t->name);
        end = start + t->size;
    }
    if (end != data + data_size)
        return refuse(why, "the last %td bytes of the file belong to no tensor", data + data_size - end);
    qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return refuse(why, "%.64s: is in the header twice", file->tensors[i].name);
    return true;
}

static bool check_metadata(const cJSON *metadata, char why[SAFETENSORS_WHY]) {
    if (!cJSON_IsObject(metadata))
        return refuse(why, "%s is no object", metadata_name);
    const cJSON *item;
    cJSON_ArrayForEach(item, metadata) {
        if (!cJSON_IsString(item))
            return refuse(why, "%s: the value of %.64s is no string", metadata_name, item->string);
    }
    return true;
}

static bool read_header(struct safetensors *file, char why[SAFETENSORS_WHY]) {
    const uint8_t *bytes = file->map;
    uint64_t header = 0;
    for (int i = 0; i < PREFIX; i++)
        header |= (uint64_t)bytes[i] << (8 * i);
    if (header > SAFETENSORS_HEADER_MAX)
        return refuse(why, "its header of %" PRIu64 " bytes is longer than %d: it is no safetensors file",
                      header, SAFETENSORS_HEADER_MAX);
    if (header > file->map_size - PREFIX)
        return refuse(why, "is cut short: its header has %" PRIu64 " bytes, but %zu follow", header,
                      file->map_size - PREFIX);
    const char *text = (const char *)bytes + PREFIX;
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, (size_t)header, &end, 0);
    file->json = json;
    if (!cJSON_IsObject(json))
        return refuse(why, "its header is no JSON object");
    while (end < text + header && *end == ' ')
        end++;
    if (end != text + header)
        return refuse(why, "something follows the JSON object in its header");

    const uint8_t *data = bytes + PREFIX + header;
    size_t data_size = file->map_size - PREFIX - (size_t)header;
    size_t entries = (size_t)cJSON_GetArraySize(json);
    file->tensors = calloc(entries ? entries : 1, sizeof *file->tensors);
    if (!file->tensors)
        return refuse(why, "out of memory");
    bool noted = false;
    const cJSON *entry;
    cJSON_ArrayForEach(entry, json) {
        if (strcmp(entry->string, metadata_name) == 0) {
            if (noted)
                return refuse(why, "%s: is in the header twice", metadata_name);
            noted = true;
            if (!check_metadata(entry, why))
                return false;
        } else if (!read_tensor(entry, &file->tensors[file->count++], data, data_size, why)) {
            return false;
        }
    }
    return check_tensors(file, data, data_size, why);
}

bool safetensors_open(struct safetensors *file, const char *path, char why[SAFETENSORS_WHY]) {
    *file = (struct safetensors){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return refuse(why, "cannot be opened: %s", strerror(errno));
    struct stat status;
    bool good = false;
    if (fstat(fd, &status) < 0) {
        refuse(why, "cannot be looked at: %s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        refuse(why, "is no regular file");
    } else if (status.st_size < PREFIX) {
        refuse(why, "is cut short: it has %jd bytes, but a safetensors file has at least %d",
               (intmax_t)status.st_size, PREFIX);
    } else {
        void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            refuse(why, "cannot be mapped: %s", strerror(errno));
        } else {
            file->map = map;
            file->map_size = (size_t)status.st_size;
            good = read_header(file, why);
        }
    }
    close(fd);
    if (!good)
        safetensors_close(file);
    return good;
}

void safetensors_close(struct safetensors *file) {
    if (file->map)
        munmap(file->map, file->map_size);
    cJSON_Delete(file->json);
    free(file->tensors);
    *file = (struct safetensors){0};
}

const struct safetensor *safetensors_find(const struct safetensors *file, const char *name) {
    struct safetensor key = {.name = name};
    if (file->count == 0)
        return NULL;
    return bsearch(&key, file->tensors, file->count, sizeof key, by_name);
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->json, metadata_name);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(metadata, key);
    return cJSON_IsString(value) ? value->valuestring : NULL;
}

/* ---- Writing ---------------------------------------------------------------------------------------------
 */

static bool describe_tensor(cJSON *json, const struct safetensor *t, double begin) {
    cJSON *entry = cJSON_AddObjectToObject(json, t->name);
    if (!cJSON_AddStringToObject(entry, "dtype", t->dtype))
        return false;
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (int i = 0; i < t->ndim; i++)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i])))
            return false;
    cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    return cJSON_AddItemToArray(offsets, cJSON_CreateNumber(begin)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber(begin + (double)t->size));
}

/* The header's text, to be freed by cJSON_free; NULL if out of memory. */
static char *make_header(const struct safetensor *tensors, size_t count, const struct safetensors_note *notes,
                         size_t note_count) {
    cJSON *json = cJSON_CreateObject();
    bool good = true;
    if (note_count) {
        cJSON *metadata = cJSON_AddObjectToObject(json, metadata_name);
        for (size_t i = 0; i < note_count; i++)
            good = good && cJSON_AddStringToObject(metadata, notes[i].key, notes[i].value);
    }
    double begin = 0;
    for (size_t i = 0; i < count; i++) {
        good = good && describe_tensor(json, &tensors[i], begin);
        begin += (double)tensors[i].size;
    }
    char *text = good ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    return text;
}

static bool write_all(int fd, const void *data, size_t size, char why[SAFETENSORS_WHY]) {
    const char *at = data;
    while (size) {
        ssize_t done = write(fd, at, size < SSIZE_MAX ? size : SSIZE_MAX);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return refuse(why, "cannot be written: %s", strerror(errno));
        at += done;
        size -= (size_t)done;
    }
    return true;
}

bool safetensors_write(int fd, const struct safetensor *tensors, size_t count,
                       const struct safetensors_note *metadata, size_t notes, char why[SAFETENSORS_WHY]) {
    char *header = make_header(tensors, count, metadata, notes);
    if (!header)
        return refuse(why, "out of memory");
    /* Spaces behind the header let the data begin at a multiple of 8. */
    size_t length = strlen(header), padding = -length % PREFIX;
    uint8_t prefix[PREFIX];
    for (int i = 0; i < PREFIX; i++)
        prefix[i] = (uint8_t)((uint64_t)(length + padding) >> (8 * i));
    bool good = write_all(fd, prefix, sizeof prefix, why) && write_all(fd, header, length, why) &&
                write_all(fd, "        ", padding, why);
    cJSON_free(header);
    for (size_t i = 0; good && i < count; i++)
        good = write_all(fd, tensors[i].data, tensors[i].size, why);
    return good;
}
