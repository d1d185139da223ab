#!/bin/sh
# test_doctor.sh BUILD SOURCE - kdactl doctor in real situations: no daemon, a stale socket, no rights on the socket or
# its directory, another user's daemon, no driver, MPS off or left behind.
set -u

kdad=$1/bin/kdad
kdactl=$1/bin/kdactl
directory=$(mktemp -d) || exit 1
text=$directory/text
daemon=
sleeper=
failed=0
privileged=0
[ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && privileged=1
# shellcheck disable=SC2317 # called by trap
clean_up() {
    [ -z "$daemon" ] || kill -9 "$daemon"
    [ -z "$sleeper" ] || kill "$sleeper"
    wait
    rm -rf "$directory"
} 2>/dev/null
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "FAILED: $*"
    cat "$text"
    failed=1
}

export KDAD_SOCKET="$directory/run/kdad.sock" CUDA_MPS_PIPE_DIRECTORY="$directory/mps"
unset XDG_RUNTIME_DIR

# look COMMAND...: what doctor says.
look() {
    "$@" doctor >"$text" 2>&1
    code=$?
}

# shellcheck disable=SC2317 # called by look
other() {
    setpriv --reuid 54321 --regid 54321 --clear-groups "$directory/kdactl" "$@"
}

# found STATE SUBJECT WORDS: it is among what was said, and the exit code says the same.
found() {
    grep -q "^$1 *$2 .*$3" "$text" || fail "it is not said that: $1 $2 $3"
    expected=0
    grep -q '^missing' "$text" && expected=1
    [ "$code" = "$expected" ] || fail "exit code $code, not $expected"
}

start() {
    mkfifo "$directory/ready" || exit 1
    "$kdad" --config /dev/null --backend cpu --threads 1 --quiet --ready-fd 3 3>"$directory/ready" &
    daemon=$!
    read -r _ <"$directory/ready" || fail "kdad does not start"
    rm "$directory/ready"
}

# --- no daemon

look "$kdactl"
found missing daemon "No daemon runs: there is no socket $KDAD_SOCKET"
found missing mps "MPS is off: no control daemon runs in $directory/mps"
if ldconfig -p | grep -q 'libcuda\.so\.1'; then
    grep -q 'There is no NVIDIA driver' "$text" && fail "a driver is there"
else
    found missing driver 'There is no NVIDIA driver: libcuda.so.1'
fi
look "$kdactl" --socket local:
found note daemon 'in each process itself'

# --- with one

start
look "$kdactl"
found well daemon "kdad .* answers on $KDAD_SOCKET"
found well user "The daemon runs as this user, .*uid $(id -u)"
"$kdactl" doctor --json >"$text" 2>&1
grep -q '"well":[[:space:]]*false' "$text" || fail "JSON: it is not well without MPS"
[ "$(grep -c '"sentence":' "$text")" = "$(grep -c '"remedy":' "$text")" ] || fail "JSON: the findings"
kill -STOP "$daemon"
look "$kdactl"
found missing daemon "does not answer"
kill -CONT "$daemon"

# --- no rights: as another user, who may see the programs

if [ "$privileged" = 1 ]; then
    cp "$kdactl" "$directory/kdactl"
    chmod 755 "$directory"
    chmod 700 "$directory/run"
    look other
    found missing daemon "uid 54321 may not use $KDAD_SOCKET: directory $directory/run belongs to root (uid 0) .* mode 0700"
    grep -q 'Only root (uid 0) and root may' "$text" || fail "who may is not said"
    chmod 755 "$directory/run"
    chmod 660 "$KDAD_SOCKET"
    chgrp 54322 "$KDAD_SOCKET"
    look other
    found missing daemon "socket $KDAD_SOCKET belongs to root (uid 0) and group 54322, mode 0660"
    grep -q 'usermod -aG 54322' "$text" || fail "how to join the group is not said"
    chmod 666 "$KDAD_SOCKET"
    look other
    found missing daemon "uid 54321 is refused by the daemon on $KDAD_SOCKET"
fi

# --- a socket that a daemon left behind

kill -9 "$daemon"
wait "$daemon" 2>/dev/null
daemon=
look "$kdactl"
found missing daemon "the socket $KDAD_SOCKET was left behind"

# --- MPS: the control daemon's process lives, or does not

mkdir "$directory/mps"
sleep 600 &
sleeper=$!
echo "$sleeper" >"$directory/mps/nvidia-cuda-mps-control.pid"
look "$kdactl"
found well mps "The MPS control daemon of $directory/mps runs, process $sleeper"
kill "$sleeper"
wait "$sleeper" 2>/dev/null
look "$kdactl"
found missing mps "process $sleeper, does not run any more"
sleeper=
if [ "$privileged" = 1 ]; then
    setpriv --reuid 54322 --regid 54322 --clear-groups sleep 600 &
    sleeper=$!
    while [ "$(stat -c %u "/proc/$sleeper")" != 54322 ]; do sleep 0.1; done
    echo "$sleeper" >"$directory/mps/nvidia-cuda-mps-control.pid"
    look other
    found missing mps "in $directory/mps runs as uid 54322, this is uid 54321"
fi
exit "$failed"
