"""A second NCCL communicator of the same ranks, whose collectives take a given number of blocks, each by itself: NCCL
starts them in clusters of 4, which need 4 free multiprocessors side by side.

CuPy's binding has neither ncclCommSplit nor a communicator's configuration, so these calls go to the library by ctypes:
it is the one that CuPy has loaded. Methods are called as those of CuPy's `NcclCommunicator`.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

from ..errors import message

_UNSET = -(2**31)  # NCCL_CONFIG_UNDEF_INT
_MAGIC, _VERSION = 0xCAFEBEEF, 21805  # of the first fields of ncclConfig_t: later versions read what is there
_LEAST = 21800  # the first with ncclCommSplit
_NAMES = ("libnccl.so.2", "libnccl.so")


class _Config(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cluster", c_int),
        ("least_blocks", c_int),
        ("most_blocks", c_int),
        ("network", c_char_p),
        ("shares_resources", c_int),
    )


class SplitCommunicator:
    """All ranks of `comm` (CuPy's) make it at the same time. Errors: RuntimeError with NCCL's text."""

    def __init__(self, nccl: Any, comm: Any, rank: int, blocks: int):
        self._library = _library(nccl)
        self._comm = c_void_p()
        size = ctypes.sizeof(_Config)
        config = _Config(size, _MAGIC, _VERSION, _UNSET, 0, _UNSET, blocks, None, _UNSET)
        parent, made = c_void_p(comm.comm), ctypes.byref(self._comm)
        self._call("ncclCommSplit", parent, c_int(0), c_int(rank), made, ctypes.byref(config))

    def allReduce(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        self._collective("ncclAllReduce", source, target, count, dtype, op, stream)

    def reduceScatter(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        self._collective("ncclReduceScatter", source, target, count, dtype, op, stream)

    def allGather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        arguments = c_void_p(source), c_void_p(target), c_size_t(count), c_int(dtype)
        self._call("ncclAllGather", *arguments, self._comm, c_void_p(stream))

    def check_async_error(self) -> None:
        """Errors: RuntimeError for a fault that came while a collective ran."""
        found = c_int()
        self._call("ncclCommGetAsyncError", self._comm, ctypes.byref(found))
        self._check("ncclCommGetAsyncError", found.value)

    def destroy(self) -> None:
        self._call("ncclCommDestroy", self._comm)

    def abort(self) -> None:
        self._call("ncclCommAbort", self._comm)

    def _collective(self, name: str, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        arguments = c_void_p(source), c_void_p(target), c_size_t(count), c_int(dtype), c_int(op)
        self._call(name, *arguments, self._comm, c_void_p(stream))

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code:
            text = self._library.ncclGetErrorString
            text.restype = c_char_p
            raise RuntimeError(message("distributed", f"{name} failed", got=text(code).decode(), location=("", 0)))


def _library(nccl: Any) -> Any:
    """The library behind CuPy's binding. Errors: RuntimeError where another one is found, or it is too old to split."""
    if nccl.get_version() < _LEAST:
        need, got = "NCCL 2.18 or newer", f"version {nccl.get_version()}"
        raise RuntimeError(message("distributed", "NCCL is too old", expected=need, got=got, location=("", 0)))
    for name in _NAMES:
        try:
            library, version = ctypes.CDLL(name), c_int()
        except OSError:
            continue
        if library.ncclGetVersion(ctypes.byref(version)) == 0 and version.value == nccl.get_version():
            return library
    raise RuntimeError(message("distributed", "NCCL's library is not the one that CuPy has loaded", location=("", 0)))
