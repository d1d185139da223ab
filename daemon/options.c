/*
 * options.c - one table of all options, which the command line, the environment, the file and --help are read
 * and written by.
 *
 * What comes first has the word: command line, environment, file, default. Every source is read in full, so
 * that a wrong value is told of even where another one stands before it.
 */
#include "daemon/options.h"

#include "proto/address.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define USUAL_FILE "/etc/kdad/kdad.conf"

enum {
    FILE_MAX = 65536, /* bytes of the file */
    TEXT_MAX = 4096,  /* bytes of a value as text */
    HELP_COLUMN = 26,
    GETOPT_FIRST = 256, /* getopt's value of the table's first row */
};

/* --- kinds of values: read from text, shown as text ---------------------------------------------------- */

static bool parse_number(const char *text, uint64_t max, uint64_t *number, const char **end) {
    errno = 0;
    *number = strtoull(text, (char **)end, 10);
    return isdigit((unsigned char)*text) && !errno && *number <= max;
}

static bool read_text(void *value, const char *text, uint64_t max) {
    (void)max;
    *(const char **)value = text;
    return true;
}

static void show_text(char out[TEXT_MAX], const void *value) {
    const char *text = *(const char *const *)value;
    snprintf(out, TEXT_MAX, "%s", text ? text : "");
}

static bool read_backend(void *value, const char *text, uint64_t max) {
    return (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0) &&
           read_text(value, text, max);
}

static bool read_int(void *value, const char *text, uint64_t max) {
    uint64_t number;
    const char *end;
    if (!parse_number(text, max, &number, &end) || *end)
        return false;
    *(int *)value = (int)number;
    return true;
}

static void show_int(char out[TEXT_MAX], const void *value) {
    snprintf(out, TEXT_MAX, "%d", *(const int *)value);
}

static bool read_count(void *value, const char *text, uint64_t max) {
    uint64_t number;
    const char *end;
    if (!parse_number(text, max, &number, &end) || *end || number == 0)
        return false;
    *(uint64_t *)value = number;
    return true;
}

static void show_count(char out[TEXT_MAX], const void *value) {
    snprintf(out, TEXT_MAX, "%" PRIu64, *(const uint64_t *)value);
}

static const char units[] = "KMGT";

static bool read_bytes(void *value, const char *text, uint64_t max) {
    uint64_t number;
    const char *end, *unit;
    if (!parse_number(text, max, &number, &end) || number == 0)
        return false;
    unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (end[unit != NULL] || number > max >> shift)
        return false;
    *(uint64_t *)value = number << shift;
    return true;
}

static void show_bytes(char out[TEXT_MAX], const void *value) {
    uint64_t number = *(const uint64_t *)value;
    int unit = -1;
    while (unit + 1 < (int)sizeof units - 1 && number % 1024 == 0) {
        number /= 1024;
        unit++;
    }
    snprintf(out, TEXT_MAX, "%" PRIu64 "%.1s", number, unit < 0 ? "" : &units[unit]);
}

static bool read_level(void *value, const char *text, uint64_t max) {
    (void)max;
    return log_level_parse(text, value);
}

static void show_level(char out[TEXT_MAX], const void *value) {
    snprintf(out, TEXT_MAX, "%s", log_level_name(*(const enum log_level *)value));
}

/* An index, or the UUID of a GPU or of a part of one (MIG), in full. */
static bool is_device(const char *name, size_t length) {
    size_t digits = strspn(name, "0123456789");
    if (digits == length)
        return length > 0 && length <= 3;
    static const char form[] = "XXXXXXXX-XXXX-XXXX-XXXX-XXXXXXXXXXXX";
    if (length != 4 + sizeof form - 1 || (strncmp(name, "GPU-", 4) != 0 && strncmp(name, "MIG-", 4) != 0))
        return false;
    for (size_t i = 0; form[i]; i++) {
        char c = name[4 + i];
        if (form[i] == '-' ? c != '-' : !isxdigit((unsigned char)c))
            return false;
    }
    return true;
}

/* Adds to the list. */
static bool read_devices(void *value, const char *text, uint64_t max) {
    struct option_devices *devices = value;
    (void)max;
    for (;;) {
        text += strspn(text, " \t");
        size_t all = strcspn(text, ","), length = all;
        while (length > 0 && isblank((unsigned char)text[length - 1]))
            length--;
        if (!is_device(text, length) || devices->count == OPTIONS_DEVICES)
            return false;
        snprintf(devices->name[devices->count++], OPTIONS_DEVICE, "%.*s", (int)length, text);
        if (!text[all])
            return true;
        text += all + 1;
    }
}

