"""Collectives on host memory, by MPI (mpi4py): every call starts and returns a request; nothing blocks in C.

A blocking call could not be interrupted: a rank that waits for a dead one has to be able to raise.
float16 and bfloat16, which MPI has no type for, are reduced in float32 and rounded once; bool as bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import message
from . import pmi
from .environment import World
from .store import Client

_SERIALIZED = 2  # MPI_THREAD_SERIALIZED: any thread, one at a time


class Request:
    """A collective under way. `end`, called once it is done, puts the result where it belongs. `done_ns`: when that was
    seen, by time.monotonic_ns.
    """

    def __init__(self, request: Any, keep: Any, end: Callable[[], None] | None = None):
        self._request, self._keep, self._end = request, keep, end
        self.done_ns = 0

    def is_done(self) -> bool:
        """Lets MPI work on it; true once the result is there."""
        if self._request is not None and self._request.Test():
            self._request = self._keep = None
            self.done_ns = time.monotonic_ns()
            if self._end is not None:
                self._end()
        return self._request is None


class MpiBackend:
    """MPI among all ranks, as `comm`. Errors: RuntimeError where mpi4py or MPI is missing, or MPI sees other ranks."""

    few_blocks = 0  # its collectives take none of a GPU's

    def __init__(self, world: World, store: Client | None):
        self.mpi = _import()
        self._library = ctypes.CDLL(self.mpi.__file__)  # finds what this extension is linked to; releases the GIL
        self._pmi: Any = None
        self._started = not self.mpi.Is_initialized()
        if self._started:
            if store is not None and not world.speaks_pmi and world.size > 1:
                self._pmi = pmi.serve(world, store)
            provided = ctypes.c_int()
            self._library.MPI_Init_thread(None, None, _SERIALIZED, ctypes.byref(provided))
        self.mpi.COMM_WORLD.Set_errhandler(self.mpi.ERRORS_RETURN)
        self.comm = self.mpi.COMM_WORLD.Dup()
        self._check(world)
        self._unname_shared_memory()
        self._ops = {"sum": self.mpi.SUM, "mean": self.mpi.SUM, "max": self.mpi.MAX}

    def _check(self, world: World) -> None:
        got = self.comm.Get_size(), self.comm.Get_rank()
        if got != (world.size, world.rank):
            raise RuntimeError(
                message(
                    "distributed",
                    "MPI sees other ranks than the environment variables say",
                    expected=f"rank {world.rank} of {world.size}",
                    got=f"rank {got[1]} of {got[0]} in {self.mpi.Get_library_version().splitlines()[0]}",
                    location=("", 0),
                    help="pip install mpich (MPICH finds the ranks of any launcher), or start with this MPI's mpiexec",
                )
            )

    def _unname_shared_memory(self) -> None:
        """All ranks of this host have mapped MPICH's segment: without a name it cannot outlive them, however they end."""
        self.comm.Barrier()
        try:
            with open("/proc/self/maps") as maps:
                named = {line.split()[-1] for line in maps if "/dev/shm/mpich" in line}
        except OSError:
            return  # not Linux
        for path in named:
            with contextlib.suppress(OSError):  # another rank was faster
                os.unlink(path)

    def close(self, is_end: bool) -> None:
        """Leave MPI; all ranks call it. A rank that failed does not: MPI would wait for the others.

        It ends with the process, for it cannot be started again, and only where the store is there that it started with.
        """
        if self.mpi.Is_finalized():
            return
        self.comm.Free()
        if is_end and self._started:
            self._library.MPI_Finalize()
            if self._pmi is not None:
                pmi.end(self._pmi)

    # ---------------------------------------------------------------- collectives (arrays are contiguous)

    def all_reduce(self, source: np.ndarray, target: np.ndarray, op: str, blocks: int = 0) -> Request:
        """target[...] = the reduction of all ranks' sources. They may be one array."""
        scale = self.comm.Get_size() if op == "mean" else 0
        if _is_narrow(source.dtype):
            wide = source.astype(np.float32)
            request = self.comm.Iallreduce(self.mpi.IN_PLACE, wide, op=self._ops[op])
            return Request(request, wide, lambda: _finish(wide, target, scale))
        out = _bytes_of_bool(target)
        given = self.mpi.IN_PLACE if source is target else _bytes_of_bool(source)
        request = self.comm.Iallreduce(given, out, op=self._ops[op])
        return Request(request, (given, out), lambda: _finish(target, target, scale))

    def broadcast(self, array: np.ndarray, src: int) -> Request:
        """array[...] = that of rank `src`."""
        return Request(self.comm.Ibcast(_raw(array), root=src), array)

    def all_gather(self, source: np.ndarray, target: np.ndarray, blocks: int = 0) -> Request:
        """target = the sources of all ranks, one after the other; a source may be its part of the target."""
        given = self.mpi.IN_PLACE if np.may_share_memory(source, target) else _raw(source)
        return Request(self.comm.Iallgather(given, _raw(target)), (source, target))

    def reduce_scatter(self, source: np.ndarray, target: np.ndarray, op: str, blocks: int = 0) -> Request:
        """target = this rank's part (of `size` equal ones) of the reduction of all ranks' sources; it may be that part of
        the source.
        """
        scale = self.comm.Get_size() if op == "mean" else 0
        narrow = _is_narrow(source.dtype)
        given = source.astype(np.float32) if narrow else _bytes_of_bool(source)
        apart = narrow or np.may_share_memory(source, target)
        out = np.empty(target.shape, given.dtype) if apart else _bytes_of_bool(target)
        request = self.comm.Ireduce_scatter_block(given, out, op=self._ops[op])
        return Request(request, (given, out), lambda: _finish(out if apart else target, target, scale))

    def send(self, array: np.ndarray, dst: int, tag: int) -> Request:
        return Request(self.comm.Isend(_raw(array), dest=dst, tag=tag), array)

    def recv(self, array: np.ndarray, src: int, tag: int) -> Request:
        return Request(self.comm.Irecv(_raw(array), source=src, tag=tag), array)


def _import() -> Any:
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as fault:  # mpi4py raises RuntimeError where it finds no MPI library
        need = "mpi4py and an MPI library"
        help = "pip install 'blutrain[distributed]' (mpi4py and the mpich wheel)"
        raise RuntimeError(
            message("distributed", "MPI cannot be loaded", expected=need, got=str(fault), location=("", 0), help=help)
        ) from fault
    return MPI


def _is_narrow(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype.kind in "fV"


def _bytes_of_bool(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def _raw(array: np.ndarray) -> np.ndarray:
    """The bytes of an array, where only moving them matters."""
    return array.reshape(-1).view(np.uint8)


def _finish(result: np.ndarray, target: np.ndarray, scale: int) -> None:
    """The mean's division, and the rounding of a wide result."""
    if scale:
        np.divide(result, result.dtype.type(scale), out=result)
    if result is not target:
        target[...] = result
