"""A plugin for pytest that runs fla's own tests with kdad as fla's backend, and leaves each process's counts of jobs in
the folder $KDAD_COUNTS: KDAD_FLA=1 pytest -p fla_counts …/tests/ops/test_kda.py; then python fla_counts.py FOLDER."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path


class _Sentences(logging.Handler):
    """What kdad says of jobs that it did not send to the daemon."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


_sentences = _Sentences()


def pytest_configure() -> None:
    logging.getLogger("kdad").addHandler(_sentences)


def pytest_sessionfinish() -> None:
    import kdad

    path = Path(os.environ["KDAD_COUNTS"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps({**kdad.stats(), "said": _sentences.said}))


def total(folder: str) -> dict[str, object]:
    """The counts of all processes."""
    counts, reasons, said = Counter[str](), Counter[str](), set()
    for path in Path(folder).glob("*.json"):
        one = json.loads(path.read_text())
        counts.update({place: one[place] for place in ("daemon", "local", "fla")})
        reasons.update(one["reasons"])
        said.update(one["said"])
    return {**counts, "reasons": dict(reasons), "said": sorted(said)}


if __name__ == "__main__":
    print(json.dumps(total(sys.argv[1]), indent=2))
