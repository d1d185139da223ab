"""Measures what kdad changes in fla's chunk_kda on a GPU, and prints it as JSON: python tests/measure.py [--quick]

step: the intra-chunk backward alone. whole: forward and backward of chunk_kda, in ms, medians of rounds in which both
ways take turns. first: seconds from the start of a process to the first gradients, with an empty Triton cache, of both.
KDAD_SOCKET names the daemon.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

SHAPE = (1, 8192, 32, 128)


def inputs_of(b: int, t: int, h: int, k: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    q, key = (F.normalize(torch.randn(b, t, h, k, device="cuda"), dim=-1).bfloat16() for _ in range(2))
    v = torch.randn(b, t, h, k, device="cuda").bfloat16()
    g = F.logsigmoid(torch.randn(b, t, h, k, device="cuda"))
    beta = torch.rand(b, t, h, device="cuda").bfloat16()
    return [x.requires_grad_() for x in (q, key, v, g, beta)]


def milliseconds(call: Callable[[], Any], times: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def both_ways(call: Callable[[], Any], rounds: int, times: int) -> dict[str, float]:
    """Median ms with kdad and with fla alone."""
    import kdad.fla

    ways = {"kdad": kdad.fla.enable, "fla": kdad.fla.disable}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for switch in ways.values():  # compiles, opens streams, maps memory
        switch()
        milliseconds(call, 3)
    for _ in range(rounds):
        for way, switch in ways.items():
            switch()
            call()
            found[way].append(milliseconds(call, times))
    medians = {way: round(statistics.median(times), 4) for way, times in found.items()}
    return {**medians, "times faster": round(medians["fla"] / medians["kdad"], 3)}


def measure_whole(rounds: int, **options: Any) -> dict[str, float]:
    from fla.ops.kda import chunk_kda

    inputs = inputs_of(*SHAPE)
    weight = torch.randn_like(inputs[2])
    return both_ways(lambda: torch.autograd.grad(chunk_kda(*inputs, **options)[0], inputs, weight), rounds, 10)


def measure_step(rounds: int, **options: Any) -> dict[str, float]:
    from fla.ops.kda import chunk_intra
    from reference import job_of

    b, t, h, k = SHAPE
    job = job_of(b, t, h, h, k)
    return both_ways(lambda: chunk_intra.chunk_kda_bwd_intra(**job, **options), rounds, 10)


FIRST = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "step":
    from reference import job_of
    if sys.argv[3] == "kdad":
        from kdad.torch import chunk_kda_bwd_intra
    else:
        from fla.ops.kda.chunk_intra import chunk_kda_bwd_intra
    chunk_kda_bwd_intra(**job_of(1, 8192, 32, 32, 128))
else:
    from measure import SHAPE, inputs_of
    from fla.ops.kda import chunk_kda
    inputs = inputs_of(*SHAPE)
    out, _ = chunk_kda(*inputs)
    torch.autograd.grad(out, inputs, torch.randn_like(out))
torch.cuda.synchronize()
"""


def first_result(what: str) -> dict[str, float]:
    """Seconds of both ways, side by side: two processes that start together."""
    started: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        for way in ("kdad", "fla"):
            environment = {**os.environ, "TRITON_CACHE_DIR": f"{cache}/{way}", "KDAD_FLA": str(int(way == "kdad"))}
            command = [sys.executable, "-c", FIRST, os.path.dirname(os.path.abspath(__file__)), what, way]
            started[way] = time.monotonic(), subprocess.Popen(command, env=environment)
        seconds: dict[str, float] = {}
        while len(seconds) < len(started):
            for way, (start, process) in started.items():
                if way not in seconds and process.poll() is not None:
                    assert process.returncode == 0, way
                    seconds[way] = round(time.monotonic() - start, 2)
            time.sleep(0.02)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--no-first", action="store_true", help="leave out the first results")
    options = parser.parse_args()
    rounds = 3 if options.quick else 11
    import kdad

    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "shape [B, T, H = HV, K = V]": SHAPE}
    if not options.no_first:
        results["first result of the step, s"] = first_result("step")
        results["first result of the whole, s"] = first_result("whole")
    results["step, ms"] = measure_step(rounds)
    results["step, safe_gate, ms"] = measure_step(rounds, safe_gate=True)
    results["whole, ms"] = measure_whole(rounds)
    results["whole, safe_gate, ms"] = measure_whole(rounds, safe_gate=True)
    results["jobs"] = kdad.stats()
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
