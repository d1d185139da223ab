/*
 * test_kdactl.c - the real kdactl against a real kdad: what it computes, what it prints, its exit codes, and
 * that nothing of it stays behind.
 */
#include "client/kdactl/measure.h"
#include "client/kdactl/safetensors.h"
#include "client/kdad.h"
#include "tests/harness.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
    ARGUMENTS_MAX = 64,
    OUTPUT_MAX = 1 << 16,
    TENSORS_MAX = 32,
};

static struct harness harness;
static char folder[32]; /* of each test: for its files, and TMPDIR of what it runs */
static glob_t cases;
static char out[OUTPUT_MAX], err[OUTPUT_MAX]; /* of the last kdactl */
static const char *const output_names[] = {"dq", "dk", "db", "dg"};

static void make_folder(void) {
    strcpy(folder, "/tmp/kdad-test-ctl-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("TMPDIR", folder, 1);
    setenv("KDAD_SOCKET", "/nonexistent/kdad.sock", 1);
    ck_assert_int_eq(glob(KDAD_TEST_DATA "/*.safetensors", 0, NULL, &cases), 0);
    ck_assert_uint_ge(cases.gl_pathc, 16);
}

/* The test has removed all that it made: what is left is kdactl's. */
static void remove_folder(void) {
    ck_assert_msg(rmdir(folder) == 0, "%s: %s", folder, strerror(errno));
    globfree(&cases);
}

static void start_daemon(void) {
    make_folder();
    harness_start(&harness, NULL);
}

static void stop_daemon(void) {
    harness_stop(&harness);
    remove_folder();
}

static const char *case_of(const char *name) {
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % COUNT(paths)];
    snprintf(path, sizeof paths[0], "%s/%s.safetensors", KDAD_TEST_DATA, name);
    return path;
}

static const char *in_folder(const char *name) {
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % COUNT(paths)];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void remove_file(const char *name) {
    ck_assert_msg(unlink(in_folder(name)) == 0, "%s: %s", name, strerror(errno));
}

/* ---- Running kdactl --------------------------------------------------------------------------------------
 */

static pid_t start(const char *program, const char *const *arguments, int stdout_fd, int stderr_fd) {
    const char *vector[ARGUMENTS_MAX + 2] = {"kdactl"};
    for (int i = 0; arguments[i]; i++) {
        ck_assert_int_lt(i, ARGUMENTS_MAX);
        vector[i + 1] = arguments[i];
    }
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(stdout_fd, STDOUT_FILENO);
        dup2(stderr_fd, STDERR_FILENO);
        execv(program, (char *const *)vector);
        _exit(127);
    }
    return pid;
}

static int exit_code(pid_t pid) {
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status), "kdactl ended with wait status %#x", status);
    return WEXITSTATUS(status);
}

static void read_back(FILE *file, char text[OUTPUT_MAX]) {
    rewind(file);
    size_t size = fread(text, 1, OUTPUT_MAX - 1, file);
    text[size] = '\0';
    fclose(file);
}

static int run_program(const char *program, const char *const *arguments) {
    FILE *to_out = tmpfile(), *to_err = tmpfile();
    ck_assert(to_out && to_err);
    int code = exit_code(start(program, arguments, fileno(to_out), fileno(to_err)));
    read_back(to_out, out);
    read_back(to_err, err);
    return code;
}

#define KDACTL(...) run_program(KDACTL_BINARY, (const char *const[]){__VA_ARGS__, NULL})

#define ASSERT_CODE(code, ...)                                                             \
    do {                                                                                   \
        int got = KDACTL(__VA_ARGS__);                                                     \
        ck_assert_msg(got == (code), "exit code %d, not %d\n%s%s", got, (code), out, err); \
    } while (0)

static void assert_says(const char *text, const char *part) {
    ck_assert_msg(strstr(text, part) != NULL, "'%s' is not in:\n%s", part, text);
}

/* ---- Files -----------------------------------------------------------------------------------------------
 */

/* A case, to be changed and written anew. */
struct draft {
    struct safetensors file;
    struct safetensor tensors[TENSORS_MAX];
    struct safetensors_note notes[3];
    void *copies[TENSORS_MAX];
};

