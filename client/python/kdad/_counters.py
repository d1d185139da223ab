"""What became of this process's jobs, counted; and what is said once, logged."""

from __future__ import annotations

import logging
import threading
from typing import TypedDict

logger = logging.getLogger("kdad")


class Stats(TypedDict):
    """Jobs of this process, by where they were computed."""

    daemon: int
    """sent to the daemon"""
    local: int
    """computed by kdad's kernel in this process; one that went into a CUDA graph counts once, however often it runs"""
    fla: int
    """computed by fla's own function"""
    reasons: dict[str, int]
    """why jobs did not go to the daemon, such as "local: no daemon", and how many each"""


_lock = threading.Lock()
_fla = 0
_reasons: dict[str, int] = {}


def count_fla() -> None:
    """Counts a job as fla's."""
    global _fla
    with _lock:
        _fla += 1


def say(where: str, why: str, sentence: str) -> None:
    """Counts a reason for computing a job elsewhere than in the daemon, and logs it the first time."""
    reason = f"{where}: {why}"
    with _lock:
        first = reason not in _reasons
        _reasons[reason] = _reasons.get(reason, 0) + 1
    if first:
        place = "in this process" if where == "local" else "by fla's own function"
        logger.warning("a job is computed %s: %s (said once; kdad.stats() counts)", place, sentence)


def stats(daemon: int, local: int) -> Stats:
    """The counts of this module with those of libkdad."""
    with _lock:
        return Stats(daemon=daemon, local=local, fla=_fla, reasons=dict(_reasons))


def after_fork() -> None:
    """In a child: begins anew. Another thread of the parent may have held the lock."""
    global _lock, _fla
    _lock = threading.Lock()
    _fla = 0
    _reasons.clear()
