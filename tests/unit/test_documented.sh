#!/bin/sh
# test_documented.sh BUILD SOURCE - the manual pages and the shells' completions have what the programs, the
# header and the sources have: options and their defaults, commands, fields of the status, environment variables, functions and
# status codes. Both ways: nothing is missing, and nothing is there that does not exist.
set -u

build=$1
man=$2/man
header=$2/client/kdad.h
completion=$2/completion
cd "$2" || exit 1
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
true=$directory/true
said=$directory/said
failed=0

# same WHAT: the words in the files $true and $said are the same set, and not an empty one.
same() {
    sort -u -o "$true" "$true"
    sort -u -o "$said" "$said"
    if ! diff "$true" "$said" || ! [ -s "$true" ]; then
        echo "FAILED: $1: what is true (<) and what is said (>) differ, or there is nothing"
        failed=1
    fi
}

# The words in bold that begin a line of a page's section, and those behind them and a comma.
entries() {
    awk -v heading="# $2" '/^# /{in_section = $0 == heading; next} in_section' "$man/$1" |
        grep -e '^\*' | sed 's/^/, /' | grep -o -e ', \*[^* ]*\*' | tr -d ', *'
}

options() {
    "$build/bin/$1" --help | grep -o -e '--[a-z][a-z-]*'
}

commands() {
    "$build/bin/$1" --help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p'
}

# bash_completes PROGRAM WORD...: what bash offers for the last word.
bash_completes() {
    # shellcheck disable=SC2016 # it is bash's
    bash -c 'source "$0/$1.bash"
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        "_$1"
        printf "%s\n" "${COMPREPLY[@]}"' "$completion" "$@"
}

# environment FILE...: the variables that the sources read.
environment() {
    grep -rho --include='*.c' 'getenv("[A-Z_]*")' "$@" | grep -o '[A-Z_][A-Z_]*'
}

for program in kdad kdactl; do
    options "$program" >"$true"
    entries "$program.1.scd" OPTIONS >"$said"
    same "options in $program.1"
    grep -o -e '--[a-z][a-z-]*\[' "$completion/_$program" | tr -d '[' >"$said"
    same "options in zsh's completion of $program"
    bash_completes "$program" - >"$said"
    same "options in bash's completion of $program"
done

env -i "$build/bin/kdad" --check-config --config /dev/null | sed 's/^# //; s/ *# default$//' >"$true"
sed -n 's/^\*\([a-z-]*\)\* =/\1 =/p' "$man/kdad.conf.5.scd" | tr -d '_' >"$said"
same "options and their defaults in kdad.conf.5"

commands kdactl >"$true"
entries kdactl.1.scd COMMANDS >"$said"
same "commands in kdactl.1"
sed -n "s/^    '\([a-z]*\):.*/\1/p" "$completion/_kdactl" >"$said"
same "commands in zsh's completion of kdactl"
bash_completes kdactl '' >"$said"
same "commands in bash's completion of kdactl"

"$build/bin/kdactl" --spawn status --json | grep -o '"[a-z_0-9]*":' | tr -d '":' >"$true"
entries kdactl.1.scd STATUS >"$said"
same "fields of the status in kdactl.1"

"$build/bin/kdactl" --spawn bench --quick --json | sed -n 's/^\t"\([a-z_]*\)":.*/\1/p' >"$true"
entries kdactl.1.scd 'FIGURES OF BENCH' >"$said"
same "figures of bench in kdactl.1"

"$build/bin/kdactl" --spawn metrics | sed -n 's/^# TYPE \([a-z_]*\) .*/\1/p' >"$true"
entries kdactl.1.scd METRICS >"$said"
same "metrics in kdactl.1"

# libsystemd and the CUDA driver read some that no getenv of the sources shows.
{
    environment daemon proto kernels
    printf '%s\n' LISTEN_FDS LISTEN_PID NOTIFY_SOCKET WATCHDOG_USEC WATCHDOG_PID CUDA_VISIBLE_DEVICES CUDA_MPS_PIPE_DIRECTORY
} >"$true"
entries kdad.1.scd ENVIRONMENT >"$said"
same "environment in kdad.1"
environment client proto >"$true"
entries kdactl.1.scd ENVIRONMENT >"$said"
same "environment in kdactl.1"
environment client/*.c proto >"$true"
entries kdad.h.3.scd ENVIRONMENT >"$said"
same "environment in kdad.h.3"

functions='kdad_[a-z0-9_]*('
tr '\n' ' ' <"$header" | grep -o -e 'KDAD_API [^;(]*(' -e 'static inline [^;(]*(' | grep -o "$functions" >"$true"
tr -d '*' <"$man/kdad.h.3.scd" | grep -o "$functions)" | tr -d ')' >"$said"
same "functions in the text of kdad.h.3"
grep '^[a-z].*(' "$man/kdad.h.3.scd" | grep -o "$functions" >"$said"
same "functions in the synopsis of kdad.h.3"

sed -n '/^typedef enum kdad_status {/,/^}/p' "$header" | grep -o '^ *KDAD_[A-Z_]*' | tr -d ' ' >"$true"
entries kdad.h.3.scd 'RETURN VALUE' >"$said"
same "status codes in kdad.h.3"
exit "$failed"
