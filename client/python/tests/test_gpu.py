"""kdad.torch.chunk_kda_bwd_intra on a GPU: values, the order of streams, memory, graphs, and daemons that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CASES, INPUTS, RESULTS, Daemon, arguments, error, same
from reference import job_of, reference

import kdad
from kdad import _client
from kdad.torch import check, chunk_kda_bwd_intra

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SHAPES = [
    {"b": 2, "t": 1000, "h": 4, "hv": 8},
    {"b": 1, "t": 300, "k": 60, "c": 32},
    {"b": 1, "t": 300, "k": 256, "c": 128},
    {"lengths": [1, 64, 65, 300, 127]},
]
A_WHILE = 1_000_000_000  # cycles of the GPU: half a second


@pytest.fixture(scope="module")
def lasting_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    server = Daemon(tmp_path_factory.mktemp("daemon") / "kdad.sock")
    yield server
    server.stop()


@pytest.fixture
def served(fresh: None, lasting_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Jobs go to a daemon that tests share."""
    monkeypatch.setenv("KDAD_SOCKET", str(lasting_daemon.socket))
    return lasting_daemon


@pytest.fixture(params=["daemon", "local"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Jobs go to a daemon, or are computed in this process."""
    if request.param == "daemon":
        request.getfixturevalue("served")
    else:
        monkeypatch.setenv("KDAD_SOCKET", "local:")
    return str(request.param)


def counts(place: str, jobs: int) -> dict[str, Any]:
    return {"daemon": 0, "local": 0, "fla": 0, "reasons": {}, place: jobs}


def check_values(job: dict[str, Any], expected: Any) -> None:
    before = {name: job[name].clone() for name in INPUTS}
    for name, result, right in zip(RESULTS, chunk_kda_bwd_intra(**job), expected):
        assert result.dtype == torch.float32 and result.is_cuda
        assert error(result, right, job[name]) <= 2e-6, name
    for name in INPUTS:
        assert torch.equal(job[name].nan_to_num(7.0), before[name].nan_to_num(7.0)), f"{name} was changed"


# ---- Values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_values_of_cases(place: str, name: str) -> None:
    keywords, references = arguments(name)
    job = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in keywords.items()}
    check_values(job, [right.cuda() for right in references.values()])
    assert kdad.stats() == counts(place, 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_of_the_formula(place: str, shape: dict[str, Any]) -> None:
    job = job_of(**shape)
    check_values(job, reference(job))
    assert kdad.stats() == counts(place, 1)


def test_daemon_and_this_process_agree(served: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of()
    by_daemon = chunk_kda_bwd_intra(**job)
    monkeypatch.setenv("KDAD_SOCKET", "local:")
    kdad.disconnect()
    assert same(by_daemon, chunk_kda_bwd_intra(**job))
    assert kdad.stats() == {"daemon": 1, "local": 1, "fla": 0, "reasons": {}}


def test_refusals_and_bad_sequences(place: str) -> None:
    job = job_of(lengths=[50, 50])
    with pytest.raises(kdad.Invalid, match="^dAqk: last dimension is 64, but chunk_size is 32"):
        chunk_kda_bwd_intra(**{**job, "chunk_size": 32})
    with pytest.raises(kdad.Invalid, match="^db: is on cpu, but q is on cuda:0"):
        chunk_kda_bwd_intra(**{**job, "db": job["db"].cpu()})
    check()
    bad = {**job, "cu_seqlens": torch.tensor([0, 60, 50], device="cuda")}
    results = chunk_kda_bwd_intra(**bad)
    with pytest.raises(kdad.BadData, match="cu_seqlens"):
        check()
    assert same(results, [job[name] for name in RESULTS])
    check_values(job, reference(job))


def test_opcheck_and_compile(served: Daemon) -> None:
    job = job_of()
    positional = [job[name] for name in INPUTS]
    torch.library.opcheck(torch.ops.kdad.chunk_kda_bwd_intra.default, (*positional, None, 64, False))

    def step(*inputs: torch.Tensor) -> Any:
        return chunk_kda_bwd_intra(*inputs, chunk_size=64)

    assert same(torch.compile(step, fullgraph=True, backend="aot_eager")(*positional), step(*positional))


# ---- Layouts --------------------------------------------------------------------------------------------------------


def test_any_strides(place: str) -> None:
    job = job_of(t=100)
    expected = chunk_kda_bwd_intra(**job)
    strided = dict(job)
    for name in INPUTS:
        tensor = job[name]
        if tensor.dim() == 4:
            _, t, h, k = tensor.shape
            wide = torch.empty(1, h, 2 * t, k, dtype=tensor.dtype, device="cuda")
            strided[name] = wide[:, :, ::2].transpose(1, 2).copy_(tensor)  # heads first, and every second row
            assert not strided[name].is_contiguous()
    assert same(chunk_kda_bwd_intra(**strided), expected)


def test_tensors_within_one_storage(place: str) -> None:
    """All inputs lie in one tensor, at odd places."""
    job = job_of(t=100)
    expected = chunk_kda_bwd_intra(**job)
    memory = torch.empty(sum(job[name].nbytes + 68 for name in INPUTS), dtype=torch.uint8, device="cuda")
    packed, at = dict(job), 4
    for name in INPUTS:
        flat = memory[at : at + job[name].nbytes].view(job[name].dtype)
        packed[name] = flat.view(job[name].shape).copy_(job[name])
        at += job[name].nbytes + 60
        at += -at % 4
    assert same(chunk_kda_bwd_intra(**packed), expected)


# ---- Order ----------------------------------------------------------------------------------------------------------


def test_order_without_synchronising(place: str) -> None:
    """A job sees what was put on its stream before it; what follows sees its results; the host waits for neither."""
    job = job_of()
    expected = [result.clone() for result in chunk_kda_bwd_intra(**job)]
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        late = {**job, **{name: torch.zeros_like(job[name]) for name in INPUTS}}
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            chunk_kda_bwd_intra(**late)  # opens the stream, which may wait
            torch.cuda._sleep(A_WHILE)
            for name in INPUTS:
                late[name].copy_(job[name])
            results = chunk_kda_bwd_intra(**late)
            doubled = [2 * result for result in results]
            last = stream.record_event()
            assert not last.query(), "the host waited"
        last.synchronize()
        assert same(doubled, [2 * right for right in expected])


def test_tensors_freed_at_once(place: str) -> None:
    """Inputs are dropped as soon as the call returns, and their memory is used again for something else."""
    job = job_of(t=2048)
    expected = chunk_kda_bwd_intra(**job)
    wrong = []
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(100):
            copies = {**job, **{name: job[name].clone() for name in INPUTS}}
            addresses = {copies[name].data_ptr() for name in INPUTS}
            results = chunk_kda_bwd_intra(**copies)
            del copies
            junk = [torch.full_like(job[name], torch.nan) for name in INPUTS]
            assert addresses & {tensor.data_ptr() for tensor in junk}, "no memory was used again: this shows nothing"
            wrong.append(torch.stack([(a != b).any() for a, b in zip(results, expected)]).any())
            del junk, results
    torch.cuda.synchronize()
    assert not torch.stack(wrong).any()


def test_memory_given_back_and_taken_again(place: str) -> None:
    """The allocator returns whole segments to the driver, which hands out the same addresses again."""
    seen: set[int] = set()
    again = 0
    for n in range(10):
        torch.manual_seed(n)
        job = job_of(t=16384, h=8, hv=8)  # each large tensor a segment of its own
        again += job["dAqk"].data_ptr() in seen
        seen.add(job["dAqk"].data_ptr())
        results = chunk_kda_bwd_intra(**job)
        if n in (0, 9):
            for name, result, right in zip(RESULTS, results, reference(job)):
                assert error(result, right, job[name]) <= 2e-6
        job = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in job.items()}
        assert same(chunk_kda_bwd_intra(**job), results)
        del job, results
        torch.cuda.empty_cache()
    assert again, "no address was used again: this shows nothing"


def test_threads_and_streams(place: str) -> None:
    jobs = [job_of(t=64 + 50 * n) for n in range(4)]
    expected = [chunk_kda_bwd_intra(**job) for job in jobs]
    torch.cuda.synchronize()
    wrong: list[int] = []
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    if not same(chunk_kda_bwd_intra(**jobs[n % 4]), expected[n % 4]):
                        wrong.append(n)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and not wrong
    assert kdad.stats() == counts(place, 4 + 8 * 50)


def test_threads_on_one_stream(place: str) -> None:
    job = job_of()
    expected = chunk_kda_bwd_intra(**job)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    wrong: list[int] = []

    def work() -> None:
        with torch.cuda.stream(stream):
            for _ in range(50):
                if not same(chunk_kda_bwd_intra(**job), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert kdad.stats() == counts(place, 1 + 4 * 50)


# ---- Memory ---------------------------------------------------------------------------------------------------------

ALLOCATOR = """
import torch, kdad
from conftest import RESULTS, error
from reference import job_of, reference
from kdad.torch import check, chunk_kda_bwd_intra

for n in range(5):
    job = job_of(t=2000 + 500 * n, h=4, hv=4)
    for name, result, right in zip(RESULTS, chunk_kda_bwd_intra(**job), reference(job)):
        off = error(result, right, job[name])
        assert off <= 2e-6, (name, off)
    del job
    torch.cuda.empty_cache()
check()
counts = kdad.stats()
print(counts)
assert counts["daemon"] + counts["local"] == 5
assert sum(counts["reasons"].values()) == counts["local"]
"""


@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators(served: Daemon, setting: str) -> None:
    """Memory that may not be shared with the daemon: the daemon's job, or this process's, which is counted."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting}
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATOR],
        env=environment,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(setting, done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr


def free_memory() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def test_trim_gives_memory_back(served: Daemon) -> None:
    chunk_kda_bwd_intra(**job_of())
    before = free_memory()
    chunk_kda_bwd_intra(**job_of(t=65536, h=8, hv=8))  # 2.6 GB with its results
    held = before - free_memory()
    kdad.trim()
    left = before - free_memory()
    print(f"held by the daemon before trim {held >> 20} MiB, after it {left >> 20} MiB")
    assert held > 1 << 30, "the daemon held nothing: this shows nothing"
    assert left < 100 << 20


def test_out_of_memory_is_tried_again(served: Daemon) -> None:
    """Memory that this process has freed, and that the daemon still maps, does for the results of the next job."""
    job = job_of(t=65536, h=8, hv=8)
    expected = chunk_kda_bwd_intra(**job)
    copies = [result.clone() for result in expected]
    chunk_kda_bwd_intra(**{**job, **dict(zip(RESULTS, copies))})
    del copies
    free_memory()  # the copies' memory stays mapped by the daemon
    filler = []
    for size in (1 << 30, 1 << 26):
        try:
            while True:
                filler.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            pass
    try:
        results = chunk_kda_bwd_intra(**job)
        assert same(results, expected)
    finally:
        del filler
        torch.cuda.empty_cache()


# ---- Processes ------------------------------------------------------------------------------------------------------


class Items(torch.utils.data.Dataset[Any]):
    """What a DataLoader's worker makes: a result by kdad, on the CPU."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.manual_seed(index)
        return chunk_kda_bwd_intra(**job_of(t=40 + index, device="cpu"))[0].flatten()[:64]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(served: Daemon, method: str) -> None:
    """While jobs of the GPU are under way, children come and go; neither they nor the parent are the worse for it."""
    job = job_of()
    expected = chunk_kda_bwd_intra(**job)
    items = [Items()[n] for n in range(4)]
    torch.cuda._sleep(A_WHILE)
    results = chunk_kda_bwd_intra(**job)
    loader = torch.utils.data.DataLoader(Items(), batch_size=None, num_workers=2, multiprocessing_context=method)
    assert same(list(loader), items)
    assert same(results, expected)
    assert same(chunk_kda_bwd_intra(**job), expected)
    check()


# ---- CUDA graphs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, [64, 5, 130, 1]], ids=["dense", "varlen"])
def test_graph_replayed(served: Daemon, lengths: list[int] | None) -> None:
    """A captured job, replayed 100 times with other inputs, has bit for bit the results of uncaptured ones."""
    static = job_of(t=200, lengths=lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # nothing was computed in this process before
        captured = chunk_kda_bwd_intra(**static)
    wrong = []
    for n in range(100):
        other = None
        if lengths:  # the sequences change too
            other = [lengths[(i + n) % 4] for i in range(4)]
        job = job_of(t=200, lengths=other)
        for name in (*INPUTS, "cu_seqlens"):
            if job[name] is not None:
                static[name].copy_(job[name])
        graph.replay()
        right = chunk_kda_bwd_intra(**job)
        wrong.append(torch.stack([(a != b).any() for a, b in zip(captured, right)]).any())
    assert not torch.stack(wrong).any()
    counted = kdad.stats()
    assert counted["local"] == 1 and counted["reasons"] == {"local: CUDA graph capture": 1}
    assert counted["daemon"] == 100


# ---- Daemons that die -----------------------------------------------------------------------------------------------


def all_nan(results: Any) -> bool:
    return all(bool(result.isnan().all()) for result in results)


def test_daemon_killed_with_jobs(daemon: Daemon) -> None:
    """Jobs that a daemon had not done when it died are NaN, and an error; the next ones are computed here."""
    job = job_of()
    expected = chunk_kda_bwd_intra(**job)
    check()
    daemon.process.send_signal(signal.SIGSTOP)
    lost = [chunk_kda_bwd_intra(**job) for _ in range(3)]
    daemon.kill()
    torch.cuda.synchronize()
    assert all(all_nan(results) for results in lost)
    with pytest.raises(kdad.DaemonLost):
        check()
    check()  # said once
    assert same(chunk_kda_bwd_intra(**job), expected)
    assert kdad.stats() == {"daemon": 4, "local": 1, "fla": 0, "reasons": {"local: no daemon": 1}}
    daemon.start()
    time.sleep(_client._RETRY_SECONDS)
    assert same(chunk_kda_bwd_intra(**job), expected)
    assert kdad.stats()["daemon"] == 5


def test_next_job_tells_of_a_lost_one(daemon: Daemon) -> None:
    job = job_of()
    chunk_kda_bwd_intra(**job)
    check()
    daemon.process.send_signal(signal.SIGSTOP)
    lost = chunk_kda_bwd_intra(**job)
    daemon.kill()
    torch.cuda.synchronize()
    with pytest.raises(kdad.DaemonLost):
        chunk_kda_bwd_intra(**job)
    assert all_nan(lost)


class Step(torch.autograd.Function):
    """A function whose backward pass is a job, in which the daemon may die."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, job: dict[str, Any], victim: Daemon | None) -> torch.Tensor:
        ctx.job, ctx.victim = job, victim
        return x.sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.victim:
            ctx.victim.process.send_signal(signal.SIGSTOP)
        dq = chunk_kda_bwd_intra(**ctx.job)[0]
        if ctx.victim:
            ctx.victim.kill()
            torch.cuda.synchronize()
        return dq, None, None


def test_end_of_backward_tells_of_a_lost_job(daemon: Daemon) -> None:
    job = job_of()
    x = torch.zeros_like(job["dq"], requires_grad=True)
    Step.apply(x, job, None).backward()
    assert same([x.grad], chunk_kda_bwd_intra(**job)[:1])
    with pytest.raises(kdad.DaemonLost):
        Step.apply(x, job, daemon).backward()


LAST_JOB_LOST = """
import os, signal, sys
import torch, kdad
from reference import job_of
from kdad.torch import check, chunk_kda_bwd_intra

job = job_of()
chunk_kda_bwd_intra(**job)
check()
os.kill(int(sys.argv[1]), signal.SIGSTOP)
chunk_kda_bwd_intra(**job)
os.kill(int(sys.argv[1]), signal.SIGKILL)
torch.cuda.synchronize()
"""


def test_exit_tells_of_a_lost_job(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAST_JOB_LOST, str(daemon.process.pid)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "an earlier job: " in done.stderr
    daemon.process.wait()
