"""Compares fla's chunk_kda, forward and backward, with its naive recurrence, on the CPU, in Triton's interpreter.

Run with TRITON_INTERPRET=1; KDAD_FLA says whether kdad takes part. The last line counts the jobs.
"""

import builtins
from typing import Any, Iterator

import torch
import torch.nn.functional as F
import triton.runtime.autotuner

# Nothing is timed without a GPU: the first configuration does.
triton.runtime.autotuner.Autotuner._bench = lambda self, *arguments, config, **keywords: 0.0

import fla.ops.common.chunk_delta_h as recurrence  # noqa: E402
from fla.ops.kda import chunk_kda  # noqa: E402
from fla.ops.kda.naive import naive_recurrent_kda  # noqa: E402

import kdad  # noqa: E402


class Index(int):
    """What a loop of a kernel counts with has a type only if Triton compiles it."""

    def to(self, dtype: Any) -> "Index":
        return self


def indices(*bounds: Any) -> Iterator[Index]:
    return map(Index, builtins.range(*(int(b.handle.data.item()) if hasattr(b, "handle") else b for b in bounds)))


recurrence.range = indices  # type: ignore[attr-defined]

torch.manual_seed(0)
B, T, H, K = 1, 70, 2, 16
q, k = (F.normalize(torch.randn(B, T, H, K), dim=-1) for _ in range(2))
v, g, beta = torch.randn(B, T, H, K), F.logsigmoid(torch.randn(B, T, H, K)), torch.rand(B, T, H)
inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
out, _ = naive_recurrent_kda(*inputs)
weight = torch.randn_like(out)
expected = torch.autograd.grad((out * weight).sum(), inputs)
out, _ = chunk_kda(*inputs)
for name, a, b in zip(("q", "k", "v", "g", "beta"), torch.autograd.grad((out * weight).sum(), inputs), expected):
    off = float((a - b).norm() / b.norm())
    print(f"{name}: {off:.1e}")
    assert off < 1e-5, name
counts = kdad.stats()
print(f"daemon {counts['daemon']} local {counts['local']} fla {counts['fla']}")
