/*
 * main.c - kdactl: looks at a daemon, and sends it jobs from files.
 *
 * Whatever --spawn started and whatever file is half written is undone at the end, a signal included.
 */
#include "client/deadline.h"
#include "client/kdactl/kdactl.h"
#include "client/kdactl/output.h"
#include "client/kdactl/spawn.h"
#include "client/kdactl/terminal.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "Usage: kdactl [OPTION]... COMMAND [ARGUMENT]...\n"
    "Look at a running kdad, and send it KDA intra-chunk backward jobs from safetensors files.\n"
    "\n"
    "  run IN OUT             compute the job in file IN; write dq, dk, db and dg (float32) to file OUT\n"
    "  run --out-dir DIR IN...\n"
    "                         the same for many files; DIR, made if it is missing, gets one of each name\n"
    "  check CASE...          compute each case, compare with the float64 results ref.dq, ref.dk, ref.db "
    "and\n"
    "                         ref.dg in its file, and print the errors; the answer is no if one is above "
    "2e-6\n"
    "  status [--json]        what the daemon does, and for whom\n"
    "  top [--once] [--seconds N]\n"
    "                         clients and their jobs, as they go; q leaves it\n"
    "  trace FILE [--seconds N]\n"
    "                         the jobs of the next seconds, for Perfetto or chrome://tracing\n"
    "  kill PID [--seconds N]\n"
    "                         end a client, and nobody else: under MPS its work on the GPU first\n"
    "  doctor [--json]        what is missing for the fast path, and how to turn it on\n"
    "  metrics [--output FILE]\n"
    "                         the same for Prometheus: to a file that appears whole, or standard output\n"
    "  ping                   connect, and tell the daemon's version and how long it took\n"
    "  bench [--json] [--backend cpu|cuda] [--quick]\n"
    "                         time jobs through the daemon, against the same in a client's process\n"
    "\n"
    "  --socket PATH          the daemon's socket; default $KDAD_SOCKET, else\n"
    "                         $XDG_RUNTIME_DIR/kdad/kdad.sock, else /run/kdad/kdad.sock\n"
    "  --spawn                start a private kdad (cpu backend, but see --backend) for this one call\n"
    "  --json                 print JSON\n"
    "  --out-dir DIR          see run\n"
    "  --output FILE          see metrics\n"
    "  --once                 see top: print once, and end\n"
    "  --seconds N            see top: between two looks; default 1. See trace: how long; default 5.\n"
    "                         See kill: between SIGTERM and SIGKILL; default 5\n"
    "  --backend NAME         see bench: where the jobs are, cpu or cuda; with --spawn, the private kdad's\n"
    "                         too; default what the daemon has\n"
    "  --quick                see bench: fewer of everything, for a first look\n"
    "  --version              print the version\n"
    "  --help                 print this\n"
    "\n"
    "A file of a job has q, k, g, beta, dAqk, dAkk, dq, dk, db, dg and perhaps cu_seqlens, and in its "
    "metadata\n"
    "chunk_size (else it is dAqk's last dimension) and perhaps safe_gate.\n"
    "\n"
    "Exit codes: 0 done; 1 the answer is no; 2 wrong usage or a bad file; 3 no daemon.\n";

/* Options that only some commands take. */
enum {
    TAKES_JSON = 1,
    TAKES_OUT_DIR = 2,
    TAKES_OUTPUT = 4,
    TAKES_ONCE = 8,
    TAKES_SECONDS = 16,
    TAKES_BACKEND = 32,
    TAKES_QUICK = 64,
};

static const struct {
    unsigned bit;
    const char *name;
} special[] = {
    {TAKES_JSON, "--json"},   {TAKES_OUT_DIR, "--out-dir"}, {TAKES_OUTPUT, "--output"},
    {TAKES_ONCE, "--once"},   {TAKES_SECONDS, "--seconds"}, {TAKES_BACKEND, "--backend"},
    {TAKES_QUICK, "--quick"},
};

