#!/bin/bash
# Tests and measures the Python package on a machine with a GPU, PyTorch, Triton and pytest; nothing is fetched.
#
#   bash client/python/tests/gpu.sh WHEELS [PART…]
#
# WHEELS: a folder with the wheels of kdad (built with CUDA) and fla-core. Parts, all of them by default, in this order:
#   install  the wheels in a folder of their own, and README's ten lines, on the CPU and the GPU
#   tests    pytest without MPS
#   fla      fla's own tests of KDA, with kdad as its backend; FLA_TESTS is the folder of fla's that has ops/test_kda.py
#   mps      pytest under MPS
#   measure  what kdad changes in chunk_kda, under MPS
#   train    the example, by PROCESSES (4) processes under MPS, with kdad and without
# LIMIT: seconds for pytest (280); MEASURE and TRAIN: options of measure.py and train.py.
# Logs and results go to OUT (a new folder). Ends with 77 if there is no GPU, with 1 if a part failed.
# shellcheck disable=SC2317 # functions are called by part and by trap
set -u
here=$(cd "$(dirname "$0")" && pwd)

if [ $# -eq 0 ]; then
    sed -n '2,15s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
wheels=$(cd "$1" && pwd) || exit 2
shift
[ $# -gt 0 ] || set -- install tests fla mps measure train
if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu.sh: skipped: no GPU that PyTorch can use"
    exit 77
fi

work=$(mktemp -d)
out=$(realpath "${OUT:-$(mktemp -d)}")
fla_tests=$(realpath "${FLA_TESTS:-/none}" 2>/dev/null)
export KDAD_SOCKET=$work/kdad.sock PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
summary=()
failed=0
daemon=
mps=

# part NAME COMMAND...: its output goes to a log and here; its time and its end to the summary.
part() {
    local name=$1 code start=$SECONDS
    shift
    printf '\n==== %s\n' "$name"
    "$@" > >(tee "$out/$name.log") 2>&1
    code=$?
    [ "$code" -eq 0 ] || [ "$code" -eq 77 ] || failed=1
    summary+=("$name: $(case $code in 0) echo passed ;; 77) echo skipped ;; *) echo "FAILED, $code" ;; esac), $((SECONDS - start)) s")
}

start_daemon() {
    kdad --quiet &
    daemon=$!
    for _ in {1..300}; do
        kdactl ping >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "gpu.sh: the daemon does not answer"
    failed=1
}

stop_daemon() {
    [ -n "$daemon" ] && kill "$daemon" && wait "$daemon"
    daemon=
}

start_mps() {
    [ -z "$mps" ] || return 0
    command -v nvidia-cuda-mps-control >/dev/null || return 77
    export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps-log
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d && mps=1
}

finish() {
    stop_daemon
    [ -z "$mps" ] || echo quit | nvidia-cuda-mps-control
    rm -rf "$work"
}
trap finish EXIT
cd "$work" || exit 1 # where no package kdad lies that would be taken for the installed one

install_wheels() {
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" "$wheels"/*.whl
}

try_package() {
    kdactl ping || return 1
    kdactl status || return 1
    python3 "$here/readme.py" && CUDA_VISIBLE_DEVICES='' python3 "$here/readme.py"
}

run_pytest() {
    timeout "${LIMIT:-280}" python3 -m pytest -c "$here/../pyproject.toml" -q -p no:cacheprovider -m gpu \
        --durations 5 "$here/test_gpu.py" "$here/test_gpu_fla.py"
}

run_fla_tests() {
    if [ ! -f "$fla_tests/ops/test_kda.py" ]; then
        echo "fla's tests: skipped: FLA_TESTS/ops/test_kda.py is not there"
        return 77
    fi
    local code
    mkdir -p "$work/counts"
    KDAD_FLA=1 KDAD_COUNTS=$work/counts PYTHONPATH=$PYTHONPATH:$here timeout "${LIMIT:-280}" \
        python3 -m pytest -q -p no:cacheprovider -p fla_counts -n "${WORKERS:-8}" -ra "$fla_tests/ops/test_kda.py"
    code=$?
    python3 "$here/fla_counts.py" "$work/counts" | tee "$out/fla-counts.json"
    return "$code"
}

measure() {
    local options
    read -ra options <<<"${MEASURE:-}"
    python3 "$here/measure.py" "${options[@]}" | tee "$out/measure.json"
    return "${PIPESTATUS[0]}"
}

train() {
    local way options
    for way in --kdad ''; do
        read -ra options <<<"$way ${TRAIN:---steps 30}"
        OMP_NUM_THREADS=2 python3 -m torch.distributed.run --nproc-per-node "${PROCESSES:-4}" \
            "$here/../examples/train.py" "${options[@]}"
    done | tee "$out/train.jsonl"
    python3 - "$out/train.jsonl" <<'END'
import json, sys
runs = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
with_kdad, without = (next(run for run in runs if run["kdad"] == way) for way in (True, False))
print("tokens/s with kdad over without:", round(with_kdad["tokens/s"] / without["tokens/s"], 3))
furthest = max(abs(a - b) for a, b in zip(with_kdad["losses"], without["losses"]))
print("losses differ by at most", round(furthest, 5), "and end at", with_kdad["losses"][-1], without["losses"][-1])
sys.exit(furthest > 0.05)
END
}

export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} PATH=$work/site/bin:$PATH
part wheels install_wheels
for name in "$@"; do
    if [[ $name =~ ^(mps|measure|train)$ ]] && ! start_mps; then
        summary+=("$name: skipped: MPS does not start")
        continue
    fi
    start_daemon
    case $name in
    install) part "$name" try_package ;;
    tests | mps) part "$name" run_pytest ;;
    fla) part "$name" run_fla_tests ;;
    measure) part "$name" measure ;;
    train) part "$name" train ;;
    *) echo "gpu.sh: no part is named $name" && failed=1 ;;
    esac
    stop_daemon
done
printf '\n'
printf '%s\n' "${summary[@]}" | tee "$out/summary"
exit $failed