static void draft_open(struct draft *draft, const char *path) {
    char why[SAFETENSORS_WHY];
    static const char *const keys[] = {"chunk_size", "safe_gate", "note"};
    *draft = (struct draft){0};
    ck_assert_msg(safetensors_open(&draft->file, path, why), "%s: %s", path, why);
    ck_assert_uint_le(draft->file.count, TENSORS_MAX);
    memcpy(draft->tensors, draft->file.tensors, draft->file.count * sizeof *draft->tensors);
    for (size_t i = 0; i < COUNT(keys); i++)
        draft->notes[i] = (struct safetensors_note){keys[i], safetensors_metadata(&draft->file, keys[i])};
}

static struct safetensor *draft_tensor(struct draft *draft, const char *name) {
    for (size_t i = 0; i < draft->file.count; i++)
        if (strcmp(draft->tensors[i].name, name) == 0)
            return &draft->tensors[i];
    ck_abort_msg("there is no %s", name);
}

/* Its bytes, to be written to. */
static void *draft_bytes(struct draft *draft, const char *name) {
    struct safetensor *t = draft_tensor(draft, name);
    void **copy = &draft->copies[t - draft->tensors];
    *copy = malloc(t->size);
    ck_assert_ptr_nonnull(*copy);
    memcpy(*copy, t->data, t->size);
    t->data = *copy;
    return *copy;
}

static void draft_write(struct draft *draft, const char *name) {
    char why[SAFETENSORS_WHY];
    int fd = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_msg(
        safetensors_write(fd, draft->tensors, draft->file.count, draft->notes, COUNT(draft->notes), why),
        "%s", why);
    close(fd);
    for (size_t i = 0; i < TENSORS_MAX; i++)
        free(draft->copies[i]);
    safetensors_close(&draft->file);
}

/* Results in a file against the float64 ones of its case. */
static void assert_right(const char *path, const char *case_path) {
    char why[SAFETENSORS_WHY];
    struct safetensors got, want;
    ck_assert_msg(safetensors_open(&got, path, why), "%s: %s", path, why);
    ck_assert_msg(safetensors_open(&want, case_path, why), "%s: %s", case_path, why);
    ck_assert_uint_eq(got.count, COUNT(output_names));
    for (size_t i = 0; i < COUNT(output_names); i++) {
        char name[8];
        snprintf(name, sizeof name, "ref.%s", output_names[i]);
        const struct safetensor *result = safetensors_find(&got, output_names[i]);
        const struct safetensor *incoming = safetensors_find(&want, output_names[i]);
        const struct safetensor *ref = safetensors_find(&want, name);
        ck_assert_ptr_nonnull(result);
        ck_assert_str_eq(result->dtype, "F32");
        ck_assert_int_eq(result->ndim, incoming->ndim);
        ck_assert_mem_eq(result->shape, incoming->shape, sizeof result->shape);
        float *values = malloc(result->size), *before = malloc(incoming->size);
        double *exact = malloc(ref->size);
        memcpy(values, result->data, result->size);
        memcpy(before, incoming->data, incoming->size);
        memcpy(exact, ref->data, ref->size);
        double error = measure_error(values, exact, before, result->size / sizeof *values);
        ck_assert_msg(error <= 2e-6, "%s: %s is off by %g", path, output_names[i], error);
        free(values);
        free(before);
        free(exact);
    }
    safetensors_close(&got);
    safetensors_close(&want);
}

/* ---- check -----------------------------------------------------------------------------------------------
 */

START_TEST(every_case_passes) {
    const char *arguments[ARGUMENTS_MAX] = {"check"};
    for (size_t i = 0; i < cases.gl_pathc; i++)
        arguments[i + 1] = cases.gl_pathv[i];
    int code = run_program(KDACTL_BINARY, arguments);
    ck_assert_msg(code == 0, "exit code %d\n%s%s", code, out, err);
    size_t lines = 0;
    for (const char *at = strstr(out, "  ok"); at; at = strstr(at + 1, "  ok"))
        lines++;
    ck_assert_uint_eq(lines, cases.gl_pathc);
    assert_says(strstr(out, "\nexact "), "ok, bit for bit");
    ck_assert_str_eq(err, "");
}
END_TEST

