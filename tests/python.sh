#!/bin/bash
# Builds the Python package's wheel, installs it in a fresh virtual environment beside torch and fla-core, and runs
# its tests and mypy. torch brings the CUDA libraries along: about 1 minute, and 5.5 GB in a temporary folder.
# Exits with 77 where no index of packages can be reached. TORCH and FLA name other versions than the newest.
set -eu
cd "$(dirname "$0")/.."

torch=${TORCH:-2.15.0}
fla=${FLA:-0.6.0}

# Whether anything answers at the index that pip uses, whatever it says.
index_answers() {
    local index
    index=$(pip config get global.index-url 2>/dev/null || echo https://pypi.org/simple)
    python3 - "${PIP_INDEX_URL:-$index}" <<'END'
import ssl, sys, urllib.error, urllib.request

try:
    urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError:
    pass
except urllib.error.URLError as failure:
    sys.exit(not isinstance(failure.reason, ssl.SSLError))
except OSError:
    sys.exit(1)
END
}

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    as_root=
    [ "$(id -u)" -eq 0 ] || as_root='sudo -n'
    DEBIAN_FRONTEND=noninteractive $as_root apt-get -qq install -y --no-install-recommends python3-venv || {
        echo "python: python3-venv is missing, and cannot be installed by this user" >&2
        exit 1
    }
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
if ! index_answers; then
    echo "python: SKIPPED, NOT TESTED: no index of packages answers, so torch cannot be installed" >&2
    exit 77
fi
pip install -q --no-cache-dir --no-compile "torch==$torch" numpy pytest mypy einops
pip install -q --no-cache-dir --no-deps "fla-core==$fla"
pip wheel -q --no-deps -w "$work" client/python -C cmake.define.KDAD_CUDA=OFF
pip install -q --no-deps "$work"/kdad-*.whl
cd client/python
mypy
pytest -q -p no:cacheprovider tests
