#include "daemon/options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: kdad [OPTION]...\n"
    "Serve KDA intra-chunk backward jobs to the processes of this host.\n"
    "\n"
    "  --socket PATH      listen here; default $KDAD_SOCKET, else\n"
    "                     $XDG_RUNTIME_DIR/kdad/kdad.sock, else /run/kdad/kdad.sock\n"
    "  --backend NAME     auto, cpu or cuda; default auto\n"
    "  --threads N        threads of the cpu backend; default: one for each processor\n"
    "  --log-level LEVEL  error, warning, info or debug; default info\n"
    "  --quiet            the same as --log-level error\n"
    "  --ready-fd N       write one byte to descriptor N once the socket is served\n"
    "  --version          print the version\n"
    "  --help             print this\n"
    "\n"
    "SIGTERM and SIGINT stop it: running jobs finish, queued ones are cancelled.\n"
    "Exit codes: 0 stopped when asked, 1 could not start or go on, 2 wrong usage.\n";

enum {
    OPTION_SOCKET = 1,
    OPTION_BACKEND,
    OPTION_THREADS,
    OPTION_LOG_LEVEL,
    OPTION_QUIET,
    OPTION_READY_FD,
    OPTION_VERSION,
    OPTION_HELP
};

static const struct option table[] = {
    {"socket", required_argument, NULL, OPTION_SOCKET},
    {"backend", required_argument, NULL, OPTION_BACKEND},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
    {"quiet", no_argument, NULL, OPTION_QUIET},
    {"ready-fd", required_argument, NULL, OPTION_READY_FD},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"help", no_argument, NULL, OPTION_HELP},
    {NULL, 0, NULL, 0},
};

static int wrong(const char *option, const char *value, const char *expected) {
    fprintf(stderr, "kdad: --%s: is '%s', but must be %s\n", option, value, expected);
    return 2;
}

static bool parse_number(const char *text, int max, int *number) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > max)
        return false;
    *number = (int)value;
    return true;
}

int options_parse(struct options *options, int argc, char **argv) {
    *options = (struct options){.backend = "auto", .ready_fd = -1, .log_level = LOG_INFO};
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1) {
        switch (option) {
        case OPTION_SOCKET:
            options->socket = optarg;
            break;
        case OPTION_BACKEND:
            if (strcmp(optarg, "auto") != 0 && strcmp(optarg, "cpu") != 0 && strcmp(optarg, "cuda") != 0)
                return wrong("backend", optarg, "auto, cpu or cuda");
            options->backend = optarg;
            break;
        case OPTION_THREADS:
            if (!parse_number(optarg, 4096, &options->threads))
                return wrong("threads", optarg, "a number from 0 to 4096");
            break;
        case OPTION_LOG_LEVEL:
            if (!log_level_parse(optarg, &options->log_level))
                return wrong("log-level", optarg, "error, warning, info or debug");
            break;
        case OPTION_QUIET:
            options->log_level = LOG_ERROR;
            break;
        case OPTION_READY_FD:
            if (!parse_number(optarg, INT_MAX, &options->ready_fd))
                return wrong("ready-fd", optarg, "a descriptor's number");
            break;
        case OPTION_VERSION:
            printf("kdad %s\n", KDAD_VERSION);
            return 0;
        case OPTION_HELP:
            fputs(help, stdout);
            return 0;
        default:
            fprintf(stderr, "Try 'kdad --help'.\n");
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "kdad: unexpected argument '%s'\nTry 'kdad --help'.\n", argv[optind]);
        return 2;
    }
    return -1;
}