START_TEST(a_wrong_result_is_a_no) {
    struct draft draft;
    draft_open(&draft, case_of("chunk16"));
    double *ref = draft_bytes(&draft, "ref.dg");
    ref[17] += 1e-3;
    draft_write(&draft, "off.safetensors");
    ASSERT_CODE(1, "check", case_of("chunk16"), in_folder("off.safetensors"), case_of("chunk32"));
    assert_says(strstr(out, "\noff "), "FAILED: beyond 2e-6");
    assert_says(strstr(out, "\nchunk32 "), "  ok\n");
    remove_file("off.safetensors");
}
END_TEST

START_TEST(a_result_that_is_not_exact_is_a_no) {
    struct draft draft;
    draft_open(&draft, case_of("exact"));
    double *ref = draft_bytes(&draft, "ref.dq");
    const float next = (float)ref[5] * 1.0000002F + 1e-7F;
    ref[5] = next;
    draft_write(&draft, "exact.safetensors");
    ASSERT_CODE(1, "check", in_folder("exact.safetensors"));
    assert_says(out, "FAILED: not bit for bit");
    remove_file("exact.safetensors");
}
END_TEST

START_TEST(a_bad_file_is_named_and_the_others_are_checked) {
    struct draft draft;
    FILE *file = fopen(in_folder("bad.safetensors"), "w");
    fputs("this is no tensor file", file);
    fclose(file);
    draft_open(&draft, case_of("chunk16"));
    draft_tensor(&draft, "ref.db")->name = "ref.other";
    draft_write(&draft, "unknown.safetensors");
    ASSERT_CODE(2, "check", in_folder("bad.safetensors"), in_folder("unknown.safetensors"), "/nonexistent",
                case_of("chunk16"));
    assert_says(out, "chunk16 ");
    assert_says(out, "  ok\n");
    assert_says(err, "bad.safetensors: its header of ");
    assert_says(err, "unknown.safetensors: ref.db: is missing");
    assert_says(err, "/nonexistent: cannot be opened: No such file or directory");
    remove_file("bad.safetensors");
    remove_file("unknown.safetensors");
}
END_TEST

START_TEST(chunk_size_may_be_left_out) {
    struct draft draft;
    draft_open(&draft, case_of("chunk32"));
    draft.notes[0].key = "other";
    draft_write(&draft, "plain.safetensors");
    ASSERT_CODE(0, "check", in_folder("plain.safetensors"));
    remove_file("plain.safetensors");
}
END_TEST

/* ---- run -------------------------------------------------------------------------------------------------
 */

START_TEST(run_writes_the_results) {
    ASSERT_CODE(0, "run", case_of("varlen"), in_folder("out.safetensors"));
    ck_assert_str_eq(out, "");
    ck_assert_str_eq(err, "");
    assert_right(in_folder("out.safetensors"), case_of("varlen"));
    remove_file("out.safetensors");
}
END_TEST

START_TEST(run_takes_many_files) {
    const char *arguments[ARGUMENTS_MAX] = {"run", "--out-dir", in_folder("results")};
    for (size_t i = 0; i < cases.gl_pathc; i++)
        arguments[i + 3] = cases.gl_pathv[i];
    for (int again = 0; again < 2; again++) { /* the second time, files are replaced */
        int code = run_program(KDACTL_BINARY, arguments);
        ck_assert_msg(code == 0, "exit code %d\n%s", code, err);
        ck_assert_str_eq(err, ""); /* no terminal, no bar */
    }
    for (size_t i = 0; i < cases.gl_pathc; i++) {
        char name[64];
        snprintf(name, sizeof name, "results/%s", strrchr(cases.gl_pathv[i], '/') + 1);
        assert_right(in_folder(name), cases.gl_pathv[i]);
        remove_file(name);
    }
    ck_assert_int_eq(rmdir(in_folder("results")), 0);
}
END_TEST

START_TEST(run_goes_on_behind_a_bad_file) {
    ASSERT_CODE(2, "run", "--out-dir", folder, "/nonexistent", case_of("chunk16"));
    assert_says(err, "/nonexistent: cannot be opened");
    remove_file("chunk16.safetensors");
}
END_TEST

