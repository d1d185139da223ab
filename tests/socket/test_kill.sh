#!/bin/sh
# test_kill.sh BUILD SOURCE - kdactl kill ends the client that it is told to, and no other process: by signals, and,
# where a control daemon of MPS runs, by terminate_client before them. NVIDIA's control program is played by a script.
set -u

kdad=$1/bin/kdad
kdactl=$1/bin/kdactl
directory=$(mktemp -d) || exit 1
said=$directory/said
asked=$directory/asked
daemon=
victim=
bystander=
sleeper=
failed=0
# shellcheck disable=SC2317 # called by trap
clean_up() {
    for pid in $daemon $victim $bystander $sleeper; do
        kill -9 "$pid"
    done
    wait
    rm -rf "$directory"
} 2>/dev/null
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "FAILED: $*"
    cat "$said"
    failed=1
}

export KDAD_SOCKET="$directory/run/kdad.sock" CUDA_MPS_PIPE_DIRECTORY="$directory/mps"
unset XDG_RUNTIME_DIR
: >"$said"

start_daemon() {
    mkfifo "$directory/ready" || exit 1
    "$kdad" --config /dev/null --backend cpu --threads 1 --quiet --ready-fd 3 3>"$directory/ready" &
    daemon=$!
    read -r _ <"$directory/ready" || fail "kdad does not start"
    rm "$directory/ready"
}

# It does, and is not merely waited for.
runs() {
    grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2>/dev/null
}

is_client() {
    "$kdactl" status | grep -q "^ *$1 "
}

wait_for_client() {
    until is_client "$1"; do
        runs "$1" || {
            fail "the client ended by itself"
            exit 1
        }
        sleep 0.05
    done
}

# A client that lives until it is ended.
start_victim() {
    "$kdactl" trace "$directory/trace" --seconds 3600 >/dev/null &
    victim=$!
    wait_for_client "$victim"
}

# The same, deaf to SIGTERM.
start_deaf_victim() {
    (trap '' TERM && exec "$kdactl" trace "$directory/trace" --seconds 3600) >/dev/null &
    victim=$!
    wait_for_client "$victim"
}

# killing CODE WORDS ARGUMENT...: kdactl kill ends with CODE, and says WORDS.
killing() {
    expected=$1
    words=$2
    shift 2
    "$kdactl" kill "$@" >"$said" 2>&1
    code=$?
    [ "$code" = "$expected" ] || fail "kill $*: exit code $code, not $expected"
    grep -q "$words" "$said" || fail "kill $*: it is not said that: $words"
}

# ended SIGNAL: the victim was ended by it.
ended() {
    wait "$victim" 2>/dev/null
    code=$?
    [ "$code" = $((128 + $1)) ] || fail "the client ended with $code, not by signal $1"
    victim=
}

lives() {
    runs "$1" || fail "process $1 was ended"
}

# --- no MPS

killing 3 'no daemon answers' $$
start_daemon
"$kdactl" trace "$directory/other" --seconds 3600 >/dev/null &
bystander=$!
wait_for_client "$bystander"

start_victim
killing 0 "^$victim: ended after SIGTERM" "$victim"
ended 15
[ -e "$directory/trace" ] && fail "a half-written file is left"

start_deaf_victim
killing 0 "^$victim: ended after SIGKILL" "$victim" --seconds 0.2
ended 9

start_victim
kill -STOP "$victim"
killing 0 "^$victim: ended after SIGKILL" "$victim" --seconds 0.2
ended 9

# Who is no client is not touched: another process, the daemon, one that is gone, kdactl's parent.
sleep 600 &
sleeper=$!
killing 1 "process $sleeper is no client" "$sleeper"
lives "$sleeper"
killing 1 "process $daemon is no client" "$daemon"
lives "$daemon"
kill "$sleeper"
wait "$sleeper" 2>/dev/null
killing 1 "process $sleeper is no client" "$sleeper"
sleeper=
killing 2 "'12x' is no process's number" 12x
killing 2 "'0' is no process's number" 0
killing 2 "'-1' is no process's number" -- -1
killing 2 'an argument is missing'
killing 2 "unexpected argument '2'" 1 2

# --- a control daemon of MPS: the script notes each command, and for terminate_client whether the process lived

mkdir "$directory/bin" "$directory/mps"
cat >"$directory/bin/nvidia-cuda-mps-control" <<EOF
#!/bin/sh
while read -r command server pid; do
    echo "\$command \$server \$pid" >>"$asked"
    case \$command in
    get_server_list) printf '4001\n4002\n' ;;
    get_client_list) if [ "\$server" = 4002 ]; then cat "$directory/clients"; fi ;;
    terminate_client)
        grep -q '^State:.*[RS] ' "/proc/\$pid/status" && echo lived >>"$asked"
        cat "$directory/refusal" 2>/dev/null
        ;;
    esac
done
[ ! -e "$directory/broken" ]
EOF
chmod +x "$directory/bin/nvidia-cuda-mps-control"
PATH=$directory/bin:$PATH
sleep 600 &
sleeper=$!
echo "$sleeper" >"$directory/mps/nvidia-cuda-mps-control.pid"

start_victim
printf '7\n%s\n8\n' "$victim" >"$directory/clients"
killing 0 "^$victim: MPS server 4002 has ended its work on the GPU" "$victim"
grep -q "^$victim: ended after SIGTERM" "$said" || fail "the process's end is not said"
printf '%s\n' 'get_server_list  ' 'get_client_list 4001 ' 'get_client_list 4002 ' "terminate_client 4002 $victim" lived \
    >"$directory/expected"
diff "$directory/expected" "$asked" || fail "the control daemon was asked otherwise (>)"
ended 15

# A client of kdad that is none of MPS's.
start_victim
: >"$asked"
echo 7 >"$directory/clients"
killing 0 "^$victim: ended after SIGTERM" "$victim"
grep -q terminate_client "$asked" && fail "work of a process that is no client of MPS was ended"
ended 15

# MPS refuses, or does not answer as it should: the process is left alone.
start_victim
echo "$victim" >"$directory/clients"
echo 'Cannot find client' >"$directory/refusal"
killing 1 'terminate_client.*Cannot find client' "$victim"
lives "$victim"
rm "$directory/refusal"
echo 'Cannot connect to the server' >"$directory/clients"
killing 1 'get_client_list 4002: Cannot connect to the server' "$victim"
lives "$victim"
: >"$directory/broken"
killing 1 'get_server_list: failed' "$victim"
lives "$victim"
rm "$directory/bin/nvidia-cuda-mps-control"
if ! command -v nvidia-cuda-mps-control >/dev/null; then
    killing 1 'nvidia-cuda-mps-control: it cannot be run' "$victim"
    lives "$victim"
fi

# The pid that a control daemon left behind is nobody's.
kill "$sleeper"
wait "$sleeper" 2>/dev/null
sleeper=
killing 0 "^$victim: ended after SIGTERM" "$victim"
ended 15

is_client "$bystander" || fail "another client was ended"
exit "$failed"
