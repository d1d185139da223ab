"""This process's connections and streams: one connection to the daemon, one that computes in this process.

A stream for tensors of the CPU serves one job at a time and is taken from a pool. A stream for a GPU belongs to one
CUDA stream; jobs that several threads submit to it go one after the other. A forked child begins with nothing: its
parent's connections are the parent's.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections import deque
from typing import Callable

from kdad import _counters, _library
from kdad._library import error, job_error

_RETRY_SECONDS = 2.0  # before a daemon that was away is looked for again …
_RETRY_HUNG_SECONDS = 60.0  # … and one that did not answer in time
_WAIT_MS = 200  # of one wait, so that a signal gets its turn
_ASKABLE = 1000  # jobs of a stream; the library remembers 1,024, and tells of older ones when it gets the next


class Stream:
    """A struct kdad_stream. lock: held by who submits, and by who asks what became of jobs."""

    def __init__(self, open_stream: Callable[[ctypes.c_void_p], int]) -> None:
        handle = ctypes.c_void_p()
        status = open_stream(handle)
        if status:
            raise error(status)
        self.handle = handle
        self.lock = threading.Lock()
        self.unasked: deque[int] = deque(maxlen=_ASKABLE)  # on a GPU: tickets that were not yet found done
        self.asked_after = -1  # the backward pass whose end will ask

    def submit(self, arguments: bytes) -> int:
        """Submits a job, a struct kdad_chunk_kda_bwd_intra_args; returns its ticket."""
        ticket = ctypes.c_uint64()
        status = _library.kdad_chunk_kda_bwd_intra(self.handle, arguments, ctypes.byref(ticket))
        if status:
            raise error(status)
        return ticket.value

    def wait(self, ticket: int) -> None:
        """Waits until a job is done, or the daemon dies."""
        while True:
            status = _library.kdad_wait(self.handle, ticket, _WAIT_MS)
            if status == _library.OK:
                return
            if status != _library.TIMEOUT:
                raise error(status)

    def ask(self, wait: bool = False) -> None:
        """Raises what befell an earlier job, once. With wait, all are done when it returns."""
        while self.unasked:
            ticket = self.unasked[0]
            if wait:
                status = _library.kdad_wait(self.handle, ticket, _WAIT_MS)
            else:
                status = _library.kdad_poll(self.handle, ticket)
            if status == _library.OK:
                self.unasked.popleft()
            elif status not in (_library.TIMEOUT, _library.PENDING):
                self.unasked.clear()
                raise job_error(status)
            elif not wait:
                return

    def close(self) -> None:
        _library.kdad_stream_close(self.handle)


class Connection:
    """A struct kdad_connection. address: a path, "local:", or None for the library's own rule."""

    def __init__(self, address: str | None) -> None:
        handle = ctypes.c_void_p()
        status = _library.kdad_connect(address and address.encode(), _library.DEFAULT_TIMEOUT, handle)
        if status:
            raise error(status)
        self.handle = handle
        self.in_process = (address or os.environ.get("KDAD_SOCKET")) == "local:"
        self._unsaid = 1  # the next job that libkdad computes in this process though the daemon was meant
        self._lock = threading.Lock()
        self._idle: list[Stream] = []  # for the CPU
        self._cuda: dict[tuple[int, int], Stream] = {}

    def cpu_stream(self) -> Stream:
        """A stream for the CPU, this caller's until it gives it back."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Stream(lambda stream: int(_library.kdad_stream_open(self.handle, b"cpu", stream)))

    def give_back(self, stream: Stream) -> None:
        with self._lock:
            self._idle.append(stream)

    def find_cuda_stream(self, device: int, cuda_stream: int) -> Stream | None:
        """The stream that belongs to a CUDA stream, if it is open."""
        return self._cuda.get((device, cuda_stream))

    def open_cuda_stream(self, device: int, cuda_stream: int) -> Stream:
        """Opens it, in the calling thread's current CUDA context."""
        with self._lock:
            if (device, cuda_stream) not in self._cuda:
                stream = Stream(lambda s: int(_library.kdad_cuda_stream_open(self.handle, cuda_stream, s)))
                self._cuda[device, cuda_stream] = stream
            return self._cuda[device, cuda_stream]

    def cuda_streams(self) -> list[Stream]:
        with self._lock:
            return list(self._cuda.values())

    def jobs(self) -> tuple[int, int]:
        """Jobs sent to the daemon, and computed in this process."""
        counts = _library.Stats()
        _library.kdad_get_stats(self.handle, counts)
        return counts.jobs_daemon, counts.jobs_in_process + counts.jobs_captured

    def say_unshared(self) -> None:
        """Tells of jobs that libkdad kept from the daemon, as their memory on a GPU cannot be shared with it."""
        with self._lock:
            counts = _library.Stats()
            _library.kdad_get_stats(self.handle, counts)
            while not self.in_process and self._unsaid <= counts.jobs_in_process:
                self._unsaid += 1
                _counters.say("local", "memory not shared", "its memory on the GPU cannot be shared with the daemon")

    def trim(self) -> None:
        _library.kdad_trim(self.handle)

    def close(self) -> None:
        _library.kdad_disconnect(self.handle)


