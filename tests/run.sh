#!/bin/sh
# Builds kdad and runs its tests; with --full the benchmarks too. Installs missing packages where it may.
# Further arguments are ctest's.
set -u

full=
if [ "${1:-}" = --full ]; then
    full=1
    shift
fi

# shellcheck source=tests/setup.sh
. "$(dirname "$0")/setup.sh"
set_up all

if [ -n "$full" ]; then
    exec ctest --test-dir build --output-on-failure --parallel "$(nproc)" "$@"
fi
exec ctest --test-dir build --output-on-failure --parallel "$(nproc)" --label-exclude bench "$@"
