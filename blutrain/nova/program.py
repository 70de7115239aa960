"""A compiled step: the plan bound to the tensors of a trace, and the way from trace to plan.

    program = compile_trace(trace, options)
    results = program.run(log)        # value -> array; state is updated in place

State tensors are bound by reference: their addresses are looked at again only when `storage_epoch` says that some tensor got other memory.
Run-time scalars stand in one block of 8-byte cells. Small results are copied out of fixed cells, large ones get fresh memory.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy

from ..errors import message
from ..tensor.tensor import storage_epoch
from .cpu.executable import Executable, build_executable
from .interpret import interpret
from .plan import BufferRef, ProgramPlan
from .plan_cache import cached_plan
from .target import host_cpu
from .trace import Trace

if TYPE_CHECKING:
    from ..nn.compile_options import CompileOptions
    from .log import Log

SMALL_BYTES = 4096


def compile_trace(trace: Trace, options: CompileOptions | None = None) -> Program:
    """Compile `trace` for the device it was recorded on.

    Errors: NovaError for an operation that nova cannot compile, and for a fault; MemoryError for a plan over `options.memory_limit`.
    """
    facts = host_cpu()
    precision = options.precision if options is not None else None
    limit = options.memory_limit if options is not None else None
    start = time.perf_counter()
    plan, seconds = cached_plan(trace, facts, precision, limit)
    if limit is not None and plan_bytes(plan) > limit:
        raise MemoryError(
            message("compile", "the compiled step needs more than memory_limit", expected=f"at most {limit} bytes",
                    got=f"{plan_bytes(plan)} bytes beside parameters and optimizer state", help="a smaller batch, or gradient accumulation")  # fmt: skip
        )
    executable = build_executable(plan, facts)
    seconds["objects"] = executable.report.compile_seconds
    seconds["load"] = executable.report.load_seconds
    seconds["total"] = time.perf_counter() - start
    return Program(trace, executable, seconds)


def plan_bytes(plan: ProgramPlan) -> int:
    """Bytes a run needs beside its inputs and outputs."""
    return plan.arena_bytes + max((kernel.workspace_bytes for kernel in plan.kernels), default=0)


class Program:
    """An executable and the places of its inputs. `seconds`: what compiling took, by stage."""

    def __init__(self, trace: Trace, executable: Executable, seconds: dict[str, float]):
        self.trace, self.executable, self.seconds, self.facts = trace, executable, seconds, host_cpu()
        self.runs = 0
        self._numbers = {x.value: i for i, x in enumerate(trace.inputs)}
        scalars = [x for x in trace.inputs if x.role == "scalar"]
        self._floats = numpy.zeros(max(1, len(scalars)), numpy.float64)
        self._integers = self._floats.view(numpy.int64)
        self._scalars = {}
        address = _address(self._floats)
        for cell, x in enumerate(scalars):
            self._scalars[x.value] = (self._floats if x.aval.dtype.is_floating else self._integers, cell)
            executable.bind(self._numbers[x.value], address + 8 * cell)
        self._captured: list[tuple[int, Any]] | None = None
        self._epoch = -1
        self._small = []
        self._large = []
        for i, v in enumerate(trace.outputs):
            aval = trace.avals[v]
            if aval.size * aval.dtype.itemsize <= SMALL_BYTES:
                cell = numpy.zeros(aval.shape, aval.dtype.numpy)
                executable.bind_output(i, _address(cell))
                self._small.append((v, cell))
            else:
                self._large.append((v, i, aval.shape, aval.dtype.numpy))

    def run(self, log: Log) -> dict[int, Any]:
        """Run on what `log` brought in; returns fresh arrays by value. Errors: what a failed value check reports; nothing is updated then."""
        self._bind(log)
        results = {}
        for value, index, shape, dtype in self._large:
            results[value] = array = numpy.empty(shape, dtype)
            self.executable.bind_output(index, _address(array))
        self.executable.launch()
        if self.executable.plan.checks and self.failed_check() is not None:
            self._report(log)
        for value, cell in self._small:
            results[value] = cell.copy()
        self.runs += 1
        return results

    def _bind(self, log: Log) -> None:
        bind, numbers = self.executable.bind, self._numbers
        if self._epoch != storage_epoch.value:
            self._epoch = storage_epoch.value
            for step in log.steps:
                for value, tensor in step.captured:
                    bind(numbers[value], _contiguous_address(tensor))
        for value, tensor in log.externals.items():
            array = log.arrays.get(value)
            bind(numbers[value], _address(tensor._buffer() if array is None else array))
        values = iter(log.scalars)
        for step in log.steps:
            for value in step.scalars:
                block, cell = self._scalars[value]
                block[cell] = next(values)

    def profile(self, rounds: int = 3) -> list[float]:
        """Microseconds of each launch (the least of `rounds`), on what is bound; state is saved before and put back after."""
        views = [
            self.executable.view(BufferRef("input", i), spec.shape, spec.dtype)
            for i, spec in enumerate(self.executable.plan.inputs)
            if spec.role == "state"
        ]
        saved = [view.copy() for view in views]
        try:
            return [min(times) for times in zip(*(self.executable.profile() for _ in range(rounds)), strict=True)]
        finally:
            for view, copy in zip(views, saved, strict=True):
                view[...] = copy

    def failed_check(self) -> int | None:
        """The number of the first value check that failed in the last run, None if all passed."""
        for number, check in enumerate(self.executable.plan.checks):
            if self.executable.view(check.flag, (), "i32")[()]:
                return number
        return None

    def _report(self, log: Log) -> None:
        """Raise what the eager rules say about the same inputs: state is as it was, so they meet the same fault."""
        check = self.executable.plan.checks[self.failed_check()]
        interpret(self.trace, log.bindings())
        raise RuntimeError(f"{check.message}\n  at {check.location}")


def _address(array) -> int:
    return array.__array_interface__["data"][0]


def _contiguous_address(tensor) -> int:
    """The address of a state tensor; memory that is not row-major is made so, once, in place of the old."""
    array = tensor._buffer()
    if not array.flags.c_contiguous:
        tensor.data = tensor._wrap(array.copy(order="C"), tensor.device, tensor._aval)
        array = tensor._array
    return _address(array)