START_TEST(run_never_replaces_its_input) {
    struct draft draft;
    draft_open(&draft, case_of("chunk16"));
    draft_write(&draft, "job.safetensors");
    ASSERT_CODE(2, "run", in_folder("job.safetensors"), in_folder("job.safetensors"));
    assert_says(err, "its results would replace it");
    ASSERT_CODE(2, "run", "--out-dir", folder, in_folder("job.safetensors"));
    assert_says(err, "its results would replace it");
    ASSERT_CODE(2, "run", "--out-dir", folder, case_of("chunk16"), "other/chunk16.safetensors");
    assert_says(err, "would have the same name");
    remove_file("job.safetensors");
}
END_TEST

START_TEST(results_that_cannot_be_written_are_told) {
    ASSERT_CODE(1, "run", case_of("chunk16"), "/nonexistent/out.safetensors");
    assert_says(err, "/nonexistent/out.safetensors: cannot be made: No such file or directory");
    ASSERT_CODE(2, "run", "--out-dir", case_of("chunk16"), case_of("chunk32"));
    assert_says(err, "is no directory");
}
END_TEST

/* A refusal is the daemon's or the library's sentence, about the file. */
START_TEST(a_refused_job_is_named) {
    struct draft draft;
    draft_open(&draft, case_of("chunk16"));
    draft.notes[0].value = "24";
    draft_write(&draft, "bad.safetensors");
    ASSERT_CODE(2, "run", in_folder("bad.safetensors"), in_folder("out.safetensors"));
    assert_says(err, "bad.safetensors: ");
    assert_says(err, "24");
    draft_open(&draft, case_of("chunk16"));
    draft.notes[0].value = "many";
    draft_write(&draft, "bad.safetensors");
    ASSERT_CODE(2, "run", in_folder("bad.safetensors"), in_folder("out.safetensors"));
    assert_says(err, "chunk_size: is 'many' in the metadata, but must be a number");
    draft_open(&draft, case_of("chunk16"));
    draft_tensor(&draft, "dAkk")->name = "daKK";
    draft_write(&draft, "bad.safetensors");
    ASSERT_CODE(2, "run", in_folder("bad.safetensors"), in_folder("out.safetensors"));
    assert_says(err, "dAkk: is missing");
    draft_open(&draft, case_of("chunk16"));
    draft_tensor(&draft, "q")->dtype = "I16";
    draft_write(&draft, "bad.safetensors");
    ASSERT_CODE(2, "run", in_folder("bad.safetensors"), in_folder("out.safetensors"));
    assert_says(err, "q: dtype is I16");
    remove_file("bad.safetensors");
}
END_TEST

START_TEST(bad_cu_seqlens_are_bad_input) {
    struct draft draft;
    draft_open(&draft, case_of("varlen"));
    int64_t *cu = draft_bytes(&draft, "cu_seqlens");
    cu[1] = 100000;
    draft_write(&draft, "bad.safetensors");
    ASSERT_CODE(2, "run", in_folder("bad.safetensors"), in_folder("out.safetensors"));
    assert_says(err, "cu_seqlens");
    remove_file("bad.safetensors");
}
END_TEST

/* ---- status, ping, usage ---------------------------------------------------------------------------------
 */

static cJSON *ask_status(void) {
    ASSERT_CODE(0, "status", "--json");
    cJSON *json = cJSON_Parse(out);
    ck_assert_msg(cJSON_IsObject(json), "is no JSON object:\n%s", out);
    return json;
}

static double number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    ck_assert_msg(cJSON_IsNumber(item), "%s is no number", key);
    return item->valuedouble;
}

