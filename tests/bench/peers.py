"""Times the step of kdad, of fla and of a given Triton kernel against a copy of the same bytes, on a GPU.

    python tests/bench/peers.py [--seed FILE] [--quick] [--out FOLDER]

All ways run in this process and take turns; the figures are medians, in ms. Small shapes go through several jobs, so
that none finds its inputs in the GPU's caches. KDAD_SOCKET names the daemon. --seed: a Python file, or a patch that
adds one, with a function chunk_kda_bwd_intra.... Prints a table; writes peers.json and peers.svg to the folder (.).
Ends with 77 if there is no GPU, with 1 if kdad is not among the ways.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import plot
import torch
import ways

CACHES = 256 << 20  # bytes that surely do not fit

SHAPES: dict[str, dict[str, Any]] = {
    "[8, 8192, 32, 32, 128]": {"b": 8, "t": 8192, "h": 32, "hv": 32},
    "[4, 8192, 16, 32, 128]": {"b": 4, "t": 8192, "h": 16, "hv": 32},
    "[1, 8192, 32, 32, 128]": {"t": 8192, "h": 32, "hv": 32},
    "[1, 4096, 16, 16, 128]": {"t": 4096, "h": 16, "hv": 16},
    "[1, 1024, 8, 8, 128]": {"t": 1024, "h": 8, "hv": 8},
    "64 sequences, 65536 rows": {"lengths": 64, "t": 65536, "h": 32, "hv": 32},
    "[4, 8192, 32, 32, 64]": {"b": 4, "t": 8192, "h": 32, "hv": 32, "k": 64},
    "[2, 8192, 32, 32, 256]": {"b": 2, "t": 8192, "h": 32, "hv": 32, "k": 256},
}


def make(shape: dict[str, Any]) -> dict[str, Any]:
    options = dict(shape)
    if number := options.pop("lengths", None):
        generator = torch.Generator().manual_seed(7)
        cuts = torch.randperm(options["t"] - 1, generator=generator)[: number - 1].sort().values + 1
        bounds = [0, *cuts.tolist(), options.pop("t")]
        options["lengths"] = [end - begin for begin, end in zip(bounds, bounds[1:])]
    return ways.job_of(**options)


def traffic(job: dict[str, Any]) -> int:
    """Bytes that must be read and written; of dA the tiles of 16 x 16 that are not above the diagonal."""
    total = 0
    for name, tensor in job.items():
        if isinstance(tensor, torch.Tensor) and name != "cu_seqlens":
            size = tensor.numel() * tensor.element_size()
            tiles = job["chunk_size"] // 16
            total += size * (tiles + 1) // (2 * tiles) if name.startswith("dA") else size
            total += size if name in ("dq", "dk", "db", "dg") else 0
    return total


def measure(found: dict[str, ways.Way], shape: dict[str, Any], rounds: int) -> dict[str, float]:
    first = make(shape)
    count = traffic(first)
    jobs = [first] + [make(shape) for _ in range(min(40, CACHES // count))]
    buffers = [torch.ones(2, count // 2, dtype=torch.uint8, device="cuda") for _ in jobs]
    calls: dict[str, Any] = {"copy": lambda: [both[1].copy_(both[0]) for both in buffers]}
    for name, way in found.items():
        try:
            way(first)
            torch.cuda.synchronize()
            calls[name] = lambda way=way: [way(job) for job in jobs]
        except Exception as failure:  # a way that does not take the shape
            print(f"{name}: {type(failure).__name__}: {failure}", file=sys.stderr)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            if number >= 2:
                times[name].append(begin.elapsed_time(end) / len(jobs))
    return {name: statistics.median(values) for name, values in times.items()}


def show(results: dict[str, dict[str, float]]) -> None:
    names = list(dict.fromkeys(name for row in results.values() for name in row))
    print("ms (times the copy)".ljust(26) + "".join(name.rjust(20) for name in names))
    for shape, row in results.items():
        cells = [f"{row[name]:.4f} ({row[name] / row['copy']:.2f})" if name in row else "-" for name in names]
        print(shape.ljust(26) + "".join(cell.rjust(20) for cell in cells), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=Path, help="a Triton kernel to compare with")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for peers.json and peers.svg")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers.py: skipped: no GPU that PyTorch can use")
        return 77
    results: dict[str, dict[str, float]] = {}
    with ways.find(options.seed) as found:
        for name, shape in SHAPES.items():
            torch.manual_seed(0)
            results[name] = measure(found, shape, 3 if options.quick else 15)
            torch.cuda.empty_cache()
    show(results)
    device = torch.cuda.get_device_name()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "peers.json").write_text(json.dumps({"device": device, "ms": results}, indent=2) + "\n")
    title = f"The step on an {device}: shorter is better; the line is a copy of the same bytes"
    plot.bars(options.out / "peers.svg", title, results, "copy")
    return 0 if "kdad" in found or "kdad, in process" in found else 1


if __name__ == "__main__":
    sys.exit(main())
