"""Indices out of range: the kernel that reads them leaves the largest in the host's memory, and goes on without it."""

from __future__ import annotations

import cupy
import numpy

from ...errors import user_location
from .. import late_checks
from ..ops.composite.check import fail

NONE_BAD = -(1 << 63)


class RangeCheck:
    """Made before the launch of a kernel that is handed `pointer`, where it notes an index out of range (atomicMax on an
    i64); `launched(text)` after it. See late_checks.
    """

    __slots__ = ("_cell", "_event", "_location", "_memory", "_text", "pointer")

    def __init__(self):
        self._memory = cupy.cuda.alloc_pinned_memory(8)
        self._cell = numpy.frombuffer(self._memory, numpy.int64, 1)
        self._cell[0] = NONE_BAD
        self.pointer = numpy.uint64(self._cell.ctypes.data)

    def launched(self, text: str) -> None:
        """text: of the error; `{flag}` in it becomes the index."""
        self._text, self._location = text, user_location()
        self._event = cupy.cuda.Event(disable_timing=True)
        self._event.record()
        late_checks.watch(self)

    def is_over(self) -> bool:
        return self._event.done and self._cell[0] == NONE_BAD

    def wait(self) -> None:
        self._event.synchronize()
        bad = int(self._cell[0])
        if bad != NONE_BAD:
            fail(self._text, bad, self._location)
