"""Collectives on GPU memory, by NCCL (CuPy's binding), on a stream of their own beside the one that computes.

A call makes the side stream wait for what the current stream has been given, and returns a request; `join` makes the
current stream wait for the result. The host waits for nothing, so the same calls can be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from typing import Any

from ..errors import message
from ..tensor.device import Device
from .environment import World
from .nccl_split import SplitCommunicator
from .store import Client

_OPS = {"sum": 0, "mean": 4, "max": 2}  # ncclRedOp_t: ncclSum, ncclAvg, ncclMax
_ID_SECONDS = 300.0
_SIZES = (1 << 6, 1 << 16, 1 << 22)  # elements: NCCL has a protocol for small, middling and large messages
FEW_BLOCKS = 16  # on two H200s they reduce 155 MB at 251 GB/s, 24 (what NCCL takes) at 273, 8 at 155
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
    """What a stream was given so far, as a point to wait for. `keep`: memory that it uses."""

    def __init__(self, backend: NcclBackend, stream: Any, keep: Any):
        self._backend, self._keep = backend, keep
        self._event = backend.record(stream)

    def join(self) -> None:
        """What the current stream is given from now on comes after the collective, also what reuses its memory."""
        self._backend.current_stream().wait_event(self._event)
        self._keep = None

    def is_done(self) -> bool:
        return bool(self._event.done)


class NcclBackend:
    """All ranks, this one on `device`. few_blocks: what a collective beside kernels should be given as `blocks`, of which
    each takes a multiprocessor; 0, what else they are given: as many as NCCL likes. NCCL_MAX_CTAS is the user's word
    for both. Errors: RuntimeError where NCCL or the GPU is missing.
    """

    def __init__(self, world: World, store: Client, device: Device):
        self.cupy, nccl = _import()
        self.device, self._has_captured, self._is_over = device, False, False
        self.few_blocks = int(os.environ.get("NCCL_MAX_CTAS", FEW_BLOCKS)) if world.size > 1 else 0
        with device.activate():
            # Urgent, or kernels that fill the GPU would keep it from a collective until they end.
            self.stream = self.cupy.cuda.Stream(non_blocking=True, priority=-1)
            self._comm = nccl.NcclCommunicator(world.size, _shared_id(world, store, nccl), world.rank)
            self._few = self._comm
            if self.few_blocks and "NCCL_MAX_CTAS" not in os.environ:
                self._few = SplitCommunicator(nccl, self._comm, world.rank, self.few_blocks)
            for blocks in dict.fromkeys((0, self.few_blocks)):
                self._connect(world.size, blocks)

    def _connect(self, size: int, blocks: int) -> None:
        """Have NCCL connect the ranks now, in each of the ways that it chooses from by size: it would do so at the first
        collective that needs one, for which all ranks wait, and which may be one that is being captured.
        """
        for count in _SIZES:
            part = -(-count // size)
            array = self.cupy.zeros(part * size, "float32")
            for request in (
                self.all_reduce(array, array, "sum", blocks),
                self.reduce_scatter(array, array[:part], "sum", blocks),
                self.all_gather(array[:part], array, blocks),
            ):
                request.join()
        self.stream.synchronize()

    @property
    def _communicators(self) -> list[Any]:
        return list({id(c): c for c in (self._few, self._comm)}.values())

    def close(self) -> None:
        """Leave NCCL. It would wait until the last graph with a collective in it is gone: then it stays to the end."""
        self._is_over = True
        self.stream.synchronize()
        if self._has_captured:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._comm))  # CuPy destroys what Python frees
        else:
            for communicator in self._communicators:
                communicator.destroy()

    def abort(self) -> None:
        """Give up what is under way: a rank is lost. Returns at once: NCCL waits for graphs here, too."""
        self._is_over = True
        for communicator in self._communicators:
            threading.Thread(target=communicator.abort, name="abort", daemon=True).start()

    def fault(self) -> str:
        """What NCCL says of an asynchronous error, or nothing."""
        if self._is_over:
            return ""
        try:
            for communicator in self._communicators:
                communicator.check_async_error()
        except Exception as error:  # CuPy has no text for newer codes, and raises a KeyError
            return f"{type(error).__name__}: {error}"
        return ""

    def is_capturing(self) -> bool:
        """Whether the current stream's work goes into a graph: it runs at each replay."""
        return self.current_stream().is_capturing()

    def current_stream(self) -> Any:
        """The stream that this rank's GPU is given work in, whatever device is current."""
        return self.cupy.cuda.get_current_stream(self.device.index)

    def record(self, stream: Any) -> Any:
        """An event behind what a stream of this rank's GPU was given so far."""
        with self.device.activate():
            event = self.cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    # ---------------------------------------------------------------- collectives (arrays are contiguous)

    def all_reduce(self, source, target, op: str, blocks: int = 0) -> Request:
        self._fork()
        self._sized(blocks).allReduce(
            source.data.ptr, target.data.ptr, source.size, _type(source), _OPS[op], self.stream.ptr
        )
        return Request(self, self.stream, (source, target))

    def broadcast(self, array, src: int) -> Request:
        self._fork()
        self._comm.bcast(array.data.ptr, array.nbytes, _TYPES["uint8"], src, self.stream.ptr)
        return Request(self, self.stream, array)

    def all_gather(self, source, target, blocks: int = 0) -> Request:
        self._fork()
        self._sized(blocks).allGather(source.data.ptr, target.data.ptr, source.nbytes, _TYPES["uint8"], self.stream.ptr)
        return Request(self, self.stream, (source, target))

    def reduce_scatter(self, source, target, op: str, blocks: int = 0) -> Request:
        self._fork()
        self._sized(blocks).reduceScatter(
            source.data.ptr, target.data.ptr, target.size, _type(source), _OPS[op], self.stream.ptr
        )
        return Request(self, self.stream, (source, target))

    def send(self, array, dst: int, tag: int) -> Request:
        """NCCL matches messages by their order: `tag` says nothing."""
        self._fork()
        self._comm.send(array.data.ptr, array.nbytes, _TYPES["uint8"], dst, self.stream.ptr)
        return Request(self, self.stream, array)

    def recv(self, array, src: int, tag: int) -> Request:
        self._fork()
        self._comm.recv(array.data.ptr, array.nbytes, _TYPES["uint8"], src, self.stream.ptr)
        return Request(self, self.stream, array)

    def _sized(self, blocks: int) -> Any:
        """The communicator for collectives of that many blocks."""
        return self._few if blocks and blocks == self.few_blocks else self._comm

    def _fork(self) -> None:
        """The side stream goes on once what the current stream was given is done."""
        self._has_captured = self._has_captured or self.is_capturing()
        self.stream.wait_event(self.record(self.current_stream()))


def name_of_gpu(device: Device) -> str:
    """A name that no other GPU has."""
    cupy: Any = device.xp
    return f"{socket.gethostname()} {cupy.cuda.Device(device.index).pci_bus_id}"


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
