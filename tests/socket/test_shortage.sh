#!/bin/sh
# test_shortage.sh BUILD SOURCE - a full /dev/shm, and a client whose memory cgroup is small: what kdad shares lies in
# memfds, for which /dev/shm does not matter; a client beyond its cgroup ends alone, and the daemon serves the next.
# Each part is skipped where it may not be set up; both are: 77.
set -u

build=$1
source=$2

directory=$(mktemp -d) || exit 1
daemon=
group=
# shellcheck disable=SC2317 # called by trap
clean_up() {
    [ -n "$daemon" ] && kill "$daemon" && wait "$daemon"
    [ -n "$group" ] && rmdir "$group"
    rm -rf "$directory"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "FAILED: $*"
    exit 1
}

KDAD_SOCKET=$directory/kdad.sock
export KDAD_SOCKET
case=$source/tests/data/chunk16.safetensors
done=0

# --- a full /dev/shm ---

# shellcheck disable=SC2016 # it is the inner shell's
full='mount -t tmpfs -o size=64k none /dev/shm && { head -c 1M /dev/zero >/dev/shm/full; [ "$(stat -f -c %a /dev/shm)" = 0 ]; }'
if unshare --mount true 2>/dev/null && unshare --mount sh -c "$full" 2>/dev/null; then
    # shellcheck disable=SC2016 # it is the inner shell's
    unshare --mount sh -c "$full 2>/dev/null"' && exec "$0" --spawn check "$1"' "$build/bin/kdactl" "$case" ||
        fail "a job with a full /dev/shm"
    done=$((done + 1))
else
    echo "skipped: /dev/shm cannot be mounted anew here"
fi

# --- a small memory cgroup ---

# Of version 2, or 1.
make_group() {
    for root in /sys/fs/cgroup /sys/fs/cgroup/memory; do
        group=$root/kdad-test-$$
        mkdir "$group" 2>/dev/null || continue
        for limit in memory.max memory.limit_in_bytes; do
            if [ -e "$group/$limit" ] && echo 48M >"$group/$limit"; then
                echo 0 >"$group/memory.swap.max"
                return 0
            fi
        done 2>/dev/null
        rmdir "$group"
    done
    group=
    return 1
}

count() {
    "$build/bin/kdactl" status --json | sed -n "s/^\t\"$1\":\t*\([0-9]*\),*$/\1/p" | head -n 1
}

if make_group; then
    mkfifo "$directory/ready" || exit 1
    "$build/bin/kdad" --config /dev/null --backend cpu --quiet --ready-fd 3 3>"$directory/ready" &
    daemon=$!
    read -r _ <"$directory/ready" || fail "kdad does not start"
    # shellcheck disable=SC2016 # it is the inner shell's
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$build/bin/kdactl" check "$case" ||
        fail "a small job in a small cgroup"
    # shellcheck disable=SC2016 # it is the inner shell's
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$build/bin/kdactl" bench \
        >"$directory/log" 2>&1
    ended=$?
    # The kernel kills it, or says no.
    [ "$ended" -eq 137 ] || grep -q 'memory: ' "$directory/log" ||
        fail "jobs of more memory than their cgroup has end with $ended: $(cat "$directory/log")"
    kill -0 "$daemon" || fail "the daemon ended with its client"
    tries=0
    while [ "$(count buffers)" != 0 ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || fail "$(count buffers) buffers of the client that ended are left"
        sleep 0.1
    done
    "$build/bin/kdactl" check "$case" || fail "a job afterwards"
    done=$((done + 1))
else
    echo "skipped: no memory cgroup may be made here"
fi

[ "$done" -gt 0 ] || exit 77
