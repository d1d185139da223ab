#!/bin/sh
# test_metrics.sh BUILD SOURCE - kdactl metrics prints what Prometheus takes, with the numbers of the status; a
# file appears whole, and without a daemon it says so.
set -u

kdad=$1/bin/kdad
kdactl=$1/bin/kdactl
data=$2/tests/data
directory=$(mktemp -d) || exit 1
text=$directory/text
daemon=
client=
failed=0
# shellcheck disable=SC2317 # called by trap
clean_up() {
    [ -z "$client" ] || kill "$client"
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

# code EXPECTED ARGUMENT...: kdactl's exit code; its output in $text.
code() {
    expected=$1
    shift
    "$kdactl" "$@" >"$text" 2>"$directory/errors"
    got=$?
    [ "$got" = "$expected" ] || fail "exit code $got, not $expected: kdactl $*: $(cat "$directory/errors")"
}

# The format: a metric is described before its samples, which are not repeated; a histogram's counts grow to its sum.
check_format() {
    awk '
    function bad(what) { print "line " NR ": " what ": " $0; wrong = 1 }
    /^# HELP kdad_[a-z_]+ [^ ].*\.$/ { if ($3 in helped) bad("described twice"); helped[$3] = 1; name = $3; next }
    /^# TYPE kdad_[a-z_]+ (gauge|counter|histogram)$/ {
        if ($3 != name) bad("the type of another")
        type = $4
        if ((type == "counter") != (name ~ /_total$/)) bad("a counter, and nothing else, ends in _total")
        next
    }
    {
        if ($0 !~ /^kdad_[a-z_]+(\{[a-z]+="([^"\\]|\\["\\])*"(,[a-z]+="([^"\\]|\\["\\])*")*\})? [0-9.e+-]+$/)
            bad("no sample")
        series = $0
        sub(/ [^ ]*$/, "", series)
        if (series in seen) bad("a sample twice")
        seen[series] = 1
        base = series
        sub(/\{.*/, "", base)
        suffix = base
        if (type == "histogram") sub(/_(bucket|sum|count)$/, "", base)
        if (base != name) bad("stands under " name)
        if (suffix ~ /_bucket$/) {
            if ($NF < last) bad("falls")
            last = $NF
        } else if (suffix ~ /_count$/ && type == "histogram") {
            if ($NF != last) bad("differs from the last bucket")
            last = 0
        }
    }
    END { exit wrong }' "$text" || fail "the format of: $*"
}

value() {
    sed -n "s/^$1 //p" "$text"
}

# --- without a daemon

export KDAD_SOCKET="$directory/kdad.sock"
code 3 metrics
[ "$(grep -v '^#' "$text")" = 'kdad_up 0' ] || fail "without a daemon: $(cat "$text")"
code 3 metrics --output "$directory/kdad.prom"
grep -qx 'kdad_up 0' "$directory/kdad.prom" || fail "the file without a daemon"

# --- with one

mkfifo "$directory/ready" || exit 1
"$kdad" --config /dev/null --backend cpu --threads 1 --quiet --ready-fd 3 3>"$directory/ready" &
daemon=$!
read -r _ <"$directory/ready" || fail "kdad does not start"
code 0 check "$data/chunk16.safetensors" "$data/dense.safetensors" "$data/varlen.safetensors"
code 0 status --json
jobs=$(sed -n 's/^.*"jobs_done":[^0-9]*\([0-9]*\).*/\1/p' "$text" | head -n 1)
moved=$(sed -n 's/^.*"bytes_moved":[^0-9]*\([0-9]*\).*/\1/p' "$text" | head -n 1)
code 0 metrics
check_format "a daemon with nobody"
[ "$jobs" -ge 6 ] || fail "the status has $jobs jobs"
[ "$(value kdad_up)" = 1 ] || fail "kdad_up is $(value kdad_up)"
[ "$(value kdad_jobs_done_total)" = "$jobs" ] || fail "done: $(value kdad_jobs_done_total), not $jobs"
[ "$(value kdad_moved_bytes_total)" = "$moved" ] || fail "moved: $(value kdad_moved_bytes_total), not $moved"
for time in queue run whole; do
    [ "$(value kdad_job_${time}_seconds_count)" = "$jobs" ] || fail "not all jobs are in $time"
    awk -v sum="$(value kdad_job_${time}_seconds_sum)" 'BEGIN { exit !(sum > 0 && sum < 3600) }' ||
        fail "the sum of $time: $(value kdad_job_${time}_seconds_sum)"
done
grep -q '^kdad_client_[a-z_]*{' "$text" && fail "this call's own connection is among the clients"

# A client with a name that must be quoted.
ln -s "$kdactl" "$directory/a\"b\\c"
"$directory/a\"b\\c" bench >"$directory/bench" 2>&1 &
client=$!
while code 0 metrics && ! grep -q '^kdad_client_jobs_done_total{.*} [1-9]' "$text" && kill -0 "$client"; do
    sleep 0.1
done
check_format "a daemon with a client"
grep -q "^kdad_client_jobs_done_total{client=\"[0-9]*\",pid=\"$client\",uid=\"$(id -u)\",name=\"a\\\\\"b\\\\\\\\c\"} " "$text" ||
    fail "the client's name: $(grep '^kdad_client_jobs_done' "$text")"

# --- the file

code 0 metrics --output "$directory/kdad.prom"
[ -s "$text" ] && fail "--output, and yet: $(cat "$text")"
cp "$directory/kdad.prom" "$text"
check_format "the file"
[ "$(stat -c %a "$directory/kdad.prom")" = "$(printf '%o' $((0666 & ~$(umask))))" ] || fail "the file's mode"
[ "$(find "$directory" -name 'kdad.prom*' | wc -l)" = 1 ] || fail "something lies beside the file"
code 1 metrics --output "$directory/missing/kdad.prom"
grep -q "missing/kdad.prom: cannot be made: No such file or directory" "$directory/errors" ||
    fail "said: $(cat "$directory/errors")"
code 2 metrics --json
exit "$failed"
