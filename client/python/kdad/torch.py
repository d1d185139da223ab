"""The intra-chunk backward of Kimi Delta Attention for PyTorch: the equal of fla's ``chunk_kda_bwd_intra``.

A job goes to the daemon. If the daemon cannot serve it (nobody answers, the CUDA stream is being captured into a graph,
memory that it cannot map), the same kernel computes it in this process. ``kdad.stats()`` counts both, and what is not
the daemon's is logged once.

On a GPU nothing here waits for it: the job takes its place in the current CUDA stream, behind what was put there before
and before what is put there afterwards, like any kernel. So tensors need to live as long as they must for a kernel, and
PyTorch's allocator sees to that. If the daemon dies, the results of the jobs that it had not done are NaN, and the next
call, the end of a backward pass, or ``check`` raises ``kdad.DaemonLost``, whichever comes first. As the host runs ahead
of the GPU, that may be a step later: ``check()`` between backward and the optimizer's step waits for the GPU, and lets
no lost gradient through.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from kdad import _client, _counters, _library
from kdad._library import ABSENT, DaemonLost, Error, Invalid, JobFailed
from kdad._own import own_function

__all__ = ["check", "chunk_kda_bwd_intra"]

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]

_DTYPES = {
    torch.bfloat16: _library.BF16,
    torch.float16: _library.F16,
    torch.float32: _library.F32,
    torch.int32: _library.I32,
    torch.int64: _library.I64,
}

# Statuses of a job that was not taken, and that another may take.
_AWAY = {_library.NO_DAEMON, _library.TIMEOUT, _library.DENIED, _library.PROTOCOL}
_ELSEWHERE = _AWAY | {_library.LIMIT, _library.NO_MEMORY, _library.UNSUPPORTED, _library.NOT_FOUND}


def chunk_kda_bwd_intra(
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
    dAqk: Tensor,
    dAkk: Tensor,
    dq: Tensor,
    dk: Tensor,
    db: Tensor,
    dg: Tensor,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    chunk_size: int = 64,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_graph: bool = False,
    **other: Any,
) -> Gradients:
    """Adds this step's gradients to the incoming ones. Signature and result are those of fla's function.

    With G = HV / H value heads for each head of q and k, and C = chunk_size:

    Args:
        q, k: ``[B, T, H, K]``, bfloat16, float16 or float32, both the same; K is 1 to 256.
        g: ``[B, T, HV, K]``, float32: log2 of the decay, summed along its chunk.
        beta: ``[B, T, HV]``, float32, bfloat16 or float16.
        dAqk, dAkk: ``[B, T, HV, C]``, float32. What lies above the diagonal is not read.
        dq, dk, dg: ``[B, T, HV, K]``, float32: incoming gradients. They are not changed.
        db: ``[B, T, HV]``, float32.
        cu_seqlens: ``[N + 1]``, int64 or int32, of sequences one after the other; then B is 1. Default: None.
        chunk_indices: taken for fla's sake, and not read.
        chunk_size: 16, 32, 64 or 128.
        safe_gate, lower_bound, use_graph: taken for fla's sake: they change no result.
        other: keywords of a later fla. One that is neither None nor False makes fla's own function compute the job.

    All are on one device, CPU or GPU, with any strides but a last dimension that is contiguous.

    Returns:
        dq, dk, db, dg: new tensors, float32, of the incoming ones' shapes. dq and dk stay per value head.

    Raises:
        kdad.Invalid: an argument is wrong; the text says which.
        kdad.BadData: cu_seqlens does not start at 0, falls, or ends beyond T. On a GPU a later call raises it.
        kdad.DaemonLost, kdad.JobFailed: an earlier job on a GPU was lost or failed: its results are NaN.
        kdad.Error: the job can be computed neither by the daemon nor in this process.
    """
    meant = [name for name, value in other.items() if value is not None and value is not False]
    if meant:
        keywords = dict(zip(_TENSORS, (q, k, g, beta, dAqk, dAkk, dq, dk, db, dg)), **other)
        keywords.update(cu_seqlens=cu_seqlens, chunk_indices=chunk_indices, chunk_size=chunk_size, safe_gate=safe_gate)
        if lower_bound is not None:
            keywords["lower_bound"] = lower_bound
        if use_graph:
            keywords["use_graph"] = use_graph
        own: Gradients = own_function(f"keyword {meant[0]}", f"kdad does not know the keyword {meant[0]}", **keywords)
        return own
    computed: Gradients = _operation(q, k, g, beta, dAqk, dAkk, dq, dk, db, dg, cu_seqlens, chunk_size, bool(safe_gate))
    return computed


def check() -> None:
    """Waits for this process's jobs on GPUs, and raises if one was lost or failed (kdad.DaemonLost, kdad.JobFailed) or
    had a bad cu_seqlens (kdad.BadData)."""
    for connection in _client.process.open_connections():
        for stream in connection.cuda_streams():
            with stream.lock:
                stream.ask(wait=True)


# ---- The operation: torch.ops.kdad.chunk_kda_bwd_intra --------------------------------------------------------------

_TENSORS = ("q", "k", "g", "beta", "dAqk", "dAkk", "dq", "dk", "db", "dg")
_SCHEMA = (
    "("
    + ", ".join(f"Tensor {name}" for name in _TENSORS)
    + ", Tensor? cu_seqlens, int chunk_size, bool safe_gate) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _implementation(*arguments: Any) -> Gradients:
    *inputs, cu_seqlens, chunk_size, safe_gate = arguments
    device = inputs[0].device
    _check_places(inputs, cu_seqlens, device)
    if device.type not in ("cpu", "cuda"):
        raise Invalid(_library.INVALID, f"q: is on {device}, but must be on a CPU or a CUDA device")
    incoming = inputs[6:]
    try:
        outputs = _outputs(*incoming)
    except torch.cuda.OutOfMemoryError:
        _client.trim()
        torch.cuda.empty_cache()
        outputs = _outputs(*incoming)
    packed = [_pack(t) for t in (*inputs, *outputs)]
    packed += [ABSENT if cu_seqlens is None else _pack(cu_seqlens), ABSENT]
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        _compute(_library.pack_arguments(packed, chunk_size, safe_gate), device)
    return outputs


def _fake(*arguments: Any) -> Gradients:
    _check_places(arguments[:10], arguments[10], arguments[0].device)
    return _outputs(*arguments[6:10])


_operation = torch.library.custom_op("kdad::chunk_kda_bwd_intra", _implementation, mutates_args=(), schema=_SCHEMA)
_operation.register_fake(_fake)


def _outputs(dq: Tensor, dk: Tensor, db: Tensor, dg: Tensor) -> Gradients:
    return torch.empty_like(dq), torch.empty_like(dk), torch.empty_like(db), torch.empty_like(dg)


def _check_places(inputs: Sequence[Tensor], cu_seqlens: Tensor | None, device: torch.device) -> None:
    named = list(zip(_TENSORS, inputs))
    if cu_seqlens is not None:
        named.append(("cu_seqlens", cu_seqlens))
    for name, tensor in named:
        if tensor.device != device:
            raise Invalid(_library.INVALID, f"{name}: is on {tensor.device}, but q is on {device}")
        if tensor.layout != torch.strided:
            raise Invalid(_library.INVALID, f"{name}: its layout is {tensor.layout}, but must be torch.strided")


def _pack(tensor: Tensor) -> bytes:
    # A type that kdad has no name for is 0: the library's sentence says what it must be.
    return _library.pack_tensor(tensor.data_ptr(), _DTYPES.get(tensor.dtype, 0), tensor.shape, tensor.stride())


# ---- Where a job goes -----------------------------------------------------------------------------------------------


def _compute(arguments: bytes, device: torch.device) -> None:
    """Has a job computed: by the daemon, else in this process."""
    cpu = device.type == "cpu"
    process = _client.process
    run = _run_on_cpu if cpu else _run_on_cuda
    if not cpu and torch.cuda.is_current_stream_capturing():
        status, why, sentence = _library.UNSUPPORTED, "CUDA graph capture", "its CUDA stream is being captured"
    else:
        try:
            run(process.get_daemon(), arguments, device)
            return
        except Error as failure:
            lost_on_cpu = cpu and isinstance(failure, DaemonLost)  # its outputs were not written: nobody has seen them
            if isinstance(failure, JobFailed) or not (failure.status in _ELSEWHERE or lost_on_cpu):
                raise
            if failure.status in _AWAY:
                process.daemon_is_away(failure)
            # The exception itself would keep this frame, and with it tensors, until a garbage collection.
            status, why, sentence = failure.status, _library.status_string(failure.status), str(failure)
    try:
        run(process.get_local(), arguments, device)
    except Error as failure:
        if failure.status not in _ELSEWHERE:
            raise
        raise Error(status, f"{sentence}; and in this process: {failure}") from failure
    _counters.say("local", why, sentence)


def _run_on_cpu(connection: _client.Connection, arguments: bytes, device: torch.device) -> None:
    stream = connection.cpu_stream()
    try:
        stream.wait(stream.submit(arguments))
    except Error:
        connection.give_back(stream)
        raise
    except BaseException:
        stream.close()  # so that nothing is copied to outputs that are gone
        raise
    connection.give_back(stream)


def _run_on_cuda(connection: _client.Connection, arguments: bytes, device: torch.device) -> None:
    cuda_stream = torch.cuda.current_stream(device).cuda_stream
    stream = connection.find_cuda_stream(device.index, cuda_stream)
    capturing = torch.cuda.is_current_stream_capturing()
    if not stream:
        if not capturing:
            torch.cuda.mem_get_info(device)  # makes the device's context the thread's, if it had none yet
        stream = connection.open_cuda_stream(device.index, cuda_stream)
    with stream.lock:
        if not capturing:
            stream.ask()
        ticket = stream.submit(arguments)
        if ticket:  # 0: of a job that was captured
            stream.unasked.append(ticket)
            _ask_after_backward(stream)
    connection.say_unshared()


def _ask_after_backward(stream: _client.Stream) -> None:
    """At the end of the backward pass that this thread is in, if any: raises what has befallen jobs by then."""
    backward = torch._C._current_graph_task_id()
    if backward in (-1, stream.asked_after):
        return
    stream.asked_after = backward

    def ask() -> None:
        with stream.lock:
            stream.ask()

    torch.autograd.Variable._execution_engine.queue_callback(ask)
