#!/bin/bash
# Runs peers.py and accuracy.py on a machine with a GPU, PyTorch and Triton; nothing is fetched.
#
#   bash tests/bench/gpu.sh WHEELS [--seed FILE]
#
# WHEELS: a folder with the wheels of kdad (built with CUDA) and fla-core. PEERS: options of peers.py alone (--quick).
# Tables, JSON and SVG go to OUT (a new folder). Ends with 77 if there is no GPU, with 1 if one of the two failed.
# shellcheck disable=SC2317 # a function is called by trap
set -u
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -eq 0 ]; then
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
wheels=$(cd "$1" && pwd) || exit 2
shift
if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu.sh: skipped: no GPU that PyTorch can use"
    exit 77
fi

work=$(mktemp -d)
out=$(realpath "${OUT:-$(mktemp -d)}")
daemon=
finish() {
    [ -z "$daemon" ] || kill "$daemon"
    rm -rf "$work"
}
trap finish EXIT

python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$work/site" "$wheels"/*.whl || exit 1
export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} PATH=$work/site/bin:$PATH
export KDAD_SOCKET=$work/kdad.sock TRITON_CACHE_DIR=$work/triton PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
kdad --quiet &
daemon=$!
for _ in {1..300}; do
    kdactl ping >/dev/null 2>&1 && break
    sleep 0.1
done

failed=0
read -r -a peers <<<"${PEERS:-}"
python3 "$here/accuracy.py" "$@" --out "$out" | tee "$out/accuracy.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
python3 "$here/peers.py" "$@" "${peers[@]}" --out "$out" | tee "$out/peers.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
echo "results: $out"
exit "$failed"