START_TEST(status_tells_what_was_done) {
    ASSERT_CODE(0, "check", case_of("chunk16"));
    cJSON *json = ask_status();
    ck_assert_str_eq(cJSON_GetObjectItem(json, "version")->valuestring, kdad_version());
    ck_assert_str_eq(cJSON_GetObjectItem(json, "backend")->valuestring, "cpu");
    ck_assert_double_eq(number(json, "pid"), harness.pid);
    ck_assert_double_eq(number(json, "jobs_done"), 2);
    ck_assert_double_eq(number(json, "jobs_failed"), 0);
    ck_assert_double_eq(number(json, "connections"), 2);
    const cJSON *clients = cJSON_GetObjectItem(json, "clients");
    ck_assert_int_ge(cJSON_GetArraySize(clients), 1); /* the check's connection may still be closing */
    ck_assert_str_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(clients, 0), "name")->valuestring, "kdactl");
    ck_assert_double_eq(number(cJSON_GetArrayItem(clients, 0), "uid"), getuid());
    const cJSON *user = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "users"), 0);
    ck_assert_double_eq(number(user, "uid"), getuid());
    ck_assert_double_ge(number(user, "connections"), 1);
    ck_assert_double_eq(number(cJSON_GetObjectItem(json, "limits"), "connections"), 512);
    cJSON_Delete(json);
    ASSERT_CODE(0, "status");
    assert_says(out, " of 512 connections, ");
    assert_says(out, "2 done, 0 failed, 0 queued");
    assert_says(out, "kdactl");
}
END_TEST

START_TEST(status_lists_more_clients_than_a_reply_holds) {
    struct kdad_connection *connections[70];
    for (size_t i = 0; i < COUNT(connections); i++)
        ck_assert_msg(kdad_connect(NULL, KDAD_DEFAULT_TIMEOUT, &connections[i]) == KDAD_OK, "%s",
                      kdad_error());
    cJSON *json = ask_status();
    const cJSON *clients = cJSON_GetObjectItem(json, "clients"), *client;
    ck_assert_int_ge(cJSON_GetArraySize(clients), (int)COUNT(connections) + 1);
    size_t mine = 0;
    cJSON_ArrayForEach(client, clients) {
        if (number(client, "pid") == getpid())
            mine++;
    }
    ck_assert_uint_eq(mine, COUNT(connections));
    cJSON_Delete(json);
    for (size_t i = 0; i < COUNT(connections); i++)
        kdad_disconnect(connections[i]);
}
END_TEST

START_TEST(ping_tells_the_version) {
    char text[128];
    ASSERT_CODE(0, "ping");
    snprintf(text, sizeof text, "kdad %s, pid %d, on %s: connected in ", kdad_version(), (int)harness.pid,
             harness.socket);
    assert_says(out, text);
    setenv("KDAD_SOCKET", "/nonexistent/kdad.sock", 1);
    ASSERT_CODE(0, "--socket", harness.socket, "ping");
    assert_says(out, text);
}
END_TEST

static double figure(const cJSON *object, const char *name, const char *of) {
    const cJSON *json = cJSON_GetObjectItem(object, name);
    const cJSON *number = of ? cJSON_GetObjectItem(json, of) : json;
    ck_assert_msg(cJSON_IsNumber(number), "%s %s is no number", name, of ? of : "");
    return number->valuedouble;
}

/* That it measures, not what. */
START_TEST(bench_has_all_figures) {
    ASSERT_CODE(0, "bench", "--quick", "--json");
    cJSON *json = cJSON_Parse(out);
    const cJSON *row;
    ck_assert_ptr_nonnull(json);
    ck_assert_str_eq(cJSON_GetObjectItem(json, "backend")->valuestring, "cpu");
    ck_assert_double_gt(figure(cJSON_GetObjectItem(json, "first_result"), "daemon_ms", "median"), 0);
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "dependent")) {
        ck_assert_double_gt(figure(row, "daemon_us", "median"), 0);
        ck_assert_double_gt(figure(row, "local_us", "p99"), 0);
    }
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "submit_cpu"))
        ck_assert_double_gt(figure(row, "daemon_us", "median"), 0);
    ck_assert_double_gt(figure(cJSON_GetObjectItem(json, "daemon_cpu_percent"), "busy", NULL), 0);
    ck_assert_double_gt(figure(cJSON_GetObjectItem(json, "fairness"), "beside_us", "p99"), 0);
    ck_assert_double_gt(figure(cJSON_GetObjectItem(json, "fairness"), "share", NULL), 0);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "clients")), 4); /* 1 and 2, two shapes */
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "clients")) {
        ck_assert_double_gt(figure(row, "daemon_jobs_per_s", NULL), 0);
        ck_assert_double_gt(figure(row, "share_of_apart", NULL), 0);
    }
    cJSON_Delete(json);
    ASSERT_CODE(0, "status", "--json"); /* nothing is left of it in the daemon */
    json = cJSON_Parse(out);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "clients")), 1);
    cJSON_Delete(json);
}
END_TEST

