"""Fixtures: a daemon of one's own, the cases of tests/data, and jobs by random numbers."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kdad
from kdad import _counters, _programs

DATA = Path(__file__).parents[3] / "tests" / "data"
CASES = sorted(path.stem for path in DATA.glob("*.safetensors"))
INPUTS = ("q", "k", "g", "beta", "dAqk", "dAkk", "dq", "dk", "db", "dg")
RESULTS = ("dq", "dk", "db", "dg")
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
}


class Daemon:
    """A daemon on a socket of its own, where KDAD_SOCKET points."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.start()

    def start(self) -> None:
        ready, theirs = os.pipe()
        command = [_programs.path("kdad"), "--socket", str(self.socket), "--quiet", "--ready-fd", str(theirs)]
        self.process = subprocess.Popen(command, pass_fds=[theirs])
        os.close(theirs)
        assert os.read(ready, 1), "the daemon did not start"
        os.close(ready)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins with no connection and no counts, and with a socket that nobody serves."""
    monkeypatch.setenv("KDAD_SOCKET", str(tmp_path / "kdad.sock"))
    kdad.disconnect()
    from kdad import _client

    _client.process = _client._Process()
    _counters.after_fork()
    yield
    kdad.disconnect()


@pytest.fixture
def daemon(fresh: None, tmp_path: Path) -> Iterator[Daemon]:
    server = Daemon(tmp_path / "kdad.sock")
    yield server
    server.stop()


def load(name: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """A case's tensors and metadata."""
    content = (DATA / f"{name}.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for key, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        part = torch.frombuffer(bytearray(content[begin:end]), dtype=_DTYPES[entry["dtype"]])
        tensors[key] = part.reshape(entry["shape"])
    return tensors, metadata


def arguments(name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A case's keywords for chunk_kda_bwd_intra, and its results in float64."""
    tensors, metadata = load(name)
    keywords: dict[str, Any] = {key: tensors[key] for key in INPUTS}
    keywords.update(cu_seqlens=tensors.get("cu_seqlens"), chunk_size=int(metadata["chunk_size"]))
    return keywords, {key: tensors[f"ref.{key}"] for key in RESULTS}


def error(result: torch.Tensor, reference: torch.Tensor, incoming: torch.Tensor) -> float:
    """The error of a result as README.md defines it."""
    out, ref = result.double(), reference.double()
    added = (ref - incoming.double()).norm()
    off = (out - ref).norm() - 6e-8 * ref.norm()
    if added == 0:
        return 0.0 if torch.equal(out, ref) else float("inf")
    return max(0.0, float(off / added))


def random_job(t: int = 100, h: int = 2, hv: int = 2, k: int = 32, c: int = 64, device: str = "cpu") -> dict[str, Any]:
    """Keywords of a job with random numbers."""
    generator = torch.Generator().manual_seed(t)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    job: dict[str, Any] = {
        "q": normal(1, t, h, k).bfloat16(),
        "k": normal(1, t, h, k).bfloat16(),
        "g": -0.01 * normal(1, t, hv, k).abs().cumsum(1),
        "beta": normal(1, t, hv).sigmoid(),
        "dAqk": normal(1, t, hv, c),
        "dAkk": normal(1, t, hv, c),
        "dq": normal(1, t, hv, k),
        "dk": normal(1, t, hv, k),
        "db": normal(1, t, hv),
        "dg": normal(1, t, hv, k),
    }
    return {**{name: tensor.to(device) for name, tensor in job.items()}, "chunk_size": c}


def same(some: Any, others: Any) -> bool:
    """Results that are equal bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(some, others))
