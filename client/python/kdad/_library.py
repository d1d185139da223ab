"""libkdad through ctypes: the functions of kdad.h, its statuses as exceptions, and a job's arguments as bytes.

The library lies beside this package, in lib/; $KDAD_LIBRARY names another.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_uint64, c_void_p
from pathlib import Path

# enum kdad_status
OK = 0
INVALID = 1
BAD_DATA = 2
LIMIT = 3
NO_MEMORY = 4
UNSUPPORTED = 5
NOT_FOUND = 6
DENIED = 7
CANCELLED = 8
PROTOCOL = 9
INTERNAL = 10
NO_DAEMON = 32
DAEMON_LOST = 33
TIMEOUT = 34
PENDING = 35
FORKED = 36

DEFAULT_TIMEOUT = -1

# enum kdad_dtype
BF16, F16, F32, I32, I64 = 1, 2, 3, 4, 5

# struct kdad_tensor: data, dtype, ndim, shape[4], stride[4]
_TENSOR = struct.Struct("=Qii4q4q")
ABSENT = bytes(_TENSOR.size)
# struct kdad_chunk_kda_bwd_intra_args: its tensors in their order, then chunk_size and safe_gate
TENSORS = (
    *("q", "k", "g", "beta", "dAqk", "dAkk", "dq", "dk", "db", "dg"),
    *("dq_out", "dk_out", "db_out", "dg_out", "cu_seqlens", "chunk_indices"),
)
_TAIL = struct.Struct("=ii")
ARGUMENTS_SIZE = len(TENSORS) * _TENSOR.size + _TAIL.size


class Stats(Structure):
    """struct kdad_stats"""

    _fields_ = [("jobs_daemon", c_uint64), ("jobs_in_process", c_uint64), ("jobs_captured", c_uint64)]


class Error(RuntimeError):
    """A call of libkdad that failed. ``status`` is its number in kdad.h; the text is its sentence."""

    status: int

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Invalid(Error, ValueError):
    """An argument is wrong: the sentence names it, what it is and what it must be. Nothing was written."""


class BadData(Error, ValueError):
    """cu_seqlens does not start at 0, falls, or ends beyond T, as was seen when the job ran."""


class NoDaemon(Error):
    """Nobody answers on the socket."""


class JobFailed(Error):
    """An earlier job on a GPU failed when it ran: its results are NaN."""


class DaemonLost(Error):
    """The daemon went away before a job was done. On a GPU its results are NaN."""


_CLASSES = {INVALID: Invalid, BAD_DATA: BadData, NO_DAEMON: NoDaemon, DAEMON_LOST: DaemonLost, CANCELLED: DaemonLost}


def error(status: int) -> Error:
    """The exception for a status that the calling thread's last call returned."""
    return _CLASSES.get(status, Error)(status, _sentence(status))


def job_error(status: int) -> Error:
    """The exception for what the calling thread's last call said of an earlier job."""
    return _CLASSES.get(status, JobFailed)(status, f"an earlier job: {_sentence(status)}")


def _sentence(status: int) -> str:
    return kdad_error().decode(errors="replace") or status_string(status)


def status_string(status: int) -> str:
    """A status in words: "invalid argument", "daemon lost" …"""
    return str(kdad_status_string(status).decode())


def pack_tensor(data: int, dtype: int, shape: Sequence[int], stride: Sequence[int]) -> bytes:
    """A struct kdad_tensor. Of more than four dimensions the library gets the first four, and refuses them."""
    n = len(shape)
    if n < 4:
        rest = (0,) * (4 - n)
        return _TENSOR.pack(data, dtype, n, *shape, *rest, *stride, *rest)
    return _TENSOR.pack(data, dtype, n, *shape[:4], *stride[:4])


def pack_arguments(tensors: Sequence[bytes], chunk_size: int, safe_gate: bool) -> bytes:
    """A struct kdad_chunk_kda_bwd_intra_args, of packed tensors in the order of TENSORS."""
    return b"".join(tensors) + _TAIL.pack(chunk_size, safe_gate)


def _load() -> ctypes.CDLL:
    path = os.environ.get("KDAD_LIBRARY") or str(Path(__file__).parent / "lib" / "libkdad.so.0")
    try:
        return ctypes.CDLL(path)
    except OSError as failure:
        raise ImportError(f"kdad: its library cannot be loaded: {failure}") from failure


_lib = _load()


def _function(name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
    function = getattr(_lib, name)
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]


_handle = POINTER(c_void_p)
kdad_connect = _function("kdad_connect", c_int, c_char_p, c_int, _handle)
kdad_disconnect = _function("kdad_disconnect", None, c_void_p)
kdad_stream_open = _function("kdad_stream_open", c_int, c_void_p, c_char_p, _handle)
kdad_cuda_stream_open = _function("kdad_cuda_stream_open", c_int, c_void_p, c_void_p, _handle)
kdad_stream_close = _function("kdad_stream_close", c_int, c_void_p)
kdad_trim = _function("kdad_trim", c_int, c_void_p)
kdad_chunk_kda_bwd_intra = _function("kdad_chunk_kda_bwd_intra", c_int, c_void_p, c_char_p, POINTER(c_uint64))
kdad_wait = _function("kdad_wait", c_int, c_void_p, c_uint64, c_int)
kdad_poll = _function("kdad_poll", c_int, c_void_p, c_uint64)
kdad_get_stats = _function("kdad_get_stats", None, c_void_p, POINTER(Stats))
kdad_error = _function("kdad_error", c_char_p)
kdad_status_string = _function("kdad_status_string", c_char_p, c_int)
kdad_version = _function("kdad_version", c_char_p)

__version__ = str(kdad_version().decode())
