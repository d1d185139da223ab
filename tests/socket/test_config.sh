#!/bin/sh
# test_config.sh BUILD SOURCE - options from the command line, the environment and the file: which one has the
# word, what is said about wrong ones, and what SIGHUP changes in a daemon that runs.
set -u

kdad=$1/bin/kdad
directory=$(mktemp -d) || exit 1
file=$directory/kdad.conf
daemon=
failed=0
# shellcheck disable=SC2317 # called by trap
clean_up() {
    [ -z "$daemon" ] || kill "$daemon"
    wait
    rm -rf "$directory"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "FAILED: $*"
    failed=1
}

# has OPTION VALUE [ARGUMENT...]: the option's value in force.
has() {
    option=$1
    value=$2
    shift 2
    said=$("$kdad" --config "$file" --check-config "$@" | sed -n "s/^#* *$option = \(.*\) #.*/\1/p")
    [ "$said" = "$value" ] || fail "$option is '$said', not '$value'"
}

# wrong SENTENCE [ARGUMENT...]: kdad ends with 2 and says so, alone and under --check-config.
wrong() {
    sentence=$1
    shift
    for check in --check-config --quiet; do
        said=$("$kdad" --config "$file" "$check" "$@" 2>&1)
        code=$?
        [ "$code" = 2 ] || fail "exit code $code, not 2: $sentence"
        [ "$said" = "kdad: $sentence" ] || fail "said '$said', not '$sentence'"
    done
}

# --- the order of the sources

cat >"$file" <<END
# a comment, and blanks

   threads   =  3	# three
max-bytes = 1536M
max-jobs = 5
device = 0, 1
device = GPU-01234567-89ab-cdef-0123-456789abcdef
socket = /run/a b.sock
END
has threads 3
has max-bytes 1536M
has max-streams 2048
has device 0,1,GPU-01234567-89ab-cdef-0123-456789abcdef
has socket '/run/a b.sock'
export KDAD_MAX_JOBS=6 KDAD_DEVICE=2 KDAD_LOG_LEVEL=
has max-jobs 6
has device 2
has log-level info
has max-jobs 7 --max-jobs 7
has device 3,4,5 --device 3,4 --device 5
has log-level error --quiet
unset KDAD_MAX_JOBS KDAD_DEVICE KDAD_LOG_LEVEL

# What is printed is a file with the same options.
"$kdad" --config "$file" --check-config | sed 's/ #.*//' >"$directory/printed"
"$kdad" --config "$directory/printed" --check-config | sed 's/ #.*//' | diff "$directory/printed" - ||
    fail "the options read from what --check-config printed"

# --- what is wrong, and where

bad() {
    printf '# first\n%s\n' "$1" >"$file"
    wrong "$2"
}
bad 'thread = 3' "$file:2: 'thread': is no option that may stand in this file"
bad 'config = /x' "$file:2: 'config': is no option that may stand in this file"
bad 'threads' "$file:2: 'threads': is not of the form name = value"
bad 'threads =' "$file:2: threads: has no value"
bad 'threads = 4097' "$file:2: threads: is '4097', but must be a number from 0 to 4096"
bad 'threads = -1' "$file:2: threads: is '-1', but must be a number from 0 to 4096"
bad 'threads = 1 2' "$file:2: threads: is '1 2', but must be a number from 0 to 4096"
bad 'backend = gpu' "$file:2: backend: is 'gpu', but must be auto, cpu or cuda"
bad 'max-jobs = 0' "$file:2: max-jobs: is '0', but must be a number from 1 to 16777216"
size='a number of bytes from 1 to 2^60, perhaps with K, M, G or T behind it'
bad 'max-bytes = 2000000T' "$file:2: max-bytes: is '2000000T', but must be $size"
bad 'max-bytes = 1GB' "$file:2: max-bytes: is '1GB', but must be $size"
gpus='GPUs by index or by UUID (GPU-… or MIG-…, in full), with commas, at most 64'
bad 'device = 0,,1' "$file:2: device: is '0,,1', but must be $gpus"
bad 'device = GPU-0' "$file:2: device: is 'GPU-0', but must be $gpus"
printf 'threads = 1\n\nthreads = 2' >"$file"
wrong "$file:3: threads: line 1 has it already"
printf 'threads = 1\0\n' >"$file"
wrong "$file: is not a text: it has a zero byte"
head -c 65536 /dev/zero | tr '\0' '#' >"$file"
wrong "$file: has 65536 bytes or more"
rm "$file"
wrong "$file: cannot be read: No such file or directory"
mkdir "$file"
wrong "$file: cannot be read: Is a directory"
rmdir "$file"
: >"$file"
wrong "--threads: is 'x', but must be a number from 0 to 4096" --threads x
export KDAD_THREADS=x
wrong "KDAD_THREADS: is 'x', but must be a number from 0 to 4096" --threads 1
unset KDAD_THREADS
KDAD_SOCKET=$(head -c 108 /dev/zero | tr '\0' s) "$kdad" --config "$file" --check-config 2>&1 |
    grep -q '^kdad: socket: path has 108 bytes, but may have at most 107$' || fail "a socket's path of 108 bytes"

# --- SIGHUP

# logged PATTERN: waits until the log has such a line.
logged() {
    for _ in $(seq 600); do
        grep -q "$1" "$directory/log" && return
        sleep 0.1
    done
    cat "$directory/log"
    fail "the log has no '$1' after 60 s"
}

echo 'max-jobs = 10' >"$file"
mkfifo "$directory/ready" || exit 1
"$kdad" --config "$file" --socket "$directory/kdad.sock" --backend cpu --threads 1 --ready-fd 3 \
    3>"$directory/ready" 2>"$directory/log" &
daemon=$!
read -r _ <"$directory/ready" || fail "kdad does not start"
printf 'max-jobs = 20\nbackend = auto\nthreads = 2\nsocket = /run/other\n' >"$file"
kill -HUP "$daemon"
logged '^level=info event=reloaded option=max-jobs was="10" is="20"$'
echo 'max-jobs = none' >"$file"
kill -HUP "$daemon"
logged "^level=error event=reload_failed why=\"$file:1: max-jobs: is 'none', but must be"
printf 'max-jobs = 20\nlog-level = debug\ndevice = 0\n' >"$file"
kill -HUP "$daemon"
logged '^level=info event=reloaded option=log-level was="info" is="debug"$'
logged '^level=warning event=not_reloaded option=device in_force="" asked_for="0" why="it needs a restart"$'
rm "$file"
kill -HUP "$daemon"
logged "^level=error event=reload_failed why=\"$file: cannot be read: No such file or directory\""
# The command line still has the word, and nothing was read twice over: these five lines are all.
[ "$(grep -c reload "$directory/log")" = 5 ] || fail "the log: $(cat "$directory/log")"
"$1/bin/kdactl" --socket "$directory/kdad.sock" ping >/dev/null || fail "the daemon does not answer any more"
exit "$failed"
