#!/bin/bash
# Builds the Python package's wheel, installs it in a fresh virtual environment beside torch and fla-core, and runs
# its tests and mypy. torch brings the CUDA libraries along: about 1 minute, and 5.5 GB in a temporary folder.
# Exits with 77 where torch cannot be had.
set -eu
cd "$(dirname "$0")/.."

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    apt-get -qq install -y --no-install-recommends python3-venv
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
if ! pip install -q --no-cache-dir --no-compile torch==2.15.0 numpy pytest mypy einops; then
    echo "python: skipped, as torch cannot be installed"
    exit 77
fi
pip install -q --no-cache-dir --no-deps fla-core==0.6.0
pip wheel -q --no-deps -w "$work" client/python -C cmake.define.KDAD_CUDA=OFF
pip install -q --no-deps "$work"/kdad-*.whl
cd client/python
mypy
pytest -q -p no:cacheprovider tests
