"""kdad as a backend of flash-linear-attention (fla): ``kdad.fla.enable()``, or KDAD_FLA=1 in the environment.

Then ``fla.ops.kda.chunk_kda``, and the layers and models on top of it, use kdad for the intra-chunk part of their
backward pass. What kdad refuses, or can compute neither in the daemon nor in this process, fla's own function computes.
``kdad.stats()`` counts, and each reason is logged once.

Works with fla-core 0.6 (``fla.backends``) and 0.5.2 (``fla.ops.backends``).
"""

from __future__ import annotations

import importlib
from typing import Any

from kdad._library import BadData, DaemonLost, Error, JobFailed, status_string
from kdad._own import own_function
from kdad.torch import chunk_kda_bwd_intra

__all__ = ["disable", "enable"]

_backend: Any = None


def enable() -> None:
    """Registers kdad with fla's dispatch for the KDA operations. Does nothing if it is registered.

    Raises:
        ImportError: there is no fla, or one whose dispatch kdad does not know.
        RuntimeError: fla's dispatch is off (FLA_DISABLE_BACKEND_DISPATCH=1).
    """
    global _backend
    if _backend is None:
        _backend = _register()
    _backend.enabled = True


def disable() -> None:
    """Undoes enable(): fla chooses as without kdad."""
    if _backend is not None:
        _backend.enabled = False


def _register() -> Any:
    try:
        dispatch = importlib.import_module("fla.backends")
    except ModuleNotFoundError as missing:
        if missing.name != "fla.backends":
            raise
        dispatch = importlib.import_module("fla.ops.backends")
    if dispatch._DISPATCH_DISABLED:
        raise RuntimeError("kdad: fla's dispatch to backends is off (FLA_DISABLE_BACKEND_DISPATCH=1)")
    backend = _backend_class(dispatch.BaseBackend)
    if hasattr(dispatch, "register"):  # fla-core 0.6
        dispatch.register("kda")(backend)
    else:
        importlib.import_module("fla.ops.kda.backends").kda_registry.register(backend())
    return backend


def _backend_class(base: Any) -> Any:
    class KdadBackend(base):  # type: ignore[misc]
        """Takes chunk_kda_bwd_intra of fla's KDA operations, and no other."""

        backend_type = "kdad"
        priority = 1  # before fla's others for NVIDIA GPUs
        enabled = True

        @classmethod
        def is_available(cls) -> bool:
            return cls.enabled

        def chunk_kda_bwd_intra(self, *arguments: Any, **keywords: Any) -> Any:
            try:
                return chunk_kda_bwd_intra(*arguments, **keywords)
            except (BadData, DaemonLost, JobFailed):
                raise
            except Error as refusal:
                return own_function(status_string(refusal.status), str(refusal), *arguments, **keywords)

    return KdadBackend
