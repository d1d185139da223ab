"""kdad.torch.chunk_kda_bwd_intra on the CPU: values, layouts, errors, torch.compile and export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import CASES, INPUTS, Daemon, arguments, error, random_job, same

import kdad
from kdad.torch import chunk_kda_bwd_intra

OPERATION = torch.ops.kdad.chunk_kda_bwd_intra.default


def check_case(name: str) -> None:
    keywords, references = arguments(name)
    before = {key: keywords[key].clone() for key in INPUTS}
    results = chunk_kda_bwd_intra(**keywords)
    for (key, reference), result in zip(references.items(), results):
        assert result.dtype == torch.float32
        assert error(result, reference, keywords[key]) <= 2e-6, key
    assert all(torch.equal(keywords[key], before[key]) for key in INPUTS), "an input was changed"


@pytest.mark.parametrize("name", CASES)
def test_values_by_the_daemon(daemon: Daemon, name: str) -> None:
    check_case(name)
    assert kdad.stats() == {"daemon": 1, "local": 0, "fla": 0, "reasons": {}}


@pytest.mark.parametrize("name", CASES)
def test_values_in_this_process(name: str) -> None:
    check_case(name)
    assert kdad.stats() == {"daemon": 0, "local": 1, "fla": 0, "reasons": {"local: no daemon": 1}}


def test_exact_results_are_exact(daemon: Daemon) -> None:
    keywords, references = arguments("exact")
    assert same(chunk_kda_bwd_intra(**keywords), [r.float() for r in references.values()])


def test_any_strides(daemon: Daemon) -> None:
    job = random_job()
    expected = chunk_kda_bwd_intra(**job)
    strided = dict(job)
    for name in INPUTS:
        tensor = job[name]
        wide = torch.empty(1, 2, 2 * tensor.shape[1], *tensor.shape[3:], dtype=tensor.dtype)
        view = wide[:, :, ::2].transpose(1, 2)  # heads first, and every second row
        strided[name] = view.copy_(tensor) if tensor.dim() == 4 else tensor
        assert tensor.dim() == 3 or not strided[name].is_contiguous()
    assert same(chunk_kda_bwd_intra(**strided), expected)


def test_narrow_types_of_sequences(daemon: Daemon) -> None:
    keywords, _ = arguments("varlen")
    expected = chunk_kda_bwd_intra(**keywords)
    keywords["cu_seqlens"] = keywords["cu_seqlens"].int()
    keywords["chunk_indices"] = torch.zeros(7, 2, dtype=torch.int32)  # a hint, which is not read
    assert same(chunk_kda_bwd_intra(**keywords), expected)


def test_nothing_to_do(daemon: Daemon) -> None:
    assert [tuple(r.shape) for r in chunk_kda_bwd_intra(**random_job(t=0))][0] == (1, 0, 2, 32)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"chunk_size": 32}, "dAqk: last dimension is 64, but chunk_size is 32"),
        ({"dq": torch.zeros(1, 100, 2, 32, dtype=torch.float64)}, "dq: type is unknown, but must be float32"),
        ({"g": torch.zeros(1, 99, 2, 32)}, "g: "),
        ({"q": torch.zeros(1, 1, 100, 2, 32)}, "q: "),
        ({"db": torch.zeros(1, 100, 2, device="meta")}, "db: is on meta, but q is on cpu"),
        ({"dAkk": torch.zeros(1, 100, 2, 64).to_sparse()}, "dAkk: its layout is torch.sparse_coo"),
    ],
)
def test_refusals_name_the_argument(daemon: Daemon, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(kdad.Invalid) as caught:
        chunk_kda_bwd_intra(**{**random_job(), **changes})
    assert str(caught.value).startswith(sentence)
    assert isinstance(caught.value, ValueError) and caught.value.status == 1


@pytest.mark.parametrize("served", [True, False])
def test_bad_sequences_are_an_error(request: pytest.FixtureRequest, served: bool) -> None:
    if served:
        request.getfixturevalue("daemon")
    with pytest.raises(kdad.BadData, match="cu_seqlens"):
        chunk_kda_bwd_intra(**random_job(), cu_seqlens=torch.tensor([0, 60, 50, 100]))
    chunk_kda_bwd_intra(**random_job())  # and the next one is served


def test_unknown_keyword_that_means_nothing(daemon: Daemon) -> None:
    chunk_kda_bwd_intra(**random_job(), lower_bound=-5.0, use_graph=False, later=None, other=False)
    assert kdad.stats()["daemon"] == 1


def test_opcheck(daemon: Daemon) -> None:
    job = random_job()
    positional = [job[name] for name in INPUTS]
    torch.library.opcheck(OPERATION, (*positional, None, 64, False))
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) if t.dim() == 4 else t for t in positional]
    torch.library.opcheck(OPERATION, (*strided, torch.tensor([0, 40, 100]), 64, True))


def test_compile_and_export(daemon: Daemon) -> None:
    job = random_job()
    expected = chunk_kda_bwd_intra(**job)

    class Module(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return chunk_kda_bwd_intra(*inputs, chunk_size=64)

    inputs = tuple(job[name] for name in INPUTS)
    compiled = torch.compile(Module(), fullgraph=True, backend="aot_eager")
    assert same(compiled(*inputs), expected)
    assert same(torch.export.export(Module(), inputs).module()(*inputs), expected)
