#!/bin/sh
# Builds kdad, starts it, sends it the jobs of tests/data over its socket, compares each result with float64,
# and stops it again. Installs missing packages where it may.
set -u

# shellcheck source=tests/setup.sh
. "$(dirname "$0")/setup.sh"
set_up daemon kdactl

directory=$(mktemp -d) || exit 1
daemon=
# shellcheck disable=SC2317 # called by trap
stop() {
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null
        wait "$daemon" 2>/dev/null
    fi
    rm -rf "$directory"
}
trap stop EXIT
trap 'exit 1' HUP INT TERM

# The daemon writes a line to descriptor 3 once it serves.
mkfifo "$directory/ready" || exit 1
build/bin/kdad --socket "$directory/kdad.sock" --backend cpu --quiet --ready-fd 3 3>"$directory/ready" &
daemon=$!
if ! read -r _ <"$directory/ready"; then
    say "kdad has not started."
    exit 1
fi
echo
build/bin/kdactl --socket "$directory/kdad.sock" ping || exit 1

echo
echo "Jobs through its socket. Errors of the four results against float64 (2e-6 is allowed), and"
echo "milliseconds from submission to completion:"
echo
build/bin/kdactl --socket "$directory/kdad.sock" check tests/data/*.safetensors
result=$?
echo
build/bin/kdactl --socket "$directory/kdad.sock" status | sed -n 1,5p

kill "$daemon"
wait "$daemon"
ended=$?
if [ "$ended" -ne 0 ] || [ -e "$directory/kdad.sock" ] || kill -0 "$daemon" 2>/dev/null; then
    say "kdad has not stopped as it should (exit code $ended)."
    exit 1
fi
daemon=
echo
if [ "$result" -eq 0 ]; then
    echo "All results agree with float64. The daemon has stopped; nothing of it is left."
else
    say "Not all results agree with float64."
fi
exit "$result"