static void show_devices(char out[TEXT_MAX], const void *value) {
    const struct option_devices *devices = value;
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < devices->count; i++)
        n += (size_t)snprintf(out + n, TEXT_MAX - n, "%s%s", i ? "," : "", devices->name[i]);
}

/* --- the table ----------------------------------------------------------------------------------------- */

enum index {
    OPTION_CONFIG,
    OPTION_SOCKET,
    OPTION_BACKEND,
    OPTION_DEVICE,
    OPTION_THREADS,
    OPTION_MAX_CONNECTIONS,
    OPTION_MAX_STREAMS,
    OPTION_MAX_BUFFERS,
    OPTION_MAX_BYTES,
    OPTION_MAX_JOBS,
    OPTION_LOG_LEVEL,
    OPTION_QUIET,
    OPTION_READY_FD,
    OPTION_CHECK_CONFIG,
    OPTION_VERSION,
    OPTION_HELP,
    OPTION_COUNT,
};

_Static_assert((int)OPTION_COUNT <= (int)OPTIONS_MAX, "OPTIONS_MAX");

static const struct row {
    const char *name;
    const char *argument; /* what --help calls it; NULL: there is none */
    const char *help;
    enum {
        COMMAND_LINE,
        SETTING,
        RELOADED
    } where; /* settings may stand in the environment and the file too */
    bool (*read)(void *value, const char *text, uint64_t max); /* NULL: no value */
    void (*show)(char out[TEXT_MAX], const void *value);
    size_t at; /* of the value, in struct options */
    uint64_t max;
    const char *expected; /* a value that read takes */
} rows[OPTION_COUNT] = {
    [OPTION_CONFIG] = {"config", "FILE", "read options from FILE; default " USUAL_FILE ",\nif it is there",
                       COMMAND_LINE, read_text, show_text, offsetof(struct options, config), 0, ""},
    [OPTION_SOCKET] = {"socket", "PATH",
                       "listen here; default $XDG_RUNTIME_DIR/kdad/kdad.sock,\nelse /run/kdad/kdad.sock",
                       SETTING, read_text, show_text, offsetof(struct options, socket), 0, ""},
    [OPTION_BACKEND] = {"backend", "NAME", "auto, cpu or cuda", SETTING, read_backend, show_text,
                        offsetof(struct options, backend), 0, "auto, cpu or cuda"},
    [OPTION_DEVICE] = {"device", "GPU",
                       "a GPU of the cuda backend, by UUID or index, or several\nwith commas; may be "
                       "repeated; default: all",
                       SETTING, read_devices, show_devices, offsetof(struct options, devices), 0,
                       "GPUs by index or by UUID (GPU-… or MIG-…, in full), with commas, at most 64"},
    [OPTION_THREADS] = {"threads", "N", "threads of the cpu backend, 0: one for each\nprocessor", SETTING,
                        read_int, show_int, offsetof(struct options, threads), 4096,
                        "a number from 0 to 4096"},
    [OPTION_MAX_CONNECTIONS] = {"max-connections", "N", "connections of one user", RELOADED, read_count,
                                show_count, offsetof(struct options, limits.max[LIMIT_CONNECTIONS]), 1 << 20,
                                "a number from 1 to 1048576"},
    [OPTION_MAX_STREAMS] = {"max-streams", "N", "streams of one user", RELOADED, read_count, show_count,
                            offsetof(struct options, limits.max[LIMIT_STREAMS]), 1 << 20,
                            "a number from 1 to 1048576"},
    [OPTION_MAX_BUFFERS] = {"max-buffers", "N", "buffers of one user", RELOADED, read_count, show_count,
                            offsetof(struct options, limits.max[LIMIT_BUFFERS]), 1 << 20,
                            "a number from 1 to 1048576"},
    [OPTION_MAX_BYTES] = {"max-bytes", "SIZE", "bytes that the buffers of one user map", RELOADED, read_bytes,
                          show_bytes, offsetof(struct options, limits.max[LIMIT_BYTES]), (uint64_t)1 << 60,
                          "a number of bytes from 1 to 2^60, perhaps with K, M, G or T behind it"},
    [OPTION_MAX_JOBS] = {"max-jobs", "N", "jobs of one user that have not ended", RELOADED, read_count,
                         show_count, offsetof(struct options, limits.max[LIMIT_JOBS]), 1 << 24,
                         "a number from 1 to 16777216"},
    [OPTION_LOG_LEVEL] = {"log-level", "LEVEL", "error, warning, info or debug", RELOADED, read_level,
                          show_level, offsetof(struct options, log_level), 0,
                          "error, warning, info or debug"},
    [OPTION_QUIET] = {"quiet", NULL, "the same as --log-level error", COMMAND_LINE, NULL, NULL, 0, 0, ""},
    [OPTION_READY_FD] = {"ready-fd", "N", "write one byte to descriptor N once the socket is served",
                         COMMAND_LINE, read_int, show_int, offsetof(struct options, ready_fd), INT_MAX,
                         "a descriptor's number"},
    [OPTION_CHECK_CONFIG] = {"check-config", NULL,
                             "print the options in force and where they come\nfrom, and exit", COMMAND_LINE,
                             NULL, NULL, 0, 0, ""},
    [OPTION_VERSION] = {"version", NULL, "print the version", COMMAND_LINE, NULL, NULL, 0, 0, ""},
    [OPTION_HELP] = {"help", NULL, "print this", COMMAND_LINE, NULL, NULL, 0, 0, ""},
};

