"""kdad as fla's backend, with the real fla-core: its dispatch on tensors of the CPU, and its whole chunk_kda, forward
and backward, in Triton's interpreter. Skipped where fla cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import Daemon, random_job, same

import kdad
from kdad.torch import chunk_kda_bwd_intra

intra = pytest.importorskip("fla.ops.kda.chunk_intra", exc_type=ImportError)

import kdad.fla  # noqa: E402


@pytest.fixture
def enabled() -> None:
    kdad.fla.enable()
    kdad.fla.enable()  # a second time does no harm


def own(*arguments: object, **keywords: object) -> str:
    return "fla's own"


@pytest.fixture
def own_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """fla's own function needs a GPU: what stands in for it says that it was called."""
    import inspect

    unwrap = inspect.unwrap
    monkeypatch.setattr(inspect, "unwrap", lambda f: own if f is intra.chunk_kda_bwd_intra else unwrap(f))


def test_dispatch_takes_kdad(daemon: Daemon, enabled: None) -> None:
    job = random_job()
    assert same(intra.chunk_kda_bwd_intra(**job), chunk_kda_bwd_intra(**job))
    assert kdad.stats() == {"daemon": 2, "local": 0, "fla": 0, "reasons": {}}


def test_disabled_is_as_without(daemon: Daemon, enabled: None) -> None:
    kdad.fla.disable()
    try:
        with pytest.raises(Exception, match="driver"):  # Triton's, without a GPU
            intra.chunk_kda_bwd_intra(**random_job())
    finally:
        kdad.fla.enable()
    assert kdad.stats()["daemon"] == 0


def test_refused_arguments_go_to_fla(daemon: Daemon, enabled: None, own_is_called: None) -> None:
    job = {**random_job(), "dq": torch.zeros(1, 100, 2, 32, dtype=torch.float64)}
    for _ in range(2):
        assert intra.chunk_kda_bwd_intra(**job) == "fla's own"
    assert kdad.stats() == {"daemon": 0, "local": 0, "fla": 2, "reasons": {"fla: invalid argument": 2}}


def test_unknown_keyword_goes_to_fla(daemon: Daemon, own_is_called: None) -> None:
    assert chunk_kda_bwd_intra(**random_job(), later=1) == "fla's own"
    assert chunk_kda_bwd_intra(**random_job(), later=0) == "fla's own"
    assert kdad.stats() == {"daemon": 0, "local": 0, "fla": 2, "reasons": {"fla: keyword later": 2}}


def test_bad_sequences_stay_an_error(daemon: Daemon, enabled: None, own_is_called: None) -> None:
    with pytest.raises(kdad.BadData):
        intra.chunk_kda_bwd_intra(**random_job(), cu_seqlens=torch.tensor([0, 60, 50, 100]))
    assert kdad.stats()["fla"] == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="in the interpreter, which is for machines without a GPU")
@pytest.mark.parametrize("mode", ["KDAD_FLA=1", "KDAD_FLA=0"])
def test_gradients_of_the_whole(daemon: Daemon, mode: str) -> None:
    """fla's chunk_kda has the gradients of the naive recurrence, and its backward pass goes through kdad."""
    name, value = mode.split("=")
    environment = {**os.environ, name: value, "TRITON_INTERPRET": "1"}
    script = Path(__file__).parent / "interpreted.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ("daemon 1 local 0 fla 0" if value == "1" else "daemon 0 local 0 fla 0")
