"""The calls of a host program that reduce vectors among processes.

`nova_ddp_bucket_ready(k)` starts the collective of bucket k where its last gradient was written, `nova_ddp_bucket_wait(k)`
stands before the first kernel that reads the result. What they do is the lowering of a primitive of the table
(`primitive.Collective`): nova knows nothing else of processes. On a GPU they are called while the program is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..tensor.primitive import TABLE
from .plan import READY, WAIT, Bucket

if TYPE_CHECKING:
    from .program import Executable

FAILED = -1  # what the guard's flag is set to: launches that write state are skipped


class CollectiveCalls:
    """The callbacks of one executable. `is_silent`: they do nothing (another process does not run the program); `are_any`:
    there is one.
    """

    def __init__(self, executable: Executable):
        self.is_silent = False
        self._is_captured = executable.is_asynchronous  # Python calls them: there is no compiled code in between
        self._fault: BaseException | None = None
        self._under_way: dict[int, Any] = {}
        self._captured: dict[int, Any] = {}
        plan = executable.plan
        self.are_any = bool(plan.buckets)
        self._buckets = [(TABLE[b.primitive].nova, _vector(executable, b), b.attributes) for b in plan.buckets]
        self._guard = None
        if plan.buckets and plan.guard is not None and not executable.is_asynchronous:
            self._guard = executable.view(plan.guard, (), "i32")
        if plan.buckets:
            executable.set_callback(READY, partial(self._call, self._start))
            executable.set_callback(WAIT, partial(self._call, self._wait))

    def end_run(self) -> None:
        """Behind each launch. Raises what a call raised meanwhile: an exception cannot pass through compiled code."""
        if self._captured:
            self._buckets[0][0].replayed(list(self._captured.values()))
        fault, self._fault = self._fault, None
        if fault is not None:
            self._under_way.clear()
            raise fault

    def _start(self, number: int) -> None:
        lowering, vector, attributes = self._buckets[number]
        self._under_way[number] = started = lowering.start(vector, **attributes)
        if self._is_captured:
            self._captured[number] = started

    def _wait(self, number: int) -> None:
        self._buckets[number][0].wait(self._under_way.pop(number))

    def _call(self, action: Callable[[int], None], number: int) -> None:
        if self.is_silent:
            return
        try:
            if self._fault is None:
                action(number)
        except BaseException as fault:
            if self._is_captured:
                raise
            self._fault = fault
        if self._fault is not None and self._guard is not None:
            self._guard[...] = FAILED


def _vector(executable: Executable, bucket: Bucket) -> Any:
    return executable.view(bucket.place, (bucket.size,), bucket.dtype)