static const struct options defaults = {
    .backend = "auto",
    .ready_fd = -1,
    .log_level = LOG_INFO,
    .limits.max = {[LIMIT_CONNECTIONS] = 512,
                   [LIMIT_STREAMS] = 2048,
                   [LIMIT_BUFFERS] = 16384,
                   [LIMIT_BYTES] = (uint64_t)4 << 40,
                   [LIMIT_JOBS] = 65536},
};

static void show(char out[TEXT_MAX], const struct options *options, enum index i) {
    rows[i].show(out, (const char *)options + rows[i].at);
}

/* --- help ---------------------------------------------------------------------------------------------- */

static void print_help(void) {
    char text[TEXT_MAX];
    fputs("Usage: kdad [OPTION]...\n"
          "Serve KDA intra-chunk backward jobs to the processes of this host.\n"
          "\n",
          stdout);
    for (enum index i = 0; i < OPTION_COUNT; i++) {
        const struct row *row = &rows[i];
        int column = printf("  --%s %s", row->name, row->argument ? row->argument : "");
        for (const char *line = row->help; *line;) {
            size_t length = strcspn(line, "\n");
            printf("%*s%.*s", column < HELP_COLUMN ? HELP_COLUMN - column : 1, "", (int)length, line);
            line += length + (line[length] != 0);
            if (*line)
                putchar('\n');
            column = 0;
        }
        if (row->where != COMMAND_LINE && (show(text, &defaults, i), *text))
            printf("; default %s", text);
        putchar('\n');
    }
    fputs("\n"
          "The command line has the first word, then the environment (KDAD_LOG_LEVEL for\n"
          "--log-level), then the file (log-level = info); on the command line alone stand\n ",
          stdout);
    for (enum index i = 0; i < OPTION_COUNT; i++) {
        if (rows[i].where == COMMAND_LINE)
            printf(" --%s", rows[i].name);
    }
    fputs("\n\n"
          "SIGHUP reads all again; limits of a user and the log level change then.\n"
          "SIGTERM and SIGINT stop it: running jobs finish, queued ones are cancelled.\n"
          "Exit codes: 0 stopped when asked, 1 could not start or go on, 2 wrong usage.\n",
          stdout);
}

/* --- reading ------------------------------------------------------------------------------------------- */

static const char *config_file(const struct options *options) {
    return options->config ? options->config : USUAL_FILE;
}

/* KDAD_LOG_LEVEL for log-level. */
static void environment_name(char name[32], enum index i) {
    size_t n = (size_t)snprintf(name, 32, "KDAD_%s", rows[i].name);
    for (size_t at = 0; at < n; at++)
        name[at] = (char)(name[at] == '-' ? '_' : toupper((unsigned char)name[at]));
}

/* Where an option stands, for people: "FILE:3: threads", "KDAD_THREADS", "--threads". */
static void name_place(char *out, size_t size, const struct options *options, enum index i,
                       struct option_origin origin) {
    char name[32];
    environment_name(name, i);
    if (origin.from == ORIGIN_FILE)
        snprintf(out, size, "%.600s:%d: %s", config_file(options), origin.line, rows[i].name);
    else if (origin.from == ORIGIN_ENVIRONMENT)
        snprintf(out, size, "%s", name);
    else
        snprintf(out, size, "--%s", rows[i].name);
}

