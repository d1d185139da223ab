"""Threads, forked and spawned children, and daemons that die, stop and come back."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from typing import Any

import pytest
import torch
from conftest import Daemon, random_job, same

import kdad
from kdad import _client
from kdad.torch import check, chunk_kda_bwd_intra


class Jobs(torch.utils.data.Dataset[Any]):
    """A data set whose items are results: what a DataLoader's worker computes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        dq = chunk_kda_bwd_intra(**random_job(t=50 + index))[0]
        assert kdad.stats()["daemon"] > 0, kdad.stats()
        return dq.flatten()[:64]


def test_threads(daemon: Daemon) -> None:
    jobs = [random_job(t=64 + n) for n in range(8)]
    expected = [chunk_kda_bwd_intra(**job) for job in jobs]
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(25):
            if not same(chunk_kda_bwd_intra(**jobs[n]), expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert kdad.stats()["daemon"] == 8 + 8 * 25


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(daemon: Daemon, method: str) -> None:
    expected = [chunk_kda_bwd_intra(**random_job(t=50 + n))[0].flatten()[:64] for n in range(4)]
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Jobs(), batch_size=None, num_workers=2, multiprocessing_context=method)
    assert same(list(loader), expected)
    assert same(chunk_kda_bwd_intra(**random_job(t=50))[0].flatten()[:64], expected[0]), "the parent goes on"


@pytest.mark.parametrize("served", [True, False])
def test_fork_while_in_use(request: pytest.FixtureRequest, served: bool) -> None:
    if served:
        request.getfixturevalue("daemon")
    expected = chunk_kda_bwd_intra(**random_job())
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            chunk_kda_bwd_intra(**random_job())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            child = multiprocessing.get_context("fork").Process(target=_child, args=(expected, served))
            child.start()
            child.join(60)
            assert child.exitcode == 0
    finally:
        over.set()
        thread.join()


def _child(expected: Any, served: bool) -> None:
    right = same(chunk_kda_bwd_intra(**random_job()), expected)
    counts = kdad.stats()
    os._exit(0 if right and counts["daemon" if served else "local"] == 1 else 1)


def test_daemon_killed_and_started_again(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    job = random_job()
    expected = chunk_kda_bwd_intra(**job)
    daemon.kill()
    with caplog.at_level(logging.WARNING, logger="kdad"):
        for _ in range(3):
            assert same(chunk_kda_bwd_intra(**job), expected), "the same kernel, in this process"
    assert kdad.stats()["local"] == 3
    assert len(caplog.records) == len(kdad.stats()["reasons"]), "each reason is said once"
    daemon.start()
    time.sleep(_client._RETRY_SECONDS)
    served = kdad.stats()["daemon"]
    assert same(chunk_kda_bwd_intra(**job), expected)
    assert kdad.stats()["daemon"] == served + 1


def test_daemon_killed_under_jobs(daemon: Daemon) -> None:
    job = random_job(t=2000)
    expected = chunk_kda_bwd_intra(**job)
    wrong: list[bool] = []

    def work() -> None:
        for _ in range(20):
            if not same(chunk_kda_bwd_intra(**job), expected):
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    daemon.kill()
    for thread in threads:
        thread.join()
    assert not wrong
    counts = kdad.stats()
    assert counts["local"] > 0
    assert counts["daemon"] + counts["local"] >= 61


def test_daemon_that_starts_late() -> None:
    assert kdad.stats()["local"] == 0
    chunk_kda_bwd_intra(**random_job())
    assert kdad.stats() == {"daemon": 0, "local": 1, "fla": 0, "reasons": {"local: no daemon": 1}}


def test_disconnect_follows_the_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk_kda_bwd_intra(**random_job())
    monkeypatch.setenv("KDAD_SOCKET", "local:")
    kdad.disconnect()
    chunk_kda_bwd_intra(**random_job())
    assert kdad.stats() == {"daemon": 1, "local": 1, "fla": 0, "reasons": {}}


def test_check_and_trim_without_a_gpu(daemon: Daemon) -> None:
    chunk_kda_bwd_intra(**random_job())
    check()
    kdad.trim()


def test_no_descriptor_is_left(daemon: Daemon) -> None:
    chunk_kda_bwd_intra(**random_job())
    kdad.disconnect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        chunk_kda_bwd_intra(**random_job())
        kdad.disconnect()
    assert len(os.listdir("/proc/self/fd")) == before
