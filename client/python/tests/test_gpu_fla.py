"""kdad as fla's backend on a GPU: gradients of the whole chunk_kda with kdad, without it, and in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Daemon

import kdad

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
ops = pytest.importorskip("fla.ops.kda", exc_type=ImportError)

import kdad.fla  # noqa: E402

NAMES = ("q", "k", "v", "g", "beta")


@pytest.fixture
def enabled() -> Iterator[None]:
    kdad.fla.enable()
    yield
    kdad.fla.disable()


def inputs_of(b: int, t: int, h: int, hv: int, k: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k, v, g, beta: normalised, bounded, as a layer hands them over."""
    torch.manual_seed(0)
    q, key = (F.normalize(torch.randn(b, t, h, k, device="cuda"), dim=-1).to(dtype) for _ in range(2))
    v = torch.randn(b, t, hv, k, device="cuda").to(dtype)
    g = F.logsigmoid(torch.randn(b, t, hv, k, device="cuda"))
    beta = torch.rand(b, t, hv, device="cuda").to(dtype)
    return [x.requires_grad_() for x in (q, key, v, g, beta)]


def recurrence(q: Any, k: Any, v: Any, g: Any, beta: Any) -> torch.Tensor:
    """KDA as it is written down, one row at a time, in float64."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    groups = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(groups, 2) for x in (q * q.shape[-1] ** -0.5, k))
    state = torch.zeros(*v.shape[::2], q.shape[-1], v.shape[-1], dtype=q.dtype, device=q.device)
    rows = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None]
        seen = (k[:, t][..., None] * state).sum(-2)
        state = state + (beta[:, t][..., None] * k[:, t])[..., None] * (v[:, t] - seen)[..., None, :]
        rows.append((q[:, t][..., None] * state).sum(-2))
    return torch.stack(rows, 1)


def gradients(out: torch.Tensor, weight: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad((out * weight).sum(), inputs))


def off(some: torch.Tensor, right: torch.Tensor) -> float:
    return float((some.double() - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("options", [{}, {"safe_gate": True}], ids=["plain", "safe_gate"])
def test_gradients_of_the_whole(
    daemon: Daemon, enabled: None, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """With kdad they are as near to float64 as with fla alone, or nearer."""
    inputs = inputs_of(2, 200, 2, 4, 64, dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out = recurrence(*exact)
    weight = torch.randn_like(out)
    expected = gradients(out, weight, exact)
    found = {}
    for name in ("kdad", "fla"):
        if name == "fla":
            kdad.fla.disable()
        out, _ = ops.chunk_kda(*inputs, **options)
        found[name] = gradients(out, weight, inputs)
    for name, with_kdad, without, right in zip(NAMES, found["kdad"], found["fla"], expected):
        errors = off(with_kdad, right), off(without, right)
        print(f"{name}: {errors[0]:.2e} with kdad, {errors[1]:.2e} without")
        assert errors[0] <= 1.05 * errors[1] + 1e-5, name
        assert errors[1] < 2e-2, name
    assert kdad.stats() == {"daemon": 1, "local": 0, "fla": 0, "reasons": {}}


def test_sequences_of_the_whole(daemon: Daemon, enabled: None) -> None:
    """Sequences in one tensor have the gradients that each has alone."""
    lengths = [70, 1, 64, 130]
    inputs = inputs_of(1, sum(lengths), 2, 2, 64, torch.bfloat16)
    cu_seqlens = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    out, _ = ops.chunk_kda(*inputs, cu_seqlens=cu_seqlens)
    weight = torch.randn_like(out)
    together = gradients(out, weight, inputs)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        part = [x.detach()[:, rows].double().requires_grad_() for x in inputs]
        for name, some, right in zip(NAMES, together, gradients(recurrence(*part), weight[:, rows], part)):
            assert right.norm() == 0 or off(some[:, rows], right) < 3e-2, (name, length)
        start += length
    assert kdad.stats() == {"daemon": 1, "local": 0, "fla": 0, "reasons": {}}


def test_training_step_in_a_graph(daemon: Daemon, enabled: None) -> None:
    """Forward and backward, captured and replayed: bit for bit the gradients of an uncaptured step."""
    inputs = inputs_of(1, 200, 2, 2, 64, torch.bfloat16)
    weight = torch.randn_like(inputs[2])

    def step() -> list[torch.Tensor]:
        return gradients(ops.chunk_kda(*inputs)[0], weight, inputs)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # Triton compiles and measures outside the graph
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for n in range(100):
        torch.manual_seed(n)
        with torch.no_grad():
            for x in inputs[:3]:
                x.copy_(F.normalize(torch.randn_like(x), dim=-1))
        graph.replay()
        if n % 10 == 0:
            assert all(torch.equal(a, b) for a, b in zip(captured, step())), n
    counted = kdad.stats()
    assert counted["fla"] == 0 and counted["local"] == 1
    assert counted["reasons"] == {"local: CUDA graph capture": 1}
