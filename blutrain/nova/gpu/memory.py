"""Device memory of programs: CuPy's pool, arrays and current stream. The only file of nova/gpu that uses CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...tensor.device import Device
from ..cpu.executable import numpy_dtype

_LEAST_BYTES = 256  # so that also nothing has an address


class DeviceMemory:
    """Memory of one GPU. Errors: RuntimeError without CuPy or a GPU."""

    def __init__(self, device: Device):
        self.device = device
        self._cupy: Any = device.xp
        self._cuda = self._cupy.cuda
        self.current_stream = self._cuda.get_current_stream  # CuPy's; the handle of its result is `.ptr`
        self._current_device, self._index = self._cuda.runtime.getDevice, device.index
        with device.activate():
            self._cuda.runtime.free(0)  # makes the context, which the driver's calls need

    def activate(self):
        """Context manager that makes the device current."""
        return self.device.activate()

    @property
    def is_active(self) -> bool:
        return self._current_device() == self._index

    def allocate(self, num_bytes: int) -> tuple[Any, int]:
        """Memory with undefined contents (what holds it, its address), 256-byte aligned. Errors: MemoryError."""
        try:
            block = self._cuda.alloc(max(num_bytes, _LEAST_BYTES))
        except self._cuda.memory.OutOfMemoryError as fault:
            raise MemoryError(str(fault)) from fault
        return block, block.ptr

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A new array of an MLIR element type. Errors: CuPy's OutOfMemoryError, a MemoryError."""
        return self._cupy.empty(shape, numpy_dtype(dtype))

    @staticmethod
    def address(array: Any) -> int:
        return array.data.ptr

    def part(self, array: Any, offset: int, shape: tuple[int, ...], dtype: str) -> Any:
        """An array in the memory of another, from byte `offset` on."""
        return self._cupy.ndarray(shape, numpy_dtype(dtype), memptr=array.data + offset)

    def view(self, address: int, num_bytes: int, owner: object, shape: tuple[int, ...], dtype: str) -> Any:
        """An array over memory that lives as long as `owner`."""
        memory = self._cuda.UnownedMemory(address, max(num_bytes, 1), owner, self.device.index)
        return self._cupy.ndarray(shape, numpy_dtype(dtype), memptr=self._cuda.MemoryPointer(memory, 0))

    def upload(self, content: bytes) -> tuple[Any, int]:
        """A copy of host bytes on the device."""
        block = self._cupy.asarray(np.frombuffer(content or b"\0", np.uint8))
        return block, block.data.ptr

    def on_stream(self, handle: int) -> Any:
        """Context manager that makes a stream CuPy's current one."""
        return self._cuda.ExternalStream(handle, self.device.index)