static bool set(struct options *options, enum index i, const char *text, struct option_origin origin,
                char why[OPTIONS_WHY]) {
    const struct row *row = &rows[i];
    char place[700];
    name_place(place, sizeof place, options, i, origin);
    bool again = options->origin[i].from == origin.from;
    if (i == OPTION_DEVICE && !again)
        options->devices.count = 0;
    if (i != OPTION_DEVICE && again && origin.from == ORIGIN_FILE) {
        snprintf(why, OPTIONS_WHY, "%s: line %d has it already", place, options->origin[i].line);
        return false;
    }
    if (!row->read((char *)options + row->at, text, row->max)) {
        snprintf(why, OPTIONS_WHY, "%s: is '%.100s', but must be %s", place, text, row->expected);
        return false;
    }
    options->origin[i] = origin;
    return true;
}

/* Cuts blanks from both ends of a text. */
static char *trim(char *text) {
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r", text[length - 1]))
        text[--length] = 0;
    return text;
}

/* A '#' that begins a line or stands behind a blank begins a comment. */
static void cut_comment(char *line) {
    for (char *c = line; *c; c++) {
        if (*c == '#' && (c == line || isblank((unsigned char)c[-1]))) {
            *c = 0;
            return;
        }
    }
}

static bool read_line(struct options *options, char *line, int number, char why[OPTIONS_WHY]) {
    const char *file = config_file(options);
    cut_comment(line);
    line = trim(line);
    if (!*line)
        return true;
    char *equals = strchr(line, '=');
    if (!equals) {
        snprintf(why, OPTIONS_WHY, "%.600s:%d: '%.100s': is not of the form name = value", file, number,
                 line);
        return false;
    }
    *equals = 0;
    const char *name = trim(line), *value = trim(equals + 1);
    for (enum index i = 0; i < OPTION_COUNT; i++) {
        if (rows[i].where == COMMAND_LINE || strcmp(rows[i].name, name) != 0)
            continue;
        if (*value)
            return set(options, i, value, (struct option_origin){ORIGIN_FILE, number}, why);
        snprintf(why, OPTIONS_WHY, "%.600s:%d: %s: has no value", file, number, name);
        return false;
    }
    snprintf(why, OPTIONS_WHY, "%.600s:%d: '%.100s': is no option that may stand in this file", file, number,
             name);
    return false;
}

/* The file's text, ended by a zero. NULL without a sentence: the usual file does not exist. Never waits, be
 * it a pipe: SIGHUP is handled between jobs. */
static char *load_file(const struct options *options, char why[OPTIONS_WHY]) {
    const char *file = config_file(options);
    why[0] = 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT && !options->config)
        return NULL;
    char *text = malloc(FILE_MAX + 1);
    ssize_t size = 0, got = fd < 0 || !text ? -1 : 1;
    while (got > 0 && size < FILE_MAX) {
        got = read(fd, text + size, (size_t)(FILE_MAX - size));
        size += got > 0 ? got : 0;
    }
    if (got < 0)
        snprintf(why, OPTIONS_WHY, "%.600s: cannot be read: %s", file, strerror(errno));
    else if (size == FILE_MAX)
        snprintf(why, OPTIONS_WHY, "%.600s: has %d bytes or more", file, FILE_MAX);
    else if (memchr(text, 0, (size_t)size))
        snprintf(why, OPTIONS_WHY, "%.600s: is not a text: it has a zero byte", file);
    else
        text[size] = 0;
    if (fd >= 0)
        close(fd);
    if (why[0]) {
        free(text);
        return NULL;
    }
    return text;
}

static bool read_file(struct options *options, char why[OPTIONS_WHY]) {
    options->text = load_file(options, why);
    int number = 0;
    for (char *line = options->text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (!read_line(options, line, ++number, why))
            return false;
    }
    return why[0] == 0;
}

static bool read_environment(struct options *options, char why[OPTIONS_WHY]) {
    char name[32];
    for (enum index i = 0; i < OPTION_COUNT; i++) {
        environment_name(name, i);
        const char *value = rows[i].where == COMMAND_LINE ? NULL : getenv(name);
        if (value && *value && !set(options, i, value, (struct option_origin){ORIGIN_ENVIRONMENT, 0}, why))
            return false;
    }
    return true;
}

/* The next option of the command line: its row; OPTION_COUNT behind the last; -1 after a message about one
 * that is none. *first: begin anew. */
static int next_option(int argc, char **argv, bool *first) {
    struct option list[OPTION_COUNT + 1] = {0};
    for (enum index i = 0; i < OPTION_COUNT; i++)
        list[i] = (struct option){rows[i].name, rows[i].argument ? required_argument : no_argument, NULL,
                                  GETOPT_FIRST + (int)i};
    if (*first)
        optind = 0;
    *first = false;
    int value = getopt_long(argc, argv, "", list, NULL);
    if (value >= GETOPT_FIRST)
        return value - GETOPT_FIRST;
    if (value < 0 && optind == argc)
        return OPTION_COUNT;
    if (value < 0)
        fprintf(stderr, "kdad: unexpected argument '%s'\n", argv[optind]);
    fprintf(stderr, "Try 'kdad --help'.\n");
    return -1;
}