class _Process:
    """What a process has: made anew in a forked child."""

    def __init__(self, jobs: tuple[int, int] = (0, 0)) -> None:
        self.jobs = jobs  # of connections that have ended: see Connection.jobs
        self.lock = threading.Lock()
        self.daemon: Connection | None = None
        self.local: Connection | None = None
        self.away: _library.Error | None = None  # why the daemon was not reached …
        self.look_again = 0.0  # … and when to look again

    def get_daemon(self) -> Connection:
        """Raises why the daemon cannot be reached; asks it again only now and then."""
        with self.lock:
            if self.away and time.monotonic() < self.look_again:
                raise type(self.away)(self.away.status, str(self.away))
            if not self.daemon:
                try:
                    self.daemon = Connection(None)
                except _library.Error as failure:
                    self._note(failure)
                    raise
            self.away = None
            return self.daemon

    def daemon_is_away(self, why: _library.Error) -> None:
        with self.lock:
            self._note(why)

    def _note(self, why: _library.Error) -> None:
        self.away = why
        hung = why.status == _library.TIMEOUT
        self.look_again = time.monotonic() + (_RETRY_HUNG_SECONDS if hung else _RETRY_SECONDS)

    def get_local(self) -> Connection:
        with self.lock:
            if not self.local:
                self.local = Connection("local:")
            return self.local

    def open_connections(self) -> list[Connection]:
        with self.lock:
            return [c for c in (self.daemon, self.local) if c]


process = _Process()


def _after_fork() -> None:
    global process
    process = _Process()
    _counters.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def disconnect() -> None:
    """Ends this process's connections, with their streams. No other thread may be using kdad.

    The next job connects anew: to the socket that $KDAD_SOCKET names by then.
    """
    global process
    ended = process
    process = _Process(_jobs(ended))
    for connection in ended.open_connections():
        connection.close()


def _jobs(of: _Process) -> tuple[int, int]:
    each = [of.jobs, *(connection.jobs() for connection in of.open_connections())]
    return sum(daemon for daemon, _ in each), sum(local for _, local in each)


def _tell_at_exit() -> None:
    """The last chance to learn that a job on a GPU was lost: nothing asks any more."""
    for connection in process.open_connections():
        for stream in connection.cuda_streams():
            try:
                stream.ask()
            except _library.Error as failure:
                _counters.logger.error("%s", failure)


atexit.register(_tell_at_exit)


def stats() -> _counters.Stats:
    """This process's jobs so far, by where they were computed, and why some did not go to the daemon.

    A copy. A forked child begins at 0.
    """
    return _counters.stats(*_jobs(process))


def trim() -> None:
    """Gives back what the daemon has mapped of this process's GPU memory.

    So memory that was freed (``torch.cuda.empty_cache()``) goes back to the GPU at once; without it, two seconds
    after its last job. What is in use is mapped again by the next job.
    """
    for connection in process.open_connections():
        connection.trim()
