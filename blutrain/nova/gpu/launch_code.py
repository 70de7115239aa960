"""The code of a plan on a device: modules loaded from machine code, and the launches of its phases."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import NovaError
from ...tensor.device import Device
from ..plan import Callback, Launch, ProgramPlan
from .assemble import AssembledKernel, assembly_key
from .driver import Driver, DriverError
from .kernel import GpuKernel, GpuPhase
from .launch import PhaseLaunch, launch_error

_loaded: weakref.WeakValueDictionary[tuple, LoadedModule] = weakref.WeakValueDictionary()


class LoadedModule:
    """A module on a device that lives as long as this."""

    def __init__(self, driver: Driver, assembled: AssembledKernel):
        self.driver, self.handle = driver, driver.load_module(assembled.image)
        self._finalizer = weakref.finalize(self, driver.unload_module, self.handle)
        self._finalizer.atexit = False  # the process ends anyway, and its context may be gone

    def function(self, phase: GpuPhase) -> int:
        return self.driver.function(self.handle, phase.symbol, phase.shared_bytes, phase.cluster)


def load_code(driver: Driver, device: Device, text: str, target: str, assembled: AssembledKernel) -> LoadedModule:
    """The code of a kernel's text on a device, shared by all living programs that use it."""
    key = (id(driver), device, assembly_key(text, target))
    module = _loaded.get(key)
    if module is None:
        module = _loaded[key] = LoadedModule(driver, assembled)
    return module


class Launches:
    """The launches of a plan: its phases in order with their functions, and its callbacks.

    Errors while launching: NovaError that names the kernel and the user's line.
    """

    def __init__(
        self,
        driver: Driver,
        plan: ProgramPlan,
        phases: Sequence[PhaseLaunch],
        modules: Sequence[LoadedModule],
        on_stream: Callable[[int], Any],
    ):
        self.phases = phases
        self.callbacks: dict[str, Callable[[int], None]] = {}
        self._driver, self._plan, self._modules, self._on_stream = driver, plan, modules, on_stream
        self.details = [self._detail(phase) for phase in phases]
        self._phases_of: list[list[int]] = [[] for _ in plan.launches]
        for number, phase in enumerate(phases):
            self._phases_of[phase.launch].append(number)

    @property
    def count(self) -> int:
        """Launches and callbacks."""
        return len(self._plan.launches)

    def _detail(self, phase: PhaseLaunch) -> tuple[GpuPhase, int]:
        kernel = self._plan.kernels[phase.kernel]
        assert isinstance(kernel, GpuKernel)
        description = kernel.phases[phase.phase]
        try:
            return description, self._modules[phase.kernel].function(description)
        except DriverError as fault:
            raise self.error(phase.launch, f"the function {description.symbol} cannot be used: {fault}") from fault

    def emit(self, stream: int, after: Callable[[int], None] | None = None) -> None:
        """Puts the whole program into a stream; `after` is called with the number of each phase, behind it."""
        for index in range(self.count):
            self.emit_launch(index, stream, after)

    def emit_launch(self, index: int, stream: int, after: Callable[[int], None] | None = None) -> None:
        """Puts one launch, or the work of one callback, into a stream."""
        launch = self._plan.launches[index]
        if isinstance(launch, Callback):
            with self._on_stream(stream):
                self.callbacks[launch.symbol](launch.argument)
            return
        for number in self._phases_of[index]:
            phase, function = self.details[number]
            params = self.phases[number].params
            try:
                self._driver.launch(
                    function, phase.grid, phase.block, phase.cluster, phase.shared_bytes, stream, params
                )
            except DriverError as fault:
                raise self.error(index, f"{phase.symbol} ({_shape(phase)}) cannot be launched: {fault}") from fault
            if after is not None:
                after(number)

    def emit_checked(self, stream: int) -> None:
        """Puts the program into a stream launch by launch, waiting for each: a fault is that of the kernel it names."""
        for index, launch in enumerate(self._plan.launches):
            self.emit_launch(index, stream)
            try:
                self._driver.synchronize(stream)
            except DriverError as fault:
                names = ", ".join(self.details[number][0].symbol for number in self._phases_of[index])
                name = names or (launch.symbol if isinstance(launch, Callback) else "")
                raise self.error(index, f"{name} failed on the device: {fault.code}") from fault

    def error(self, index: int, rule: str) -> NovaError:
        """An error of a launch, with its label and the user's line."""
        launch = self._plan.launches[index]
        if isinstance(launch, Launch):
            return launch_error(launch, rule)
        return NovaError(rule, stage="launch", op=f"callback {launch.symbol}")


def _shape(phase: GpuPhase) -> str:
    grid = "x".join(map(str, phase.grid))
    cluster = f", clusters of {phase.cluster}" if phase.cluster > 1 else ""
    return f"{grid} blocks of {phase.block} threads, {phase.shared_bytes} bytes of shared memory{cluster}"