static bool read_command_line(struct options *options, int argc, char **argv, char why[OPTIONS_WHY]) {
    static const struct option_origin origin = {ORIGIN_COMMAND_LINE, 0};
    bool first = true;
    int i;
    why[0] = 0;
    while ((i = next_option(argc, argv, &first)) >= 0 && i < OPTION_COUNT) {
        if (i == OPTION_QUIET) {
            options->log_level = LOG_ERROR;
            options->origin[OPTION_LOG_LEVEL] = origin;
        } else if (rows[i].read && !set(options, (enum index)i, optarg, origin, why)) {
            return false;
        }
    }
    return i >= 0;
}

/* The file is named by the command line, which has the last word all the same. */
static bool read_all(struct options *options, int argc, char **argv, char why[OPTIONS_WHY]) {
    const char *config = options->config;
    *options = defaults;
    options->config = config;
    return read_file(options, why) && read_environment(options, why) &&
           read_command_line(options, argc, argv, why);
}

/* --- what is asked for --------------------------------------------------------------------------------- */

static int check_config(const struct options *options) {
    char text[TEXT_MAX], place[700], why[PROBLEM_WHY];
    struct sockaddr_un address;
    socklen_t size;
    if (!address_resolve(options->socket, &address, &size, why)) {
        fprintf(stderr, "kdad: %s\n", why);
        return 2;
    }
    for (enum index i = 0; i < OPTION_COUNT; i++) {
        struct option_origin origin = options->origin[i];
        if (rows[i].where == COMMAND_LINE)
            continue;
        show(text, options, i);
        name_place(place, sizeof place, options, i, origin);
        if (i == OPTION_SOCKET)
            snprintf(text, sizeof text, "%s", address.sun_path);
        printf("%s%s = %s # %s\n", *text ? "" : "# ", rows[i].name, text,
               origin.from == ORIGIN_DEFAULT ? "default" : place);
    }
    return 0;
}

int options_parse(struct options *options, int argc, char **argv) {
    char why[OPTIONS_WHY];
    bool check = false, first = true;
    int i;
    *options = defaults;
    while ((i = next_option(argc, argv, &first)) != OPTION_COUNT) {
        if (i < 0)
            return 2;
        if (i == OPTION_HELP) {
            print_help();
            return 0;
        }
        if (i == OPTION_VERSION) {
            printf("kdad %s\n", KDAD_VERSION);
            return 0;
        }
        check |= i == OPTION_CHECK_CONFIG;
        if (i == OPTION_CONFIG)
            options->config = optarg;
    }
    int code = -1;
    if (!read_all(options, argc, argv, why)) {
        fprintf(stderr, "kdad: %s\n", why);
        code = 2;
    } else if (check) {
        code = check_config(options);
    }
    if (code >= 0)
        options_free(options);
    return code;
}

/* Takes over one option of those read anew, if it may change, and says what became of it. */
static void take_over(struct options *options, const struct options *fresh, enum index i) {
    char was[TEXT_MAX], is[TEXT_MAX], quoted_was[256], quoted_is[256];
    show(was, options, i);
    show(is, fresh, i);
    if (strcmp(was, is) == 0)
        return;
    log_quote(quoted_was, sizeof quoted_was, was);
    log_quote(quoted_is, sizeof quoted_is, is);
    if (rows[i].where != RELOADED) {
        log_event(LOG_WARNING, "not_reloaded",
                  "option=%s in_force=%s asked_for=%s why=\"it needs a restart\"", rows[i].name, quoted_was,
                  quoted_is);
        return;
    }
    log_event(LOG_INFO, "reloaded", "option=%s was=%s is=%s", rows[i].name, quoted_was, quoted_is);
    rows[i].read((char *)options + rows[i].at, is, rows[i].max);
}

bool options_reload(struct options *options, int argc, char **argv, char why[OPTIONS_WHY]) {
    struct options *fresh = malloc(sizeof *fresh);
    if (!fresh) {
        snprintf(why, OPTIONS_WHY, "out of memory");
        return false;
    }
    fresh->config = options->config;
    bool good = read_all(fresh, argc, argv, why);
    for (enum index i = 0; good && i < OPTION_COUNT; i++) {
        if (rows[i].where != COMMAND_LINE)
            take_over(options, fresh, i);
    }
    options_free(fresh);
    free(fresh);
    return good;
}

void options_free(struct options *options) {
    free(options->text);
    options->text = NULL;
}
