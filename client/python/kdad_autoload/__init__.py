"""KDAD_FLA=1: kdad registers with fla by itself, as soon as fla's KDA operations are imported.

torch calls autoload() at the end of its own import (entry point "torch.backends", torch 2.5 and later). fla may not be
imported by then, nor be wanted at all: so a finder waits for the module with the backends of its KDA operations. This is
a package of its own, so that an import of torch does not load kdad, nor fail if kdad does.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_AWAITED = "fla.ops.kda.backends"


def autoload() -> None:
    """Does what KDAD_FLA asks for: nothing if it is unset, empty or 0."""
    if os.environ.get("KDAD_FLA", "0") in ("", "0"):
        return
    if _AWAITED in sys.modules:
        _enable()
    else:
        sys.meta_path.insert(0, _Finder())


def _enable() -> None:
    try:
        from kdad import fla

        fla.enable()
    except Exception as failure:  # an import of torch or fla must not fail for it
        logging.getLogger("kdad").warning("KDAD_FLA is set, but kdad is not fla's backend: %s", failure)


class _Finder(MetaPathFinder):
    """Lets others find the module that is waited for, and enables kdad behind its execution."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _enable()

            loader.exec_module = exec_module
        return spec
