#!/bin/sh
# test_namespaces.sh BUILD SOURCE - client and daemon in different namespaces, as containers are: the client's PID,
# IPC, mount and user namespaces are its own, or the daemon's are. Needs root, or user namespaces that may be made.
set -u

build=$1
source=$2

own='unshare --user --map-root-user --pid --fork --kill-child --ipc --mount --mount-proc'
$own true || {
    echo "skipped: no namespaces may be made here"
    exit 77
}

directory=$(mktemp -d) || exit 1
daemon=
# unshare itself ignores SIGTERM: its child is the daemon.
stop_daemon() {
    child=$(cat "/proc/$daemon/task/$daemon/children")
    child=${child%% *}
    kill "${child:-$daemon}"
    wait "$daemon"
    daemon=
}
# shellcheck disable=SC2317 # called by trap
clean_up() {
    [ -n "$daemon" ] && stop_daemon
    rm -rf "$directory"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "FAILED: $*"
    exit 1
}

# start_daemon COMMAND...: with the prefix before kdad.
start_daemon() {
    "$@" "$build/bin/kdad" --config /dev/null --backend cpu --quiet --ready-fd 3 3>"$directory/ready" &
    daemon=$!
    read -r _ <"$directory/ready" || fail "kdad does not start under: $*"
}

KDAD_SOCKET=$directory/kdad.sock
export KDAD_SOCKET
mkfifo "$directory/ready" || exit 1
case=$source/tests/data/chunk16.safetensors
pids_of_clients() {
    "$build/bin/kdactl" status --json | tr '\n' ' ' | sed 's/.*"clients"//' | grep -o '"pid":[^,]*' | tr -d '"a-z:\t '
}

start_daemon env
$own "$build/bin/kdactl" check "$case" || fail "a client in namespaces of its own"
stop_daemon

# shellcheck disable=SC2086 # words
start_daemon $own
"$build/bin/kdactl" check "$case" || fail "a client of a daemon in namespaces of its own"
[ "$(pids_of_clients)" = 0 ] || fail "the pid of a client that the daemon cannot see is $(pids_of_clients)"

# One that is killed goes, though the daemon sees no process of it.
"$build/bin/kdactl" bench >"$directory/log" &
client=$!
while [ "$(pids_of_clients | wc -l)" -lt 2 ]; do
    kill -0 "$client" || fail "kdactl bench has ended: $(cat "$directory/log")"
done
kill -9 "$client"
while [ "$(pids_of_clients | wc -l)" -gt 1 ]; do
    sleep 0.1
done
stop_daemon
