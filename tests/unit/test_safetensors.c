/*
 * test_safetensors.c - files of tensors: what is written can be read, and every malformed file is refused
 * with a sentence that says what is wrong.
 */
#include "client/kdactl/measure.h"
#include "client/kdactl/safetensors.h"
#include "tests/oracle.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static char path[] = "/tmp/kdad-test-safetensors-XXXXXX";
static char why[SAFETENSORS_WHY];

static void setup(void) {
    memcpy(path + strlen(path) - 6, "XXXXXX", 6);
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void teardown(void) {
    unlink(path);
}

static void put(const void *bytes, size_t size) {
    int fd = open(path, O_WRONLY | O_TRUNC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    close(fd);
}

/* A file with this header, of this claimed size, and so many bytes of data. */
static void put_file(const char *header, uint64_t claimed, size_t data) {
    size_t length = strlen(header), size = 8 + length + data;
    uint8_t *bytes = calloc(1, size);
    ck_assert_ptr_nonnull(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(claimed >> (8 * i));
    memcpy(bytes + 8, header, length);
    put(bytes, size);
    free(bytes);
}

static void assert_refused(const char *sentence) {
    struct safetensors file;
    why[0] = '\0';
    ck_assert_msg(!safetensors_open(&file, path, why), "was opened, instead of: %s", sentence);
    ck_assert_msg(strstr(why, sentence) != NULL, "said '%s', not '%s'", why, sentence);
    ck_assert_ptr_null(file.map);
    ck_assert_uint_eq(file.count, 0);
}

START_TEST(what_is_written_can_be_read) {
    static const float matrix[6] = {1, -2, 3, -4, 5, -6};
    static const uint16_t halves[3] = {1, 2, 3};
    const struct safetensor tensors[] = {
        {.name = "halves", .dtype = "BF16", .ndim = 1, .shape = {3}, .data = halves, .size = sizeof halves},
        {.name = "matrix", .dtype = "F32", .ndim = 2, .shape = {2, 3}, .data = matrix, .size = sizeof matrix},
        {.name = "none", .dtype = "F64", .ndim = 3, .shape = {4, 0, 2}, .data = matrix, .size = 0},
        {.name = "scalar", .dtype = "F32", .ndim = 0, .data = matrix, .size = sizeof *matrix},
    };
    const struct safetensors_note notes[] = {{"note", "a \"quoted\" note"}, {"chunk_size", "64"}};
    struct safetensors file;
    int fd = open(path, O_WRONLY | O_TRUNC);
    ck_assert_msg(safetensors_write(fd, tensors, COUNT(tensors), notes, COUNT(notes), why), "%s", why);
    close(fd);
    ck_assert_msg(safetensors_open(&file, path, why), "%s", why);
    ck_assert_uint_eq(file.count, COUNT(tensors));
    for (size_t i = 0; i < COUNT(tensors); i++) {
        const struct safetensor *t = safetensors_find(&file, tensors[i].name);
        ck_assert_ptr_nonnull(t);
        ck_assert_str_eq(t->dtype, tensors[i].dtype);
        ck_assert_int_eq(t->ndim, tensors[i].ndim);
        ck_assert_mem_eq(t->shape, tensors[i].shape, sizeof t->shape);
        ck_assert_uint_eq(t->size, tensors[i].size);
        if (t->size)
            ck_assert_mem_eq(t->data, tensors[i].data, t->size);
    }
    ck_assert_str_eq(safetensors_metadata(&file, "note"), "a \"quoted\" note");
    ck_assert_str_eq(safetensors_metadata(&file, "chunk_size"), "64");
    ck_assert_ptr_null(safetensors_metadata(&file, "safe_gate"));
    ck_assert_ptr_null(safetensors_find(&file, "missing"));
    safetensors_close(&file);
    safetensors_close(&file); /* as it leaves the file zero */
}
END_TEST

START_TEST(data_need_not_be_aligned) {
    static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[1,9]}}";
    struct safetensors file;
    double value = 1;
    put_file(header, sizeof header - 1, 9);
    ck_assert_msg(safetensors_open(&file, path, why), "%s", why);
    memcpy(&value, safetensors_find(&file, "b")->data, sizeof value);
    ck_assert_double_eq(value, 0);
    safetensors_close(&file);
}
END_TEST

START_TEST(an_empty_header_is_a_file_of_nothing) {
    struct safetensors file;
    put_file("{}      ", 8, 0);
    ck_assert_msg(safetensors_open(&file, path, why), "%s", why);
    ck_assert_uint_eq(file.count, 0);
    ck_assert_ptr_null(safetensors_find(&file, "q"));
    ck_assert_ptr_null(safetensors_metadata(&file, "note"));
    safetensors_close(&file);
}
END_TEST

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data;
    const char *sentence;
} malformed[] = {
    {"[]", 0, "its header is no JSON object"},
    {"{", 0, "its header is no JSON object"},
    {"\"q\"", 0, "its header is no JSON object"},
    {"nonsense", 0, "its header is no JSON object"},
    {"{} {}", 0, "something follows the JSON object"},
    {"{\"q\":[1]}", 0, "q: its entry in the header is no object"},
    {"{\"q\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "q: dtype is missing"},
    {"{\"q\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "q: dtype is missing or no string"},
    {"{" T("q", "F31", "[1]", "[0,4]") "}", 4, "q: dtype is 'F31', which is not known"},
    {"{" T("q", "F32", "4", "[0,4]") "}", 4, "q: shape is missing or no array"},
    {"{" T("q", "F32", "[-1]", "[0,4]") "}", 4, "q: shape has an entry that is no whole number"},
    {"{" T("q", "F32", "[1.5]", "[0,4]") "}", 4, "q: shape has an entry that is no whole number"},
    {"{" T("q", "F32", "[1e300]", "[0,4]") "}", 4, "q: shape has an entry that is no whole number"},
    {"{" T("q", "F32", "[\"1\"]", "[0,4]") "}", 4, "q: shape has an entry that is no whole number"},
    {"{" T("q", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "q: has more than 8 dimensions"},
    {"{" T("q", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "q: its shape is larger than any file"},
    {"{" T("q", "F32", "[4503599627370496,4503599627370496]", "[0,4]") "}", 4, "larger than any file"},
    {"{" T("q", "F32", "[1]", "[0]") "}", 4, "q: data_offsets are missing or no two whole numbers"},
    {"{" T("q", "F32", "[1]", "[0,4,8]") "}", 4, "q: data_offsets are missing or no two whole numbers"},
    {"{" T("q", "F32", "[1]", "[-4,0]") "}", 4, "q: data_offsets are missing or no two whole numbers"},
    {"{" T("q", "F32", "[1]", "7") "}", 4, "q: data_offsets are missing or no two whole numbers"},
    {"{" T("q", "F32", "[1]", "[4,0]") "}", 4,
     "q: data_offsets are [4, 0], but the file has 4 bytes of data"},
    {"{" T("q", "F32", "[1]", "[4,8]") "}", 4,
     "q: data_offsets are [4, 8], but the file has 4 bytes of data"},
    {"{" T("q", "F32", "[2]", "[0,4]") "}", 4, "q: has 4 bytes, but its dtype and shape need 8"},
    {"{" T("q", "BF16", "[1]", "[0,4]") "}", 4, "q: has 4 bytes, but its dtype and shape need 2"},
    {"{" T("q", "F32", "[1]", "[0,4]") "," T("k", "F32", "[1]", "[2,6]") "}", 6, "overlap"},
    {"{" T("q", "F32", "[1]", "[0,4]") "," T("k", "F32", "[1]", "[0,4]") "}", 4, "overlap"},
    {"{" T("q", "F32", "[1]", "[0,4]") "," T("k", "F32", "[1]", "[8,12]") "}", 12,
     "4 bytes of data before those of k belong to no tensor"},
    {"{" T("q", "F32", "[1]", "[0,4]") "}", 7, "the last 3 bytes of the file belong to no tensor"},
    {"{" T("q", "F32", "[1]", "[0,4]") "," T("q", "F32", "[1]", "[4,8]") "}", 8, "q: is in the header twice"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
    {"{\"__metadata__\":{\"chunk_size\":64}}", 0, "__metadata__: the value of chunk_size is no string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__: is in the header twice"},
};

START_TEST(malformed_headers_are_refused) {
    put_file(malformed[_i].header, strlen(malformed[_i].header), malformed[_i].data);
    assert_refused(malformed[_i].sentence);
}
END_TEST

START_TEST(files_cut_short_are_refused) {
    put("", 0);
    assert_refused("is cut short: it has 0 bytes");
    put("1234567", 7);
    assert_refused("is cut short: it has 7 bytes");
    put_file("{}", 3, 0);
    assert_refused("is cut short: its header has 3 bytes, but 2 follow");
    put_file("{}", 100000000, 0);
    assert_refused("is cut short: its header has 100000000 bytes, but 2 follow");
    put_file("{}", 100000001, 0);
    assert_refused("its header of 100000001 bytes is longer than 100000000");
    put_file("{}", UINT64_MAX, 0);
    assert_refused("its header of 18446744073709551615 bytes is longer");
}
END_TEST

/* Each cut of a real file is refused: its header or its last tensor is no longer whole. */
START_TEST(every_cut_of_a_file_is_refused) {
    static const float values[4] = {1, 2, 3, 4};
    const struct safetensor tensor = {
        .name = "q", .dtype = "F32", .ndim = 1, .shape = {4}, .data = values, .size = sizeof values};
    struct stat status;
    int fd = open(path, O_WRONLY | O_TRUNC);
    ck_assert(safetensors_write(fd, &tensor, 1, NULL, 0, why));
    close(fd);
    ck_assert_int_eq(stat(path, &status), 0);
    for (off_t size = status.st_size - 1; size >= 0; size--) {
        struct safetensors file;
        ck_assert_int_eq(truncate(path, size), 0);
        ck_assert_msg(!safetensors_open(&file, path, why), "%jd bytes are taken for a file", (intmax_t)size);
    }
}
END_TEST

START_TEST(what_is_no_file_is_refused) {
    struct safetensors file;
    ck_assert(!safetensors_open(&file, "/tmp", why));
    ck_assert_str_eq(why, "is no regular file");
    ck_assert(!safetensors_open(&file, "/dev/null", why));
    ck_assert_str_eq(why, "is no regular file");
    ck_assert(!safetensors_open(&file, "/nonexistent/file", why));
    ck_assert_str_eq(why, "cannot be opened: No such file or directory");
}
END_TEST

START_TEST(a_full_disk_is_told) {
    static const float value = 1;
    const struct safetensor tensor = {
        .name = "q", .dtype = "F32", .ndim = 1, .shape = {1}, .data = &value, .size = sizeof value};
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0)
        return;
    ck_assert(!safetensors_write(fd, &tensor, 1, NULL, 0, why));
    ck_assert_str_eq(why, "cannot be written: No space left on device");
    close(fd);
}
END_TEST

START_TEST(errors_are_measured_as_the_oracle_measures_them) {
    static const double ref[] = {1, -2.5, 0, 1e-3, NAN, INFINITY};
    static const float incoming[] = {0.5F, -2, 0, 0, 0, 0};
    const float good[] = {1, -2.5F, 0, 1e-3F, NAN, INFINITY},
                off[] = {1.001F, -2.5F, 0, 1e-3F, NAN, INFINITY};
    const float finite[] = {1, -2.5F, 0, 1e-3F, 0, INFINITY},
                missing[] = {NAN, -2.5F, 0, 1e-3F, NAN, INFINITY};
    const float *const results[] = {good, off, finite, missing};
    for (size_t i = 0; i < COUNT(results); i++) {
        double error = measure_error(results[i], ref, incoming, COUNT(ref));
        double oracle = oracle_error(results[i], ref, incoming, COUNT(ref));
        if (isinf(oracle))
            ck_assert_double_infinite(error);
        else
            ck_assert_double_eq_tol(error, oracle, 1e-15);
    }
    ck_assert_double_eq(measure_error(good, ref, incoming, COUNT(ref)), 0);
    ck_assert_double_eq_tol(measure_error(off, ref, incoming, 2), 0.001 / sqrt(0.5), 1e-6);
    ck_assert_double_infinite(measure_error(missing, ref, incoming, COUNT(ref)));
    ck_assert_double_infinite(measure_error(finite, ref, incoming, COUNT(ref)));
}
END_TEST

START_TEST(where_nothing_is_added_bits_are_compared) {
    static const double ref[] = {0.5, 0};
    static const float incoming[] = {0.5F, 0}, same[] = {0.5F, 0}, negative[] = {0.5F, -0.0F};
    ck_assert_double_eq(measure_error(same, ref, incoming, 2), 0);
    ck_assert_double_infinite(measure_error(negative, ref, incoming, 2));
    ck_assert_double_eq(measure_error(same, ref, incoming, 0), 0);
}
END_TEST

START_TEST(exact_means_bit_for_bit) {
    static const double ref[] = {3, -7, 0};
    static const float same[] = {3, -7, 0}, near[] = {3, -7.0000005F, 0}, negative[] = {3, -7, -0.0F};
    ck_assert(measure_exact(same, ref, 3));
    ck_assert(!measure_exact(near, ref, 3));
    ck_assert(!measure_exact(negative, ref, 3));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("safetensors");
    TCase *files = tcase_create("files"), *errors = tcase_create("errors");
    tcase_add_checked_fixture(files, setup, teardown);
    tcase_add_test(files, what_is_written_can_be_read);
    tcase_add_test(files, data_need_not_be_aligned);
    tcase_add_test(files, an_empty_header_is_a_file_of_nothing);
    tcase_add_loop_test(files, malformed_headers_are_refused, 0, COUNT(malformed));
    tcase_add_test(files, files_cut_short_are_refused);
    tcase_add_test(files, every_cut_of_a_file_is_refused);
    tcase_add_test(files, what_is_no_file_is_refused);
    tcase_add_test(files, a_full_disk_is_told);
    tcase_add_test(errors, errors_are_measured_as_the_oracle_measures_them);
    tcase_add_test(errors, where_nothing_is_added_bits_are_compared);
    tcase_add_test(errors, exact_means_bit_for_bit);
    suite_add_tcase(suite, files);
    suite_add_tcase(suite, errors);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
