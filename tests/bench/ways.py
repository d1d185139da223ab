"""The ways to compute the step that peers.py and accuracy.py compare: fla's functions, a given Triton kernel, kdad."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client/python/tests"))
from reference import job_of, reference  # noqa: E402

__all__ = ["Way", "find", "job_of", "reference"]

Way = Callable[[dict[str, Any]], Any]


def _given(path: Path, folder: Path) -> Way:
    """The function of a Python file, or of a patch that adds one: its lines begin with a plus sign."""
    text = path.read_text()
    if "\n@@ " in text:
        added = text.split("\n@@ ", 1)[1].splitlines()[1:]
        text = "\n".join(line[1:] for line in added if line.startswith("+"))
    source = folder / "given.py"
    source.write_text(text + "\n")
    spec = importlib.util.spec_from_file_location("given", source)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = [name for name in vars(module) if name.startswith("chunk_kda_bwd_intra")]
    function = vars(module)[names[-1]]

    def compute(job: dict[str, Any]) -> Any:
        if job.get("cu_seqlens") is not None or job["chunk_size"] != 64 or job["k"].shape[-1] > 128:
            raise NotImplementedError("it would call fla's function")
        return function(**job)

    return compute


@contextmanager
def find(seed: Path | None) -> Iterator[dict[str, Way]]:
    """Those that this machine has, by name. What is missing is told on stderr."""
    ways: dict[str, Way] = {}

    def try_to(name: str, make: Callable[[], Way]) -> None:
        try:
            ways[name] = make()
        except Exception as failure:  # whatever an import raises
            print(f"without {name}: {type(failure).__name__}: {failure}", file=sys.stderr)

    def fla(**options: Any) -> Way:
        from fla.ops.kda.chunk_intra import chunk_kda_bwd_intra

        return lambda job: chunk_kda_bwd_intra(**job, **options)

    def kdad(in_process: bool) -> Way:
        import kdad._client
        from kdad.torch import chunk_kda_bwd_intra

        process = kdad._client.process
        daemon = process.get_daemon
        if not in_process:
            daemon()  # is there one?

        def compute(job: dict[str, Any]) -> Any:
            process.get_daemon = process.get_local if in_process else daemon  # type: ignore[method-assign]
            return chunk_kda_bwd_intra(**job)

        return compute

    with tempfile.TemporaryDirectory() as folder:
        try_to("fla", fla)
        try_to("fla, safe_gate", lambda: fla(safe_gate=True))
        if seed:
            try_to("seed", lambda: _given(seed, Path(folder)))
        try_to("kdad", lambda: kdad(False))
        try_to("kdad, in process", lambda: kdad(True))
        if not torch.cuda.is_available():
            ways.clear()
        yield ways
