#!/bin/sh
# test_units.sh BUILD SOURCE - systemd's units: its own checker finds nothing to complain of, their sandbox is as tight as
# CUDA allows, and the command line of kdad.service serves a socket that is handed over, from the first connection on.
set -u

build=$1
source=$2
for program in systemd-analyze systemd-socket-activate; do
    if ! command -v "$program" >/dev/null; then
        echo "skipped: there is no $program (Debian has it in systemd)"
        exit 77
    fi
done
if [ ! -e "$build/systemd/kdad.service" ]; then
    echo "skipped: this build has no libsystemd, so it has no units"
    exit 77
fi

directory=$(mktemp -d) || exit 1
daemon=
# shellcheck disable=SC2317 # called by trap
clean_up() {
    if [ -n "$daemon" ]; then
        kill -9 "$daemon"
        wait "$daemon"
    fi
    rm -rf "$directory"
} 2>/dev/null
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

failed=0
fail() {
    echo "FAILED: $*"
    failed=1
}

# The units as they are installed, but with programs that exist here.
mkdir -p "$directory/system" "$directory/user" "$directory/bin"
ln -s "$build/bin/kdad" "$directory/bin/kdad"
printf '#!/bin/sh\n' >"$directory/bin/nvidia-cuda-mps-control"
chmod +x "$directory/bin/nvidia-cuda-mps-control"
for unit in "$build/systemd" "$source/systemd" "$build/systemd/user" "$source/systemd/user"; do
    case $unit in
    */user) to=$directory/user ;;
    *) to=$directory/system ;;
    esac
    for file in "$unit"/*.service "$unit"/*.socket; do
        [ -e "$file" ] || continue
        sed "s#^\(Exec[A-Za-z]*=\)/[^ ]*/\(kdad\|nvidia-cuda-mps-control\)#\1$directory/bin/\2#" "$file" \
            >"$to/$(basename "$file")"
    done
done
grep -q "^ExecStart=$directory/bin/kdad$" "$directory/system/kdad.service" || fail "kdad.service has another command"

# verify ARGUMENT...: nothing is said of the units, and nothing is wrong.
verify() {
    systemd-analyze verify --recursive-errors=no --man=no "$@" >"$directory/said" 2>&1 || fail "systemd-analyze verify $*"
    if [ -s "$directory/said" ]; then
        cat "$directory/said"
        fail "systemd-analyze verify has something to say"
    fi
}

gpu=GPU-01234567-89ab-cdef-0123-456789abcdef
export SYSTEMD_UNIT_PATH="$directory/system:"
verify "$directory/system/kdad.service" "$directory/system/kdad.socket" "$directory/system/kdad-mps.service" \
    "$directory/system/kdad@$gpu.service" "$directory/system/kdad@$gpu.socket"
mkdir -m 0700 "$directory/runtime"
export SYSTEMD_UNIT_PATH="$directory/user:"
XDG_RUNTIME_DIR=$directory/runtime verify --user "$directory/user/kdad.service" "$directory/user/kdad.socket" \
    "$directory/user/kdad-mps.service"

# Exposure in tenths, from 0 to 100.
for unit in kdad.service kdad@.service; do
    systemd-analyze security --offline=yes --threshold=15 --no-pager "$directory/system/$unit" >"$directory/said" 2>&1 || {
        cat "$directory/said"
        fail "$unit is exposed"
    }
done

# --- a socket that is handed over

command=$(sed -n 's/^ExecStart=//p' "$directory/system/kdad.service")
export KDAD_SOCKET="$directory/kdad.sock" KDAD_BACKEND=cpu KDAD_LOG_LEVEL=error
# shellcheck disable=SC2086 # words of a command line
env -i KDAD_BACKEND=cpu KDAD_LOG_LEVEL=error systemd-socket-activate --seqpacket --listen "$KDAD_SOCKET" \
    --setenv=KDAD_BACKEND --setenv=KDAD_LOG_LEVEL $command >"$directory/said" 2>&1 &
daemon=$!
while [ ! -S "$KDAD_SOCKET" ]; do
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.05
done
[ "$(cat "/proc/$daemon/comm")" = kdad ] && fail "kdad runs before anybody connects"
"$build/bin/kdactl" check "$source/tests/data/chunk16.safetensors" || fail "the first connection is not served"
[ "$(cat "/proc/$daemon/comm")" = kdad ] || fail "another process serves than the one that was started"
"$build/bin/kdactl" ping || fail "nor is the second"
kill "$daemon"
wait "$daemon" || fail "kdad ends with $?"
daemon=
[ -S "$KDAD_SOCKET" ] || fail "the socket is not kdad's to remove"
[ "$failed" = 0 ] || cat "$directory/said"
exit "$failed"
