"""What results are compared with: the formula of the operation in float64, and jobs of any shape. On any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def _chunks(job: dict[str, Any]) -> Iterator[tuple[int, slice]]:
    """Batch and rows of each chunk."""
    batch, rows = job["g"].shape[:2]
    bounds = [0, rows] if job.get("cu_seqlens") is None else job["cu_seqlens"].tolist()
    for b in range(batch):
        for first, end in zip(bounds, bounds[1:]):
            for start in range(first, end, job["chunk_size"]):
                yield b, slice(start, min(start + job["chunk_size"], end))


def _chunk(q: Tensor, k: Tensor, g: Tensor, beta: Tensor, aqk: Tensor, akk: Tensor) -> tuple[Tensor, ...]:
    """What a chunk adds to dq, dk, db and dg. Indices: r, s (rows), h (value head), d."""
    n = g.shape[0]
    lower = torch.ones(n, n, dtype=torch.bool, device=g.device).tril()[..., None]
    decay = torch.exp2((g[:, None] - g[None]).masked_fill(~lower[..., None], -torch.inf))
    by_q, by_k = (decay * a[..., :n].transpose(1, 2).where(lower, 0)[..., None] for a in (aqk, akk))
    dqi = (by_q * k[None]).sum(1)
    dkw = (by_k * k[None]).sum(1)
    dkt = (by_q * q[:, None] + by_k * (beta[..., None] * k)[:, None]).sum(0)
    row_side = beta[..., None] * dkw
    return dqi, row_side + dkt, (dkw * k).sum(-1), q * dqi + (row_side - dkt) * k


def reference(job: dict[str, Any]) -> list[Tensor]:
    """dq, dk, db, dg in float64."""
    names = ("q", "k", "g", "beta", "dAqk", "dAkk")
    groups = job["g"].shape[2] // job["q"].shape[2]
    results = [job[name].double() for name in ("dq", "dk", "db", "dg")]
    for b, rows in _chunks(job):
        q, k, *others = (job[name][b, rows].double() for name in names)
        q, k = (x.repeat_interleave(groups, 1) for x in (q, k))
        for result, added in zip(results, _chunk(q, k, *others)):
            result[b, rows] += added
    return results


def job_of(
    b: int = 1,
    t: int = 200,
    h: int = 2,
    hv: int = 4,
    k: int = 128,
    c: int = 64,
    lengths: Sequence[int] | None = None,
    device: str = "cuda",
) -> dict[str, Any]:
    """A job with random numbers, made on the device: of b sequences of t rows, or of sequences of these lengths.

    NaN above the diagonal, which nobody may read.
    """
    rows = list(lengths) if lengths else [t]
    t = sum(rows)
    inside = torch.cat([torch.arange(n, device=device) % c for n in rows])  # a row's place in its chunk
    above = (torch.arange(c, device=device) > inside[:, None])[None, :, None]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    decay = normal(b, t, hv, k).abs().mul_(-0.1)
    parts = [part.cumsum(1) for sequence in decay.split(rows, 1) for part in sequence.split(c, 1)]
    cu_seqlens = torch.tensor([0, *rows], device=device).cumsum(0) if lengths else None
    return {
        "q": normal(b, t, h, k).bfloat16(),
        "k": normal(b, t, h, k).bfloat16(),
        "g": torch.cat(parts, 1),
        "beta": normal(b, t, hv).sigmoid(),
        "dAqk": normal(b, t, hv, c).masked_fill_(above, torch.nan),
        "dAkk": normal(b, t, hv, c).masked_fill_(above, torch.nan),
        "dq": normal(b, t, hv, k),
        "dk": normal(b, t, hv, k),
        "db": normal(b, t, hv),
        "dg": normal(b, t, hv, k),
        "cu_seqlens": cu_seqlens,
        "chunk_size": c,
    }
