"""kdad: a kernel daemon for the intra-chunk backward of Kimi Delta Attention (KDA), from Python.

``kdad.torch`` has the operation for PyTorch, ``kdad.fla`` makes flash-linear-attention use it. This module has
what both share: errors, counters, and the end of this process's connections. It imports neither torch nor fla.
"""

from kdad._client import disconnect, stats, trim
from kdad._counters import Stats
from kdad._library import BadData, DaemonLost, Error, Invalid, JobFailed, NoDaemon, __version__

__all__ = [
    "BadData",
    "DaemonLost",
    "Error",
    "Invalid",
    "JobFailed",
    "NoDaemon",
    "Stats",
    "__version__",
    "disconnect",
    "stats",
    "trim",
]
