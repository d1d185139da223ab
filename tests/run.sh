#!/bin/sh
# Builds kdad and runs its tests. Installs missing packages where it may. With --full, which takes half an hour, the
# benchmarks too, all points of tests/fault, tests/soak for five minutes, the socket tests under valgrind, and
# cppcheck. Further arguments are ctest's.
set -u

full=
if [ "${1:-}" = --full ]; then
    full=1
    shift
fi

# shellcheck source=tests/setup.sh
. "$(dirname "$0")/setup.sh"
set_up all

if [ -z "$full" ]; then
    exec ctest --test-dir build --output-on-failure --parallel "$(nproc)" --label-exclude bench "$@"
fi

failed=0
# step NAME COMMAND...
step() {
    name=$1
    shift
    say "==== $name"
    "$@" </dev/null || {
        say "FAILED: $name"
        failed=1
    }
}

# has_tool NAME: installed, or can be.
has_tool() {
    has "$1" || { may_install && install_packages "$1"; } || {
        say "SKIPPED: $1 is not there"
        false
    }
}

# valgrind_on NAME COMMAND...: and what it starts. One that leaks or errs ends with 99.
# shellcheck disable=SC2317 # called by step
valgrind_on() {
    logs=build/valgrind-$1
    shift
    CK_TIMEOUT_MULTIPLIER=20 valgrind --quiet --trace-children=yes '--trace-children-skip=/bin/*,/usr/bin/*' \
        --leak-check=full --error-exitcode=99 --log-file="$logs.%p.log" "$@" || [ $? -eq 77 ] || {
        grep -h -v -E 'WARNING: unhandled|You may be able|Read the file|Nevertheless we|It is at http' "$logs".*.log
        return 1
    }
    rm -f "$logs".*.log
}

# Those of the socket tests that do not count on speed or on the system's limits.
# shellcheck disable=SC2317 # called by step
under_valgrind() {
    for test in limits local status users; do
        valgrind_on "$test" "build/tests/socket_$test" || return 1
    done
}

# shellcheck disable=SC2317 # called by step
# autoVariables: who waits for a stream is listed in it, and takes itself off before it returns.
# compareBoolExpressionWithInt: loops over false, and perhaps true.
check_with_cppcheck() {
    cppcheck --quiet --std=c11 --enable=warning,performance --error-exitcode=1 -I. -D_GNU_SOURCE \
        --suppress=autoVariables:client/stream.c --suppress=compareBoolExpressionWithInt \
        proto client daemon kernels/*.c kernels/cpu
}

KDAD_FULL=1
export KDAD_FULL
step 'tests and benchmarks' ctest --test-dir build --output-on-failure --parallel "$(nproc)" "$@"
step 'soak' build/tests/soak 300
has_tool valgrind && step 'valgrind' under_valgrind
has_tool cppcheck && step 'cppcheck' check_with_cppcheck
exit "$failed"
