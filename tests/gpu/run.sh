#!/bin/sh
# Builds the GPU tests where there is a compiler, or runs them where there is a GPU and nothing but its driver.
#
#   sh tests/gpu/run.sh build [BUILD]          portable, with CUDA, in BUILD (build-gpu)
#   sh tests/gpu/run.sh run [BUILD [TEST…]]    all tests, or those named (jobs, deaths …), without MPS and under it
#
# BUILD can be carried to another machine together with tests/. Environment: KDAD_CUDA_ARCHITECTURES for build;
# for run KDAD_TEST_ROUNDS (how often deaths are tried), KDAD_TEST_TRAINERS (how many trainers never come),
# MPS=no to leave that half out, SANITIZE=1 for compute-sanitizer (memcheck, racecheck) on the kernel tests.
# run exits with 0 if all passed, 1 if one failed, 77 if there is no GPU.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
verb=${1:-}
build=${2:-$root/build-gpu}
case $build in /*) ;; *) build=$PWD/$build ;; esac
if [ $# -gt 2 ]; then shift 2; else shift $#; fi

build_all() {
    cmake --preset portable -S "$root" -B "$build" -DKDAD_CUDA=ON \
        ${KDAD_CUDA_ARCHITECTURES:+-DKDAD_CUDA_ARCHITECTURES="$KDAD_CUDA_ARCHITECTURES"} &&
        cmake --build "$build" --parallel "$(nproc)"
}

failed=0
report() { # NAME STATUS
    case $2 in
    0) echo "passed   $1" ;;
    77) echo "skipped  $1" ;;
    *) echo "FAILED   $1 (exit status $2)" && failed=1 ;;
    esac >>"$log.summary"
}

run_tests() { # LABEL TEST…
    label=$1
    shift
    for test in "$@"; do
        timeout 300 "$build/tests/gpu_$test"
        report "$test, $label" $?
    done
}

check_cases() { # LABEL: every case, through a daemon
    directory=$(mktemp -d)
    "$build/bin/kdad" --config /dev/null --backend cuda --socket "$directory/kdad.sock" &
    daemon=$!
    tries=0
    while [ ! -S "$directory/kdad.sock" ] && [ $tries -lt 300 ] && kill -0 $daemon; do
        sleep 0.1
        tries=$((tries + 1))
    done
    KDAD_SOCKET=$directory/kdad.sock timeout 120 "$build/bin/kdactl" check "$root"/tests/data/*.safetensors
    report "kdactl check, $1" $?
    kill $daemon
    wait $daemon
    rmdir "$directory"
}

sanitize() {
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$tool" ]; then
        report "compute-sanitizer" 77
        return
    fi
    for check in memcheck racecheck; do
        CK_FORK=no timeout 500 "$tool" --tool "$check" --error-exitcode 9 "$build/tests/gpu_kernel"
        report "compute-sanitizer $check" $?
    done
}

start_mps() {
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    nvidia-cuda-mps-control -d
}

stop_mps() {
    echo quit | nvidia-cuda-mps-control
    rm -rf "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

run_all() {
    log=$(mktemp)
    [ $# -gt 0 ] || set -- kernel kernel_law kernel_edges jobs memory deaths
    run_tests "no MPS" "$@"
    check_cases "no MPS"
    case " $* " in
    *" jobs "*) (export KDAD_STREAM_MEMORY=no && run_tests "told by events" jobs) ;;
    esac
    [ -z "${SANITIZE:-}" ] || sanitize
    if [ "${MPS:-yes}" = no ]; then
        :
    elif command -v nvidia-cuda-mps-control >/dev/null && start_mps; then
        run_tests "MPS" "$@"
        check_cases "MPS"
        stop_mps
    else
        report "everything under MPS" 77
    fi
    echo
    cat "$log.summary"
    rm -f "$log" "$log.summary"
    return $failed
}

case $verb in
build) build_all ;;
run)
    if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
        echo "skipped: no GPU here" >&2
        exit 77
    fi
    run_all "$@"
    ;;
*)
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