static const struct command {
    const char *name;
    enum exit_code (*run)(const struct options *);
    unsigned takes;
    int least, most; /* arguments; most -1: any number */
} commands[] = {
    {"run", command_run, TAKES_OUT_DIR, 1, -1},
    {"check", command_check, 0, 1, -1},
    {"status", command_status, TAKES_JSON, 0, 0},
    {"top", command_top, TAKES_ONCE | TAKES_SECONDS, 0, 0},
    {"trace", command_trace, TAKES_SECONDS, 1, 1},
    {"doctor", command_doctor, TAKES_JSON, 0, 0},
    {"kill", command_kill, TAKES_SECONDS, 1, 1},
    {"metrics", command_metrics, TAKES_OUTPUT, 0, 0},
    {"ping", command_ping, 0, 0, 0},
    {"bench", command_bench, TAKES_JSON | TAKES_BACKEND | TAKES_QUICK, 0, 0},
};

enum {
    OPTION_SOCKET = 1,
    OPTION_SPAWN,
    OPTION_JSON,
    OPTION_OUT_DIR,
    OPTION_OUTPUT,
    OPTION_ONCE,
    OPTION_SECONDS,
    OPTION_BACKEND,
    OPTION_QUICK,
    OPTION_VERSION,
    OPTION_HELP,
};

static const struct option table[] = {
    {"socket", required_argument, NULL, OPTION_SOCKET},
    {"spawn", no_argument, NULL, OPTION_SPAWN},
    {"json", no_argument, NULL, OPTION_JSON},
    {"out-dir", required_argument, NULL, OPTION_OUT_DIR},
    {"output", required_argument, NULL, OPTION_OUTPUT},
    {"once", no_argument, NULL, OPTION_ONCE},
    {"seconds", required_argument, NULL, OPTION_SECONDS},
    {"backend", required_argument, NULL, OPTION_BACKEND},
    {"quick", no_argument, NULL, OPTION_QUICK},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"help", no_argument, NULL, OPTION_HELP},
    {NULL, 0, NULL, 0},
};

void complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("kdactl: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

enum exit_code exit_code_of(kdad_status status) {
    switch (status) {
    case KDAD_OK:
        return EXIT_DONE;
    case KDAD_INVALID:
    case KDAD_BAD_DATA:
        return EXIT_BAD_INPUT;
    case KDAD_NO_DAEMON:
    case KDAD_DAEMON_LOST:
    case KDAD_TIMEOUT:
        return EXIT_NO_DAEMON;
    default:
        return EXIT_NO;
    }
}

enum exit_code graver(enum exit_code a, enum exit_code b) {
    return a > b ? a : b;
}

enum exit_code complain_of_library(const char *about, kdad_status status) {
    if (about)
        complain("%s: %s", about, kdad_error());
    else
        complain("%s", kdad_error());
    return exit_code_of(status);
}

enum exit_code open_connection(const struct options *options, struct kdad_connection **connection) {
    kdad_status status = kdad_connect(options->socket, KDAD_DEFAULT_TIMEOUT, connection);
    return status == KDAD_OK ? EXIT_DONE : complain_of_library(NULL, status);
}

enum exit_code open_stream(const struct options *options, struct kdad_connection **connection,
                           struct kdad_stream **stream) {
    enum exit_code code = open_connection(options, connection);
    if (code != EXIT_DONE)
        return code;
    kdad_status status = kdad_stream_open(*connection, "cpu", stream); /* where kdad_alloc's memory is */
    if (status == KDAD_OK)
        return EXIT_DONE;
    code = complain_of_library(NULL, status);
    kdad_disconnect(*connection);
    return code;
}

/* The library's threads take no signals: this runs on the main thread. */
static void on_signal(int number) {
    int before = errno;
    terminal_leave();
    output_abandon();
    spawn_stop();
    signal(number, SIG_DFL);
    raise(number); /* and it ends when this returns */
    errno = before;
}

static void catch_signals(void) {
    static const int numbers[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM};
    struct sigaction action = {.sa_handler = on_signal};
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}

static enum exit_code wrong_usage(void) {
    fputs("Try 'kdactl --help'.\n", stderr);
    return EXIT_BAD_INPUT;
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static bool parse_seconds(const char *text, double *seconds) {
    char *end;
    *seconds = strtod(text, &end);
    if (*end == '\0' && end != text && *seconds >= 0.1 && *seconds <= 3600)
        return true;
    complain("--seconds is '%s', but must be a number from 0.1 to 3600", text);
    return false;
}

static bool parse_backend(const char *text, const char **backend) {
    *backend = text;
    if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0)
        return true;
    complain("--backend is '%s', but must be cpu or cuda", text);
    return false;
}

/* The first of several. */
static const char *name_of_option(unsigned bits) {
    size_t i = 0;
    while (!(special[i].bit & bits))
        i++;
    return special[i].name;
}

/* Returns the command, or NULL with an exit code. */
static const struct command *parse(int argc, char **argv, struct options *options, enum exit_code *code) {
    unsigned given = 0;
    *code = EXIT_DONE;
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case OPTION_SOCKET:
            options->socket = optarg;
            break;
        case OPTION_SPAWN:
            options->spawn = true;
            break;
        case OPTION_JSON:
            options->json = true;
            given |= TAKES_JSON;
            break;
        case OPTION_OUT_DIR:
            options->out_dir = optarg;
            given |= TAKES_OUT_DIR;
            break;
        case OPTION_OUTPUT:
            options->output = optarg;
            given |= TAKES_OUTPUT;
            break;
        case OPTION_ONCE:
            options->once = true;
            given |= TAKES_ONCE;
            break;
        case OPTION_SECONDS:
            if (!parse_seconds(optarg, &options->seconds)) {
                *code = wrong_usage();
                return NULL;
            }
            given |= TAKES_SECONDS;
            break;
        case OPTION_BACKEND:
            if (!parse_backend(optarg, &options->backend)) {
                *code = wrong_usage();
                return NULL;
            }
            given |= TAKES_BACKEND;
            break;
        case OPTION_QUICK:
            options->quick = true;
            given |= TAKES_QUICK;
            break;
        case OPTION_VERSION:
            printf("kdactl %s\n", KDAD_VERSION);
            return NULL;
        case OPTION_HELP:
            fputs(help, stdout);
            return NULL;
        default:
            *code = wrong_usage();
            return NULL;
        }
    }
    *code = EXIT_BAD_INPUT;
    const struct command *command = optind < argc ? find_command(argv[optind]) : NULL;
    if (optind == argc)
        complain("a command is missing");
    else if (!command)
        complain("there is no command '%s'", argv[optind]);
    options->arguments = argv + optind + 1;
    options->count = argc - optind - 1;
    if (command && (given & ~command->takes)) {
        complain("%s takes no %s", command->name, name_of_option(given & ~command->takes));
        command = NULL;
    } else if (command && options->spawn && options->socket) {
        complain("--spawn starts a daemon on a socket of its own: it goes with no --socket");
        command = NULL;
    } else if (command && options->count < command->least) {
        complain("%s: an argument is missing", command->name);
        command = NULL;
    } else if (command && command->most >= 0 && options->count > command->most) {
        complain("%s: unexpected argument '%s'", command->name, options->arguments[command->most]);
        command = NULL;
    }
    if (!command)
        wrong_usage();
    return command;
}

int main(int argc, char **argv) {
    struct options options = {0};
    enum exit_code code;
    const struct command *command = parse(argc, argv, &options, &code);
    if (!command)
        return code;
    catch_signals();
    if (options.spawn) {
        const int64_t start = deadline_now();
        options.socket = spawn_start(options.backend ? options.backend : "cpu");
        if (!options.socket)
            return EXIT_NO_DAEMON;
        options.spawn_ms = (double)(deadline_now() - start) / 1e6;
    }
    code = command->run(&options);
    spawn_stop();
    if (fflush(stdout) != 0 || ferror(stdout)) {
        complain("standard output cannot be written");
        code = graver(code, EXIT_NO);
    }
    return code;
}
