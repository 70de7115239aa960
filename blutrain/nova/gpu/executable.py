"""A compiled program on a GPU: its code, its memory and the calls. The twin of `cpu/executable.py`.

    executable = build_executable(plan, Device("cuda"))
    executable.bind(0, array.data.ptr)
    executable.launch()                     # returns at once; ordered by CuPy's current stream
    executable.profile()                    # microseconds of each launch

A launch is: the host writes scalars and addresses into a slot of pinned memory and launches one graph, whose first and
last kernels carry them, and results and failed checks, between there and the program (`launch_courier.py`). State
arguments are updated in place. Code and memory live as long as the executable.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ... import config
from ...errors import NovaError
from ...tensor.device import Device
from ..cpu.executable import BuildReport
from ..kernel import ITEM_BYTES
from ..plan import BufferRef, Callback, CheckFailure, Launch, ProgramPlan
from ..target_gpu import device_facts
from . import launch_courier
from .assemble import AssembledKernel, AssembleJob, assemble, counts, plan_jobs
from .driver import Driver, DriverError, driver
from .executable_blocks import ProgramMemory, ResultBlock, out_of_memory
from .launch import ArgumentTable, gpu_kernel
from .launch_code import Launches, load_code
from .launch_courier import Courier, Itinerary
from .launch_fault import find_fault
from .launch_graph import GraphReplay, Replays
from .launch_profile import profile
from .launch_ring import StepRing
from .memory import DeviceMemory


def build_executable(plan: ProgramPlan, device: Device) -> Executable:
    """Assembles (or finds in the cache) the plan's kernels, loads them, allocates the program's memory.

    Raises NovaError for a plan that cannot run, a text that does not compile, a function that is missing, and memory
    that is not to be had.
    """
    plan.check()
    start, before = time.perf_counter(), (counts.cached, counts.compiled)
    target = plan.kernels[0].target if plan.kernels else device_facts(device.index or 0).arch
    *assembled, carrying = assemble([*plan_jobs(plan), AssembleJob(launch_courier.TEXT, target)], strict=False)
    compiled = time.perf_counter()
    memory = DeviceMemory(device)
    with memory.activate():
        executable = Executable(plan, assembled, driver(), memory, carrying)
    counted = counts.cached - before[0], counts.compiled - before[1]
    executable.report = BuildReport(*counted, compiled - start, time.perf_counter() - compiled)
    if config.get("NOVA_DEBUG") >= 1:
        print(f"nova: {executable.report}", file=sys.stderr)
    return executable


class Executable:
    """A program that runs. One thread at a time may launch it. Made with its device current."""

    report: BuildReport
    is_asynchronous = True  # `failed_check` tells of launches that are done, `launch` waits for none
    alignment = 16  # bytes, of what `bind` takes

    def __init__(
        self,
        plan: ProgramPlan,
        assembled: Sequence[AssembledKernel],
        gpu: Driver,
        memory: DeviceMemory,
        carrying: AssembledKernel,
    ):
        """assembled: the code of the plan's kernels; carrying: that of `launch_courier.TEXT`."""
        self.plan, self.assembled, self.memory = plan, assembled, memory
        self.address: Callable[[Any], int] = memory.address  # of an array of this device
        self._driver = gpu
        self._table = ArgumentTable(plan, gpu.encode_tensor_map)
        kernels = [gpu_kernel(plan, Launch(number, ())) for number in range(len(assembled))]
        modules = [
            load_code(gpu, memory.device, kernel.text, kernel.target, code)
            for kernel, code in zip(kernels, assembled, strict=True)
        ]
        self._launches = Launches(gpu, plan, self._table.phases, modules, memory.on_stream)
        self._graph = GraphReplay(gpu, self._launches)
        self._owned = ProgramMemory(plan, memory, self._table)
        self._slots = self._owned.slots
        self._ring = StepRing(gpu, "", len(self._slots.sources))
        self._scalar_cells: tuple[Any, int] = (None, 0)
        self._results = ResultBlock((), memory)
        self._taken: list[Any] = []
        self._is_checked = bool(plan.checks)
        target = kernels[0].target if kernels else ""
        self._courier_code = load_code(gpu, memory.device, launch_courier.TEXT, target, carrying)
        self._courier: Courier | None = None
        self._lost: list[Courier | None] = []
        self._scratch: dict[int, Any] = {}
        self._free_outputs = set(range(len(plan.outputs)))
        self._is_ready = self._is_running = False
        self._stream: Any = None
        self._order_event = gpu.create_event()

    # -- arguments

    @property
    def bindings(self) -> Replays:
        """How often the graph was captured, changed and used as it was."""
        return self._graph.replays

    def bind(self, index: int, address: int) -> None:
        """Points input `index` at `address`, 16-byte aligned; the caller keeps the memory alive."""
        number = self._slots.number.get(index)
        if number is None:
            self._table.bind(index, address)
        else:
            self._slots.sources[number] = address
            if self._table.unbound:
                self._table.unbound.discard(index)

    def bind_output(self, index: int, address: int) -> None:
        """Points output `index` at memory of the caller, for this and all later launches."""
        self._table.set_base("output", index, address)
        self._free_outputs.discard(index)

    def scalar_block(self, inputs: Sequence[int], formats: str) -> Callable[..., None]:
        """Puts 0-d inputs into 8-byte cells of one block; what it returns writes them, one argument each: a float where
        `formats` has a "d", an integer where it has a "q".
        """
        with self.memory.activate():
            _, base = self._scalar_cells = self.memory.allocate(8 * len(inputs))
            self._ring = StepRing(self._driver, formats, len(self._slots.sources))
        self._courier, self._is_ready = None, False
        for cell, index in enumerate(inputs):
            self._table.bind(index, base + 8 * cell)
        return self._ring.write

    def result_block(self, outputs: Sequence[int]) -> None:
        """Gives small outputs a place of their own; `take_results` returns them."""
        with self.memory.activate():
            self._results = ResultBlock([self.plan.outputs[index] for index in outputs], self.memory)
        for index, address in zip(outputs, self._results.addresses, strict=True):
            self.bind_output(index, address)
        self._courier, self._is_ready = None, False

    def take_results(self) -> list[Any]:
        """Fresh arrays of the outputs given to `result_block`, from the last launch."""
        return self._taken

    def new_output(self, index: int) -> Any:
        """A fresh array that the next launch writes output `index` to. Errors: NovaError without memory for it."""
        spec = self.plan.outputs[index]
        try:
            with self.memory.activate():
                array = self.memory.empty(spec.shape, spec.dtype)
        except MemoryError as fault:
            raise out_of_memory(self.plan, fault) from fault
        self.bind_output(index, self.memory.address(array))
        return array

    def set_callback(self, symbol: str, function: Callable[[int], None]) -> None:
        """The function behind a `Callback`, called with its argument while the program is captured.

        The work that it puts into CuPy's current stream becomes a part of the graph.
        """
        if symbol not in self._callback_symbols():
            raise ValueError(f"set_callback: this program has no callback {symbol!r}")
        self._launches.callbacks[symbol] = function
        self._graph.forget()

    def _callback_symbols(self) -> list[str]:
        return [launch.symbol for launch in self.plan.launches if isinstance(launch, Callback)]

    # -- running

    def launch(self, context: Any = None) -> None:
        """Starts the program on what is bound. Raises NovaError where an input is not bound or a launch fails.

        context: what `failed_check` gives back should a value check of this launch fail.
        """
        if not self.memory.is_active:
            with self.memory.activate():
                return self.launch(context)
        if not self._is_ready:
            self._prepare()
        ring, stream = self._ring, self._follow_stream()
        self._is_running = True
        try:
            self._taken, target = self._results.take(stream)
            ring.fill(target, self._slots.sources)
            if config.get("NOVA_CHECK"):
                self._emit_checked(stream)
            else:
                self._graph.launch(self._table.take_changes(), stream, self._emit)
            ring.advance(stream, context, is_checked=self._is_checked)
        except BaseException as fault:
            self._lose_step(stream)
            if isinstance(fault, DriverError):
                raise self._device_fault(fault) from fault
            raise

    def _lose_step(self, stream: int) -> None:
        """An exception came (Ctrl-C at any moment): the device may have taken the slot or not, so the next step takes
        another, and kernels that count from there.
        """
        self._graph.forget()
        self._lost.append(self._courier)  # the device may not be through with it
        self._courier, self._is_ready = None, False
        with contextlib.suppress(DriverError):  # the one that came says more
            self._ring.advance(stream)

    def _emit(self, stream: int, after: Callable[[int], None]) -> None:
        """Puts a whole step into a stream."""
        courier = self._courier
        assert courier is not None  # `_prepare` made it
        courier.bring_in(stream)
        self._launches.emit(stream, after)
        courier.hand_out(stream)

    def _emit_checked(self, stream: int) -> None:
        self._table.take_changes()
        self._graph.forget()
        courier = self._courier
        assert courier is not None
        courier.bring_in(stream)
        self._launches.emit_checked(stream)
        courier.hand_out(stream)

    def launch_checked(self) -> None:
        """Runs the program launch by launch, waiting for each. Raises NovaError naming the one that fails."""
        with self.memory.activate():
            self._launches.emit_checked(self._begin_alone())

    def _device_fault(self, fault: DriverError) -> NovaError:
        """A fault of the device: of this launch, or of an earlier one that shows now."""
        self._graph.forget()
        found = find_fault(self.plan, self.memory.device)
        if found is not None:
            return found
        rule = f"the device failed: {fault}; kernels run asynchronously, so the launch that failed is not known"
        help = "NOVA_CHECK=1 waits for each kernel and names the one that fails"
        return NovaError(f"{rule}\n  help: {help}", stage="launch")

    def failed_check(self) -> CheckFailure | None:
        """The first value check that failed in a launch that is done, told once. Waits only if the ring is full."""
        try:
            return self._ring.failed_check()
        except DriverError as fault:
            raise self._device_fault(fault) from fault

    def wait(self) -> CheckFailure | None:
        """Waits for all launches so far; the first value check that failed. Raises NovaError for a device fault."""
        if self._is_running:
            try:
                self._driver.synchronize(self._stream.ptr)
            except DriverError as fault:
                raise self._device_fault(fault) from fault
            self._is_running = False
        return self._ring.failed_check()

    def _follow_stream(self) -> int:
        """CuPy's current stream; if it is another than before, it waits for what this program did on that one."""
        stream, last = self.memory.current_stream(), self._stream
        if last is stream:
            return stream.ptr
        if last is not None and stream.ptr != last.ptr:
            self._driver.record(self._order_event, last.ptr)
            self._driver.wait(stream.ptr, self._order_event)
        self._stream = stream
        return stream.ptr

    def _prepare(self) -> None:
        """Refuses what is not bound, and gives outputs that nobody wants a place."""
        if self._table.unbound:
            raise NovaError(f"inputs {sorted(self._table.unbound)} are not bound", stage="launch")
        unset = [symbol for symbol in self._callback_symbols() if symbol not in self._launches.callbacks]
        if unset:
            raise NovaError(f"callbacks without a function: {', '.join(unset)}", stage="launch")
        for index in sorted(self._free_outputs):
            if index not in self._scratch:
                self._scratch[index] = self.memory.allocate(self.plan.sizes("output")[index])
            self.bind_output(index, self._scratch[index][1])
        if self._courier is None:
            self._graph.forget()
            self._courier = self._make_courier()
        self._is_ready = True

    def _make_courier(self) -> Courier:
        itinerary = Itinerary(
            cells=self._scalar_cells[1],
            num_scalars=self._ring.num_scalars,
            inputs=self._slots.places,
            flags=[self._place(check.flag) for check in self.plan.checks],
            results=self._results.address,
            result_bytes=self._results.bytes,
        )
        return Courier(self._driver, self.memory, self._courier_code, self._ring, itinerary)

    def run(self, input_addresses: Sequence[int], wanted: Sequence[int] | None = None) -> list[Any]:
        """Binds, launches, returns fresh arrays of the outputs (`wanted`: only these, None for the others)."""
        for index, address in enumerate(input_addresses):
            self.bind(index, address)
        chosen = range(len(self.plan.outputs)) if wanted is None else wanted
        outputs: list[Any] = [None] * len(self.plan.outputs)
        for index in chosen:
            outputs[index] = self.new_output(index)
        self.launch()
        # The arrays belong to the caller: a later launch that does not bind others must not write to them.
        self._free_outputs.update(chosen)
        self._is_ready = False
        return outputs

    def run_launch(self, index: int) -> None:
        """Runs one launch alone and waits for it, for NOVA_CHECK and debugging."""
        if not 0 <= index < len(self.plan.launches):
            raise IndexError(f"run_launch: launch {index} of {len(self.plan.launches)}")
        with self.memory.activate():
            stream = self._begin_alone()
            self._launches.emit_launch(index, stream)
            self._driver.synchronize(stream)

    def profile(self) -> list[float]:
        """Runs the program once and returns the microseconds of each launch, by events inside a graph."""
        with self.memory.activate():
            return profile(self._driver, self._launches, self._begin_alone())

    def _begin_alone(self) -> int:
        """Prepares for launches outside of the graph, which no longer has the arguments that it was given last."""
        self._prepare()
        stream, courier = self._follow_stream(), self._courier
        assert courier is not None
        try:
            self._ring.fill(0, self._slots.sources)
            courier.bring_in(stream)
            courier.hand_out(stream)
            self._ring.advance(stream)
        except BaseException:
            self._lose_step(stream)
            raise
        self._table.take_changes()
        self._graph.forget()
        return stream

    # -- looking

    def _place(self, ref: BufferRef) -> int:
        return self._table.base(ref.space, ref.index) + ref.offset

    def view(self, ref: BufferRef, shape: tuple[int, ...], dtype: str) -> Any:
        """The memory of a reference as an array of the device, no copy: of the arena, or what is bound now.

        Raises ValueError outside the buffer.
        """
        size, count = self.plan.sizes(ref.space)[ref.index], math.prod(shape) * ITEM_BYTES[dtype]
        if ref.offset + count > size:
            raise ValueError(f"view: {dtype}{list(shape)} at {ref} lies outside its buffer of {size} bytes")
        address = self._place(ref)
        if address == ref.offset:
            raise NovaError(f"{ref} is not bound", stage="view")
        return self.memory.view(address, count, self, shape, dtype)
