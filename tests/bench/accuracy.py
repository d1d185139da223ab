"""Measures the errors of kdad, of fla and of a given Triton kernel against float64, over gates from weak to strong.

    python tests/bench/accuracy.py [--seed FILE] [--out FOLDER]

The error of an output is |out - ref| / |ref|, norms over the whole tensor, with incoming gradients of 0: so relative to
what the step adds. Options, files (accuracy.json, accuracy.svg) and exit codes are those of peers.py.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import plot
import torch
import ways

STRENGTHS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 4.0, 16.0, 64.0)
GOAL = 2e-6
OUTPUTS = ("dq", "dk", "db", "dg")


def make(strength: float) -> dict[str, Any]:
    """Gates of a model, times a strength: g falls by 0.08 a row on average where it is 1."""
    torch.manual_seed(0)
    job = ways.job_of(t=1000, h=2, hv=4, k=128)
    job["g"] *= strength
    for name in OUTPUTS:
        job[name].zero_()
    return job


def errors(way: ways.Way, job: dict[str, Any], expected: list[torch.Tensor]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, out, ref in zip(OUTPUTS, way(job), expected):
        found[name] = ((out.double() - ref).norm() / ref.norm()).item() if out.isfinite().all() else math.inf
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=Path, help="a Triton kernel to compare with")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for accuracy.json and accuracy.svg")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("accuracy.py: skipped: no GPU that PyTorch can use")
        return 77
    results: dict[str, dict[float, dict[str, float]]] = {}
    with ways.find(options.seed) as found:
        for strength in STRENGTHS:
            job = make(strength)
            expected = ways.reference(job)
            for name, way in found.items():
                try:
                    results.setdefault(name, {})[strength] = errors(way, job, expected)
                except Exception as failure:  # a way that does not run here
                    print(f"{name}: {type(failure).__name__}: {failure}", file=sys.stderr)
    print("gates".ljust(10) + "way".ljust(20) + "".join(name.rjust(10) for name in OUTPUTS))
    for strength in STRENGTHS:
        for name, rows in results.items():
            if strength in rows:
                print(f"x{strength:<9g}{name.ljust(20)}" + "".join(f"{rows[strength][x]:10.1e}" for x in OUTPUTS))
    device = torch.cuda.get_device_name()
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"device": device, "errors": results}, indent=2)
    (options.out / "accuracy.json").write_text(text + "\n")
    worst = {name: {x: max(row.values()) for x, row in rows.items()} for name, rows in results.items()}
    title = f"Largest error of dq, dk, db, dg on an {device}"
    plot.lines(options.out / "accuracy.svg", title, "strength of the gates", worst, GOAL)
    ours = [value for name, curve in worst.items() if name.startswith("kdad") for value in curve.values()]
    return 0 if ours and max(ours) <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
