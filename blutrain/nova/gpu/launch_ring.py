"""What passes between host and device each step without waiting: run-time scalars, addresses of inputs and results on
the way there, failed value checks on the way back.

A ring of slots in pinned host memory that the device reads and writes itself (`launch_courier.py`). The host comes
round to a slot again only when the device has done with it: an event after each half of the ring says so.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..plan import CheckFailure
from .driver import Driver

SLOTS = 64  # a power of two
HEADER_WORDS = 2  # of a slot: its state, and where results go; then come where each input is, and the scalars
_PENDING = 2**64 - 1  # the state until the step is done; then 0, or the number of a failed check + 1 and its flag
_HALF = SLOTS // 2
_SLOT_ALIGNMENT = 16  # words: no cache line holds parts of two slots


class StepRing:
    """Slots for `num_inputs` addresses and as many 8-byte cells as `formats` has letters (of `struct`, "d" or "q").
    `address`: of the first slot; `coming`: the number of the next one.
    """

    def __init__(self, driver: Driver, formats: str, num_inputs: int):
        words = HEADER_WORDS + num_inputs + len(formats)
        words += -words % _SLOT_ALIGNMENT
        self._driver, self.coming, self._words, self.slot_bytes = driver, 0, words, 8 * words
        self.address = driver.allocate_pinned(SLOTS * self.slot_bytes)
        memory = (ctypes.c_uint8 * (SLOTS * self.slot_bytes)).from_address(self.address)
        self._memory = memoryview(memory).cast("B")
        self._states = self._memory.cast("Q")
        self._pack_header = struct.Struct(f"={HEADER_WORDS + num_inputs}Q").pack_into
        self._pack_scalars = struct.Struct(f"={formats}").pack_into
        self._scalars_at = 8 * (HEADER_WORDS + num_inputs)
        self.num_scalars, self._scalars = len(formats), (0,) * len(formats)
        self._written = -1  # the slot that has the scalars
        self._events = [driver.create_event(), driver.create_event()]
        self._recorded = [False, False]
        self._open: deque[tuple[int, Any]] = deque()
        self._finalizer = weakref.finalize(self, _free, driver, self.address, tuple(self._events))
        self._finalizer.atexit = False

    def make_room(self) -> None:
        """Waits until the device has done with the next slot, and with it those of the same half of the ring."""
        if self._recorded[half := self.coming // _HALF]:
            self._driver.wait_for_event(self._events[half])
            self._recorded[half] = False

    def write(self, *scalars: float) -> None:
        """Puts scalars into the next slot; later steps have them too, until others are written."""
        if not self.coming % _HALF:
            self.make_room()
        self._pack_scalars(self._memory, self.coming * self.slot_bytes + self._scalars_at, *scalars)
        self._scalars, self._written = scalars, self.coming

    def fill(self, target: int, sources: Sequence[int]) -> None:
        """Puts the rest of what the coming step needs into the next slot: where its results go, where its inputs are.

        It may be filled again, until the step is launched and `advance` takes it.
        """
        if self._written != self.coming:
            self.write(*self._scalars)
        self._pack_header(self._memory, self.coming * self.slot_bytes, _PENDING, target, *sources)

    def advance(self, stream: int, context: Any = None, *, is_checked: bool = False) -> None:
        """All work of the step is in the stream. is_checked: its value checks are asked for, and `context` is what a
        `CheckFailure` of it gives back.

        They are lost if nobody looks at them before their slot comes round: `failed_check` does.
        """
        slot = self.coming
        self.coming = coming = (slot + 1) % SLOTS
        waiting = self._open
        if waiting and waiting[0][0] == slot:
            waiting.popleft()  # nobody looked at these
        if is_checked:
            waiting.append((slot, context))
        if not coming % _HALF:
            half = slot // _HALF
            self._driver.record(self._events[half], stream)
            self._recorded[half] = True

    def failed_check(self) -> CheckFailure | None:
        """The first failure among the steps that are done, in order, told once. Waits only where the ring is full."""
        if not self.coming % _HALF:
            self.make_room()
        waiting = self._open
        while waiting:
            slot, context = waiting[0]
            state = self._states[slot * self._words]
            if state == _PENDING:
                return None
            waiting.popleft()
            if state:
                return CheckFailure((state >> 32) - 1, ctypes.c_int32(state).value, context)
        return None


def _free(driver: Driver, address: int, events: tuple[int, ...]) -> None:
    for event in events:
        driver.destroy_event(event)
    driver.free_pinned(address)
