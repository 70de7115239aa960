"""Collectives on GPU memory, by NCCL (CuPy's binding), on a stream of their own beside the one that computes.

A call makes the side stream wait for what the current stream has been given, and returns a request; `join` makes the
current stream wait for the result. The host waits for nothing, so the same calls can be captured into a CUDA graph.
"""

from __future__ import annotations

from typing import Any

from ..errors import message
from .environment import World
from .store import Client

_OPS = {"sum": 0, "mean": 4, "max": 2}  # ncclRedOp_t: ncclSum, ncclAvg, ncclMax
_ID_SECONDS = 300.0
# by NumPy's name of the dtype: ncclDataType_t
_TYPES = {
    "int8": 0,
    "bool": 1,
    "uint8": 1,
    "int32": 2,
    "int64": 4,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}


class Request:
    """A collective under way on the side stream."""

    def __init__(self, backend: NcclBackend, keep: Any):
        self._backend, self._keep = backend, keep
        self.is_captured = backend.cupy.cuda.get_current_stream().is_capturing()  # into a graph: it runs at each replay
        self._event = backend.cupy.cuda.Event(disable_timing=True)
        self._event.record(backend.stream)

    def join(self) -> None:
        """What the current stream is given from now on comes after the collective."""
        self._backend.cupy.cuda.get_current_stream().wait_event(self._event)

    def is_done(self) -> bool:
        return bool(self._event.done)


class NcclBackend:
    """One communicator of all ranks, this one on GPU `device`. Errors: RuntimeError where NCCL or the GPU is missing."""

    def __init__(self, world: World, store: Client, device: int):
        self.cupy, nccl = _import()
        self.rank, self.size = world.rank, world.size
        with self.cupy.cuda.Device(device):
            self.stream = self.cupy.cuda.Stream(non_blocking=True)
            self._comm = nccl.NcclCommunicator(world.size, _shared_id(world, store, nccl), world.rank)

    def close(self) -> None:
        self.stream.synchronize()
        self._comm.destroy()

    def abort(self) -> None:
        """Give up what is under way: a rank is lost."""
        self._comm.abort()

    def fault(self) -> str:
        """What NCCL says of an asynchronous error, or nothing."""
        try:
            self._comm.check_async_error()
        except Exception as error:  # CuPy raises a class of its own for each code
            return str(error)
        return ""

    # ---------------------------------------------------------------- collectives (arrays are contiguous)

    def all_reduce(self, source, target, op: str) -> Request:
        self._fork()
        self._comm.allReduce(source.data.ptr, target.data.ptr, source.size, _type(source), _OPS[op], self.stream.ptr)
        return Request(self, (source, target))

    def broadcast(self, array, src: int) -> Request:
        self._fork()
        self._comm.bcast(array.data.ptr, array.nbytes, _TYPES["uint8"], src, self.stream.ptr)
        return Request(self, array)

    def all_gather(self, source, target) -> Request:
        self._fork()
        self._comm.allGather(source.data.ptr, target.data.ptr, source.nbytes, _TYPES["uint8"], self.stream.ptr)
        return Request(self, (source, target))

    def reduce_scatter(self, source, target, op: str) -> Request:
        self._fork()
        self._comm.reduceScatter(
            source.data.ptr, target.data.ptr, target.size, _type(source), _OPS[op], self.stream.ptr
        )
        return Request(self, (source, target))

    def send(self, array, dst: int, tag: int) -> Request:
        """NCCL matches sends by order: `tag` says nothing."""
        self._fork()
        self._comm.send(array.data.ptr, array.nbytes, _TYPES["uint8"], dst, self.stream.ptr)
        return Request(self, array)

    def recv(self, array, src: int, tag: int) -> Request:
        self._fork()
        self._comm.recv(array.data.ptr, array.nbytes, _TYPES["uint8"], src, self.stream.ptr)
        return Request(self, array)

    def barrier(self) -> Request:
        one = self.cupy.zeros(1, "float32")
        return self.all_reduce(one, one, "sum")

    def _fork(self) -> None:
        """The side stream goes on once what the current stream was given is done."""
        event = self.cupy.cuda.Event(disable_timing=True)
        event.record(self.cupy.cuda.get_current_stream())
        self.stream.wait_event(event)


def _import() -> tuple[Any, Any]:
    try:
        import cupy
        from cupy.cuda import nccl

        nccl.get_version()
    except Exception as fault:  # CuPy raises what its missing libraries raise
        need, help = "CuPy with NCCL", "pip install 'blutrain[cuda13]' (or cuda12)"
        raise RuntimeError(
            message("distributed", "NCCL cannot be loaded", expected=need, got=str(fault), location=("", 0), help=help)
        ) from fault
    return cupy, nccl


def _shared_id(world: World, store: Client, nccl: Any) -> Any:
    """NCCL's address, made by rank 0. Errors: RuntimeError where it does not come."""
    if world.rank == 0:
        made = nccl.get_unique_id()  # bytes, or a tuple of numbers in older versions of CuPy
        store.set("nccl", [isinstance(made, bytes), list(made)])
    values = store.get(["nccl"], _ID_SECONDS)["values"]
    if not values:
        raise RuntimeError(message("distributed", "rank 0 did not start NCCL", location=("", 0)))
    is_bytes, numbers = values["nccl"]
    return bytes(numbers) if is_bytes else tuple(numbers)


def _type(array) -> int:
    """Errors: TypeError for a dtype that NCCL cannot reduce."""
    name = array.dtype.name
    if name not in _TYPES:
        raise TypeError(message("all_reduce", "NCCL does not reduce this dtype", got=name))
    return _TYPES[name]