START_TEST(bench_of_a_gpu_that_is_not_there_is_2) {
    ASSERT_CODE(2, "bench", "--backend", "cuda");
    assert_says(err, "the daemon has no GPU: its backend is cpu");
    ck_assert_str_eq(out, "");
}
END_TEST

START_TEST(output_that_cannot_be_printed_is_a_no) {
    int full = open("/dev/full", O_WRONLY), null = open("/dev/null", O_WRONLY);
    if (full >= 0) {
        const char *const arguments[] = {"status", NULL};
        ck_assert_int_eq(exit_code(start(KDACTL_BINARY, arguments, full, null)), 1);
    }
    close(full);
    close(null);
}
END_TEST

START_TEST(without_a_daemon_the_code_is_3) {
    ASSERT_CODE(3, "ping");
    assert_says(err, "/nonexistent/kdad.sock");
    ASSERT_CODE(3, "status");
    ASSERT_CODE(3, "status", "--json");
    ck_assert_str_eq(out, "");
    ASSERT_CODE(3, "bench");
    ASSERT_CODE(3, "bench", "--backend", "cuda");
    ASSERT_CODE(3, "check", case_of("chunk16"));
    ASSERT_CODE(3, "run", case_of("chunk16"), in_folder("out.safetensors"));
    ASSERT_CODE(3, "--socket", in_folder("kdad.sock"), "ping");
}
END_TEST

START_TEST(wrong_usage_is_2) {
    const char *const nothing[] = {NULL};
    ck_assert_int_eq(run_program(KDACTL_BINARY, nothing), 2);
    assert_says(err, "a command is missing");
    ASSERT_CODE(2, "dance");
    assert_says(err, "there is no command 'dance'");
    ASSERT_CODE(2, "--frobnicate", "ping");
    ASSERT_CODE(2, "check");
    ASSERT_CODE(2, "run", case_of("chunk16"));
    ASSERT_CODE(2, "run", case_of("chunk16"), case_of("chunk32"), case_of("dense"));
    ASSERT_CODE(2, "ping", "twice");
    ASSERT_CODE(2, "ping", "--json");
    ASSERT_CODE(2, "ping", "--backend", "cpu");
    ASSERT_CODE(2, "bench", "--backend", "abacus");
    assert_says(err, "--backend is 'abacus', but must be cpu or cuda");
    ASSERT_CODE(2, "check", "--out-dir", folder, case_of("chunk16"));
    ASSERT_CODE(2, "--spawn", "--socket", "/tmp/x", "ping");
    ck_assert_str_eq(out, "");
    ASSERT_CODE(0, "--help");
    assert_says(out, "Usage: kdactl");
    ck_assert_str_eq(err, "");
    ASSERT_CODE(0, "--version");
    assert_says(out, kdad_version());
}
END_TEST

/* ---- --spawn ---------------------------------------------------------------------------------------------
 */

START_TEST(spawn_leaves_nothing) {
    ASSERT_CODE(0, "--spawn", "check", case_of("chunk16"));
    assert_says(out, "  ok\n");
    ASSERT_CODE(0, "--spawn", "ping");
    const char *pid = strstr(out, "pid ");
    ck_assert_ptr_nonnull(pid);
    ck_assert_int_eq(kill((pid_t)atoi(pid + 4), 0), -1);
    ck_assert_int_eq(errno, ESRCH);
    ASSERT_CODE(2, "--spawn", "check", "/nonexistent");
    ASSERT_CODE(2, "--spawn", "run", case_of("chunk16"));
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    ASSERT_CODE(3, "--spawn", "bench", "--backend", "cuda");
    assert_says(err, "the private daemon has not started");
}
END_TEST

