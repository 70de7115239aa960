"""A compiled step: the plan bound to the tensors of a trace, and the way from trace to plan.

    program = compile_trace(trace, options)
    results = program.run(log)        # value -> array; state is updated in place

State tensors are bound by reference: their addresses are looked at again only when `storage_epoch` says that some
tensor got other memory. Run-time scalars stand in one block of 8-byte cells. Small results are copied out of fixed
cells, large ones get fresh memory. The device decides which runtime executes the plan (`cpu/executable.py`,
`gpu/executable.py`), and nothing else here. A GPU's runs are asynchronous: a value check that fails is told of by a
later run, or by `settle`, which waits.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from .. import config
from ..errors import CheckError, message
from ..tensor import dispatch
from ..tensor.device import Device
from ..tensor.ops.composite.check import describe
from ..tensor.tensor import Tensor, storage_epoch
from .collective_calls import CollectiveCalls
from .interpret import interpret
from .log import Log, array_of
from .plan import BufferRef, CheckFailure, ProgramPlan
from .plan_cache import cached_plan
from .trace import Trace

if TYPE_CHECKING:
    from ..nn.compile_options import CompileOptions
    from .cpu.executable import Executable as CpuExecutable
    from .gpu.executable import Executable as GpuExecutable
    from .target import CpuFacts
    from .target_gpu import GpuFacts

    Executable = CpuExecutable | GpuExecutable

SMALL_BYTES = 4096


def compile_trace(trace: Trace, options: CompileOptions | None = None) -> Program:
    """Compile `trace` for the device it was recorded on.

    Errors: NovaError for an operation that nova cannot compile, and for a fault; MemoryError for a plan over
    `options.memory_limit`.
    """
    dispatch.busy = "compiling"
    try:
        return _compile_trace(trace, options)
    finally:
        dispatch.busy = ""


def _compile_trace(trace: Trace, options: CompileOptions | None) -> Program:
    facts = facts_of(trace.device)
    precision = precision_of(trace.device, options.precision if options is not None else None)
    limit = options.memory_limit if options is not None else None
    start = time.perf_counter()
    plan, seconds = cached_plan(trace, facts, precision, limit)
    if limit is not None and plan_bytes(plan) > limit:
        raise MemoryError(
            message(
                "compile",
                "the compiled step needs more than memory_limit",
                expected=f"at most {limit} bytes",
                got=f"{plan_bytes(plan)} bytes beside parameters and optimizer state",
                help="a smaller batch, or gradient accumulation",
            )
        )
    executable = _build(plan, facts, trace.device)
    seconds["objects"] = executable.report.compile_seconds
    seconds["load"] = executable.report.load_seconds
    seconds["total"] = time.perf_counter() - start
    return Program(trace, executable, seconds, facts)


def facts_of(device: Device) -> CpuFacts | GpuFacts:
    """What kernels for a device are made for."""
    if device.is_cpu:
        from .target import host_cpu

        return host_cpu()
    from .target_gpu import device_facts

    return device_facts(device.index or 0)


def precision_of(device: Device, precision: str | None) -> str | None:
    """The precision asked for; on a GPU, where none was, that of eager products (the switch `matmul_precision`)."""
    if precision is None and not device.is_cpu:
        return "tf32" if config.get("matmul_precision") == "tf32" else "fp32"
    return precision


def _build(plan: ProgramPlan, facts: Any, device: Device) -> Executable:
    if device.is_cpu:
        from .cpu import executable as cpu

        return cpu.build_executable(plan, facts)
    from .gpu import executable as gpu

    return gpu.build_executable(plan, device)


def plan_bytes(plan: ProgramPlan) -> int:
    """Bytes a run needs beside its inputs and outputs."""
    return plan.arena_bytes + max((kernel.workspace_bytes for kernel in plan.kernels), default=0)


class Program:
    """An executable and the places of its inputs. `seconds`: what compiling took, by stage."""

    def __init__(self, trace: Trace, executable: Executable, seconds: dict[str, float], facts: CpuFacts | GpuFacts):
        self.trace, self.executable, self.seconds, self.facts = trace, executable, seconds, facts
        self.runs = 0
        self._numbers = {x.value: i for i, x in enumerate(trace.inputs)}
        scalars = [x for x in trace.inputs if x.role == "scalar"]
        formats = "".join("d" if x.aval.dtype.is_floating else "q" for x in scalars)
        self._write = executable.scalar_block([self._numbers[x.value] for x in scalars], formats)
        self._cells = [x.value for x in scalars]
        self._order: list[int] | None = None  # of the log's scalars, cell by cell; empty where it is that of the cells
        self._plain = {x.value for x in trace.inputs if x.role != "state"}
        self._copies: list[Any] = []
        self._bound: dict[int, Any] = {}  # input -> weak reference to the array that it was bound to in the last run
        self._epoch = -1
        sizes = [trace.avals[v].size * trace.avals[v].dtype.itemsize for v in trace.outputs]
        small = [i for i, size in enumerate(sizes) if size <= SMALL_BYTES]
        executable.result_block(small)
        self._small = [trace.outputs[i] for i in small]
        self._large = [(v, i) for i, v in enumerate(trace.outputs) if sizes[i] > SMALL_BYTES]
        self._calls = CollectiveCalls(executable)
        if executable.is_asynchronous:
            _unsettled.add(self)

    def run(self, log: Log) -> dict[int, Any]:
        """Run on what `log` brought in; returns fresh arrays by value.

        Errors: what a failed value check reports; nothing is updated then.
        """
        executable = self.executable
        if executable.is_asynchronous and (failure := executable.failed_check()) is not None:
            self.raise_late(failure)
        self._bind(log)
        results = {value: executable.new_output(index) for value, index in self._large} if self._large else {}
        log.is_launched = True
        executable.launch(log.counts)
        if self._calls.are_any:
            self._calls.end_run()
        if not executable.is_asynchronous and (failure := executable.failed_check()) is not None:
            log.is_launched = False
            self._report(log, failure)
        results.update(zip(self._small, executable.take_results(), strict=True))
        self.runs += 1
        return results

    def _bind(self, log: Log) -> None:
        bind, address, numbers = self.executable.bind, self.executable.address, self._numbers
        if self._epoch != storage_epoch.value:
            epoch = storage_epoch.value
            for step in log.steps:
                for value, tensor in step.captured:
                    bind(numbers[value], address(self._in_place(tensor)))
            self._epoch = epoch  # not before: an exception leaves some unbound
        if self._copies:
            self._copies.clear()
        arrays, plain, alignment = log.arrays, self._plain, self.executable.alignment
        for value, tensor in log.externals.items():
            array = tensor._array
            if array is None or value not in plain or value in arrays:
                array = self._array_of(log, value, tensor)
            index, place = numbers[value], address(array)
            if place % alignment:
                self._copies.append(array.copy())  # as aligned as the program needs it; it lives until the next run
                place = address(self._copies[-1])
            bind(index, place)
            self._bound[index] = weakref.ref(array)
        if log.scalars:
            self._write(*self._in_order(log))

    def _array_of(self, log: Log, value: int, tensor: Tensor) -> Any:
        """What is bound for an outside tensor."""
        if value in log.arrays:
            return log.arrays[value]
        return array_of(tensor) if value in self._plain else self._in_place(tensor)

    def _in_order(self, log: Log) -> list[float | int]:
        """The scalars of a log in the order of their cells, which it mostly has."""
        if self._order is None:
            values = [value for step in log.steps for value in step.scalars]
            self._order = [values.index(value) for value in self._cells] if values != self._cells else []
        return [log.scalars[i] for i in self._order] if self._order else log.scalars

    def _in_place(self, tensor: Tensor) -> Any:
        """The array of a state tensor; where its memory is not row-major or aligned, it gets other memory, once."""
        array = array_of(tensor)
        if not array.flags.c_contiguous or not self._is_aligned(array):
            tensor.data = tensor._wrap(array.copy(order="C"), tensor.device, tensor._aval)
            array = tensor._array
        return array

    def _is_aligned(self, array: Any) -> bool:
        return self.executable.address(array) % self.executable.alignment == 0

    def profile(self, rounds: int = 3) -> list[float]:
        """Microseconds of each launch (the least of `rounds`), on what is bound and alive; state is saved and put back,
        outputs go to memory of their own, and no other process is needed: collectives do nothing.
        """
        fresh = self._replace_dead()
        views = [
            self.executable.view(BufferRef("input", i), spec.shape, spec.dtype)
            for i, spec in enumerate(self.executable.plan.inputs)
            if spec.role == "state"
        ]
        saved = [view.copy() for view in views]
        self._calls.is_silent = True
        try:
            return [min(times) for times in zip(*(self.executable.profile() for _ in range(rounds)), strict=True)]
        finally:
            self._calls.is_silent = False
            fresh.clear()
            for view, copy in zip(views, saved, strict=True):
                view[...] = copy

    def _replace_dead(self) -> list[Any]:
        """Other memory for outputs, which belong to who got them, and zeros for inputs that are gone."""
        fresh = [self.executable.new_output(index) for _, index in self._large]
        for index, array in self._bound.items():
            if array() is None:
                aval = self.trace.inputs[index].aval
                with self.trace.device.activate():
                    fresh.append(self.trace.device.xp.zeros(aval.shape, aval.dtype.numpy))
                self.executable.bind(index, self.executable.address(fresh[-1]))
        return fresh

    def _report(self, log: Log, failure: CheckFailure) -> None:
        """Raise what the eager rules say about the same inputs: state is as it was, so they meet the same fault."""
        interpret(self.trace, log.bindings())
        check = self.executable.plan.checks[failure.check]
        raise CheckError(f"{describe(check.message, failure.flag)}\n  at {check.location}")

    def raise_late(self, failure: CheckFailure | None) -> None:
        """Raise for a check that failed in an earlier run, which updated nothing: its step does not count."""
        if failure is None:
            return
        for count in failure.context or ():
            count.value -= 1
        check = self.executable.plan.checks[failure.check]
        note = "found while a later step was started: the step that failed updated nothing"
        raise CheckError(f"{describe(check.message, failure.flag)}\n  at {check.location}\n  note: {note}")


_unsettled: weakref.WeakSet[Program] = weakref.WeakSet()


def settle() -> None:
    """Wait for all runs so far.

    Errors: ValueError for a value check that failed in one of them, NovaError for a fault of a device.
    """
    for program in list(_unsettled):
        program.raise_late(program.executable.wait())
