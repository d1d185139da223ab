"""README's example and the example program run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import readme
from conftest import Daemon

EXAMPLE = Path(__file__).parents[1] / "examples" / "train.py"
SMALL = "--steps 4 --warm 1 --accumulate 2 --batch 2 --length 32 --width 32 --heads 2 --layers 1 --rate 0.01"


@pytest.mark.parametrize("served", [True, False])
def test_example_of_readme(request: pytest.FixtureRequest, served: bool) -> None:
    if served:
        request.getfixturevalue("daemon")
    readme.check()


def test_example_trains(daemon: Daemon) -> None:
    """Two processes, on the CPU, learn alike: the model is one, as their gradients are averaged."""
    pytest.importorskip("fla.ops.kda", exc_type=ImportError)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--kdad", *SMALL.split()], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert result["processes"] == 2 and result["device"] == "cpu" and result["tokens/s"] > 0
    assert len(result["losses"]) == 5 and result["losses"][-1] < result["losses"][0]