/* A kdactl --spawn in the middle of a long command; its daemon's pid. */
static pid_t start_spawned(pid_t *daemon) {
    static const char *const arguments[] = {"--spawn", "bench", NULL};
    int ends[2];
    char byte, pattern[64];
    glob_t found;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = start(KDACTL_BINARY, arguments, ends[1], STDERR_FILENO);
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &byte, 1), 1); /* its first line: the daemon serves, more is to come */
    snprintf(pattern, sizeof pattern, "%s/kdactl.*/kdad.sock", folder);
    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    ASSERT_CODE(0, "--socket", found.gl_pathv[0], "ping");
    globfree(&found);
    *daemon = (pid_t)atoi(strstr(out, "pid ") + 4);
    ck_assert_int_eq(kill(*daemon, 0), 0);
    /* The pipe's end stays open: kdactl is not to be ended by SIGPIPE. */
    return pid;
}

START_TEST(a_signal_ends_what_spawn_started) {
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    pid_t daemon, pid = start_spawned(&daemon);
    int status;
    kill(pid, numbers[_i]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == numbers[_i], "kdactl ended with wait status %#x",
                  status);
    ck_assert_int_eq(kill(daemon, 0), -1);
}
END_TEST

/* The keeper, its child until then, cleans up. */
START_TEST(kill_9_leaves_nothing_of_spawn_either) {
    pid_t daemon, pid;
    int status;
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* the keeper becomes this process's child */
    pid = start_spawned(&daemon);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_gt(waitpid(-1, &status, 0), 0);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the keeper ended with wait status %#x",
                  status);
    ck_assert_int_eq(kill(daemon, 0), -1);
}
END_TEST

START_TEST(spawn_without_a_kdad_is_3) {
    char copy[64], block[65536];
    ssize_t size;
    snprintf(copy, sizeof copy, "%s", in_folder("kdactl"));
    int from = open(KDACTL_BINARY, O_RDONLY), to = open(copy, O_WRONLY | O_CREAT, 0700);
    while ((size = read(from, block, sizeof block)) > 0)
        ck_assert_int_eq(write(to, block, (size_t)size), size);
    close(from);
    close(to);
    setenv("PATH", "/nonexistent", 1);
    const char *const arguments[] = {"--spawn", "ping", NULL};
    ck_assert_int_eq(run_program(copy, arguments), 3);
    assert_says(err, "kdad: cannot be run: No such file or directory");
    assert_says(err, "the private daemon has not started");
    remove_file("kdactl");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("kdactl");
    TCase *with = tcase_create("with a daemon"), *without = tcase_create("without a daemon");
    tcase_add_checked_fixture(with, start_daemon, stop_daemon);
    tcase_add_test(with, every_case_passes);
    tcase_add_test(with, a_wrong_result_is_a_no);
    tcase_add_test(with, a_result_that_is_not_exact_is_a_no);
    tcase_add_test(with, a_bad_file_is_named_and_the_others_are_checked);
    tcase_add_test(with, chunk_size_may_be_left_out);
    tcase_add_test(with, run_writes_the_results);
    tcase_add_test(with, run_takes_many_files);
    tcase_add_test(with, run_goes_on_behind_a_bad_file);
    tcase_add_test(with, run_never_replaces_its_input);
    tcase_add_test(with, results_that_cannot_be_written_are_told);
    tcase_add_test(with, a_refused_job_is_named);
    tcase_add_test(with, bad_cu_seqlens_are_bad_input);
    tcase_add_test(with, status_tells_what_was_done);
    tcase_add_test(with, status_lists_more_clients_than_a_reply_holds);
    tcase_add_test(with, ping_tells_the_version);
    tcase_add_test(with, bench_has_all_figures);
    tcase_add_test(with, bench_of_a_gpu_that_is_not_there_is_2);
    tcase_add_test(with, output_that_cannot_be_printed_is_a_no);
    tcase_add_checked_fixture(without, make_folder, remove_folder);
    tcase_add_test(without, without_a_daemon_the_code_is_3);
    tcase_add_test(without, wrong_usage_is_2);
    tcase_add_test(without, spawn_leaves_nothing);
    tcase_add_loop_test(without, a_signal_ends_what_spawn_started, 0, 3);
    tcase_add_test(without, kill_9_leaves_nothing_of_spawn_either);
    tcase_add_test(without, spawn_without_a_kdad_is_3);
    suite_add_tcase(suite, with);
    suite_add_tcase(suite, without);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
