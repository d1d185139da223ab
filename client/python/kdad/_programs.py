"""The console scripts kdad and kdactl: the programs that the package brings along."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def path(name: str) -> str:
    """Where a program of the package lies: "kdad", the daemon, or "kdactl"."""
    return str(Path(__file__).parent / "bin" / name)


def _become(name: str) -> NoReturn:
    os.execv(path(name), [name, *sys.argv[1:]])


def kdad() -> NoReturn:
    """Becomes the daemon."""
    _become("kdad")


def kdactl() -> NoReturn:
    """Becomes kdactl."""
    _become("kdactl")
