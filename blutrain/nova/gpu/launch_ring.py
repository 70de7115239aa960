"""What passes between host and device each step without waiting: run-time scalars on the way there, the flags of value
checks on the way back.

A ring of slots in pinned host memory. A step writes its scalars into the next slot, from which one asynchronous copy
takes them; behind the step's kernels its flags are copied back into the slot. The host comes round to a slot again only
when the device has done with it: an event after each half of the ring says so.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

import numpy as np

from ..plan import CheckFailure
from .driver import Driver

SLOTS = 64
_HALF = SLOTS // 2
_ABSENT = -(2**31)  # a flag that has not come back; no check fails with it (tensor/ops/composite/check.py)


class StepRing:
    """Slots of `num_scalars` 8-byte cells and `num_flags` i32 each. `scalars`: where the coming step's are written."""

    def __init__(self, driver: Driver, num_scalars: int, num_flags: int):
        self.scalars = np.zeros(num_scalars, np.float64)
        self._driver, self._slot = driver, -1
        self.scalar_bytes, self._flag_bytes = 8 * num_scalars, 4 * num_flags
        size = SLOTS * (self.scalar_bytes + self._flag_bytes)
        self._address = driver.allocate_pinned(max(size, 8))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * max(size, 8)).from_address(self._address))
        split = SLOTS * self.scalar_bytes
        self._sent = memory[:split].view(np.float64).reshape(SLOTS, num_scalars)
        self._flags = memory[split:size].view(np.int32).reshape(SLOTS, num_flags)
        self._events = [driver.create_event(), driver.create_event()]
        self._recorded = [False, False]
        self._open: deque[tuple[int, Any]] = deque()
        self._finalizer = weakref.finalize(self, _free, driver, self._address, tuple(self._events))
        self._finalizer.atexit = False

    def make_room(self) -> None:
        """Waits until the device has done with the next slot, and with it those of the same half of the ring."""
        half, position = divmod((self._slot + 1) % SLOTS, _HALF)
        if position == 0 and self._recorded[half]:
            self._driver.wait_for_event(self._events[half])
            self._recorded[half] = False

    def begin(self) -> int:
        """Takes the next slot and puts the scalars there; the address to copy them from."""
        self.make_room()
        slot = self._slot = (self._slot + 1) % SLOTS
        if self._open and self._open[0][0] == slot:
            self._open.popleft()  # nobody looked at these flags
        if self.scalar_bytes:
            self._sent[slot] = self.scalars
        return self._address + slot * self.scalar_bytes

    def expect_flags(self, context: Any = None) -> None:
        """The present step's flags will be copied to `flag_address`; `context`: what a `CheckFailure` of it gives back.

        They are lost if nobody looks at them before their slot comes round: `make_room` and `failed_check` do.
        """
        if self._flag_bytes:
            self._flags[self._slot] = _ABSENT
            self._open.append((self._slot, context))

    def flag_address(self, number: int) -> int:
        """Where flag `number` of the present step belongs."""
        return self._address + SLOTS * self.scalar_bytes + self._slot * self._flag_bytes + 4 * number

    def end(self, stream: int) -> None:
        """All work of the step is in the stream."""
        half, position = divmod(self._slot, _HALF)
        if position == _HALF - 1:
            self._driver.record(self._events[half], stream)
            self._recorded[half] = True

    @property
    def is_open(self) -> bool:
        """Whether the flags of some step have not been looked at."""
        return bool(self._open)

    def failed_check(self) -> CheckFailure | None:
        """The first failure among the steps that are done, in order, told once; does not wait."""
        while self._open:
            slot, context = self._open[0]
            flags = self._flags[slot]
            if (flags == _ABSENT).any():
                return None
            self._open.popleft()
            if flags.any():
                check = int(np.flatnonzero(flags)[0])
                return CheckFailure(check, int(flags[check]), context)
        return None


def _free(driver: Driver, address: int, events: tuple[int, ...]) -> None:
    for event in events:
        driver.destroy_event(event)
    driver.free_pinned(address)
