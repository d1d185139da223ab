"""fla's own function for a job: what kdad refuses goes there."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from kdad import _counters


def own_function(why: str, sentence: str, *arguments: Any, **keywords: Any) -> Any:
    """Calls fla's chunk_kda_bwd_intra, without its dispatch to backends, and counts the job as fla's."""
    module = importlib.import_module("fla.ops.kda.chunk_intra")
    _counters.say("fla", why, sentence)
    gradients = inspect.unwrap(module.chunk_kda_bwd_intra)(*arguments, **keywords)
    _counters.count_fla()
    return gradients
