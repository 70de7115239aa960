"""Devices: where a tensor's memory is and which array library works on it (NumPy on the CPU, CuPy on NVIDIA GPUs)."""

from __future__ import annotations

import contextlib
import functools
import threading

import numpy

from ..errors import message

_NO_CONTEXT = contextlib.nullcontext()


class Device:
    """`Device("cpu")`, `Device("cuda:1")`, `Device("cuda", 1)`; equal devices are one object.

    type: "cpu" or "cuda"; index: None on the CPU. Errors: ValueError for another name.
    """

    __slots__ = ("index", "is_cpu", "type")
    _made: dict[tuple[str, int | None], Device] = {}
    type: str
    index: int | None
    is_cpu: bool

    def __new__(cls, name: str | Device, index: int | None = None) -> Device:
        if isinstance(name, Device):
            return name
        kind, index = _parse(name, index)
        device = cls._made.get((kind, index))
        if device is None:
            device = super().__new__(cls)
            device.type, device.index, device.is_cpu = kind, index, kind == "cpu"
            device = cls._made.setdefault((kind, index), device)
        return device

    @property
    def xp(self):
        """The array module: numpy, or cupy (imported here, at its first use)."""
        return numpy if self.is_cpu else _cupy()

    def activate(self):
        """Context manager that makes this the current device; nothing to do on the CPU, or where it is."""
        if self.is_cpu:
            return _NO_CONTEXT
        cuda = _cupy().cuda
        return _NO_CONTEXT if cuda.runtime.getDevice() == self.index else cuda.Device(self.index)

    def __str__(self) -> str:
        return "cpu" if self.is_cpu else f"cuda:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __reduce__(self):
        return Device, (str(self),)


def _parse(name, index: int | None) -> tuple[str, int | None]:
    kind, _, tail = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind == "cpu" and (not tail or tail == "0"):
        return "cpu", None
    if kind == "cuda" and (not tail or (tail.isdigit() and index is None)):
        return "cuda", int(tail) if tail else (index or 0)
    raise ValueError(message("device", "not a device", expected='"cpu", "cuda" or "cuda:<index>"', got=repr(name)))


@functools.cache
def _cupy():
    """CuPy, once it is known to work. Errors: RuntimeError that says what is missing."""
    need = "an NVIDIA GPU with its driver, and CuPy (pip install blutrain[cuda12] or [cuda13])"
    try:
        import cupy
    except Exception as fault:  # CuPy raises what its missing libraries raise
        raise RuntimeError(message("cuda", "CuPy cannot be imported", expected=need, got=str(fault))) from fault
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as fault:
        raise RuntimeError(message("cuda", "no GPU can be used", expected=need, got=str(fault))) from fault
    if not count:
        raise RuntimeError(message("cuda", "no GPU can be used", expected=need, got="0 devices"))
    return cupy


cpu = Device("cpu")
_local = threading.local()


def get_default_device() -> Device:
    """The device of new tensors where none is named: the CPU unless set in this thread."""
    return getattr(_local, "device", cpu)


def set_default_device(device: str | Device) -> None:
    """Set the device of new tensors made by this thread."""
    _local.device = Device(device)


def as_device(device: str | Device | None) -> Device:
    """A Device from itself, its name, an index of a GPU, or None (the default)."""
    if device is None:
        return get_default_device()
    if isinstance(device, int):
        return Device("cuda", device)
    return Device(device)
