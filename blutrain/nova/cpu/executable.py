"""A compiled program on a CPU: its code, its memory and the calls.

    executable = build_executable(plan, target.host_cpu())
    outputs = executable.run([array.ctypes.data, ...])      # addresses of the inputs; the caller keeps them alive
    executable.profile()                                    # microseconds of each launch

State arguments are updated in place. Code and memory live as long as the executable; kernels are shared with other
programs that use the same text.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ... import config
from ...errors import NovaError
from ..kernel import ALIGNMENT_BYTES, GeneratedKernel
from ..plan import BufferRef, Callback, CheckFailure, OutputSpec, ProgramPlan
from ..target import CpuFacts
from . import host, orc
from .launch_table import Bindings, LaunchTable
from .objects import CompileJob, compile_objects, counts, object_key
from .pool import ThreadPool, pool_job, shared_pool

_PROGRAM_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_STEP_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALLBACK_TYPE = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_loaded_kernels: weakref.WeakValueDictionary[str, orc.LoadedObject] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class BuildReport:
    """What a build did: objects from the cache, objects compiled, seconds to get them, seconds to load them."""

    cached: int
    compiled: int
    compile_seconds: float
    load_seconds: float

    def __str__(self) -> str:
        objects = f"{self.compiled} objects compiled and {self.cached} from the cache in {self.compile_seconds:.2f} s"
        return f"{objects}, loaded in {self.load_seconds:.3f} s"


def build_executable(plan: ProgramPlan, facts: CpuFacts) -> Executable:
    """Compiles (or finds in the cache) the plan's kernels and host program, loads them, allocates the program's memory.

    Raises NovaError for a plan that cannot run, a text that does not compile, or a symbol that is missing.
    """
    plan.check()
    start, before = time.perf_counter(), (counts.cached, counts.compiled)
    jobs = [*_kernel_jobs(plan), CompileJob(host.host_text(plan), op="host program"), pool_job(facts)]
    *kernel_objects, host_object, pool_object = compile_objects(jobs, facts)
    compiled = time.perf_counter()
    pool = shared_pool(pool_object, facts)
    kernels = [_load_kernel(kernel, data, facts) for kernel, data in zip(plan.kernels, kernel_objects, strict=True)]
    program = orc.load_object(host_object, host.SYMBOLS, _externals(plan, kernels, pool), keep=kernels)
    loaded = time.perf_counter()
    report = BuildReport(counts.cached - before[0], counts.compiled - before[1], compiled - start, loaded - compiled)
    if config.get("NOVA_DEBUG") >= 1:
        print(f"nova: {report}", file=sys.stderr)
    return Executable(plan, program, pool, report)


def _kernel_jobs(plan: ProgramPlan) -> list[CompileJob]:
    """One job a kernel, named after the first launch that uses it."""
    owners = {launch.kernel: launch for launch in reversed(plan.launches) if not isinstance(launch, Callback)}
    jobs = []
    for number, kernel in enumerate(plan.kernels):
        launch = owners.get(number)
        location = launch.locations[0] if launch and launch.locations else ""
        jobs.append(CompileJob(kernel.text, op=launch.label if launch else "", location=location))
    return jobs


def _load_kernel(kernel: GeneratedKernel, data: bytes, facts: CpuFacts) -> orc.LoadedObject:
    """The kernel's code in memory, shared by all living programs that use it."""
    symbols = [phase.symbol for phase in kernel.phases]
    key = "/".join([object_key(kernel.text, facts), *symbols])
    loaded = _loaded_kernels.get(key)
    if loaded is None:
        loaded = _loaded_kernels[key] = orc.load_object(data, symbols)
    return loaded


def _externals(plan: ProgramPlan, kernels: Sequence[orc.LoadedObject], pool: ThreadPool) -> dict[str, int]:
    """The addresses that the host program calls: the pool's functions and every phase."""
    externals = {name: pool.symbols[name] for name in ("nova_enter", "nova_leave", "nova_stamp", "nova_parallel")}
    for number, (kernel, loaded) in enumerate(zip(plan.kernels, kernels, strict=True)):
        for p, phase in enumerate(kernel.phases):
            externals[host.phase_symbol(number, p)] = loaded.addresses[phase.symbol]
    return externals


class Executable:
    """A program that runs. One thread at a time may launch it; several programs may run from several threads."""

    is_asynchronous = False  # `failed_check` tells of the last launch, which is done
    alignment = 1  # bytes, of what `bind` takes, beside that of its element

    def __init__(self, plan: ProgramPlan, program: orc.LoadedObject, pool: ThreadPool, report: BuildReport):
        self.plan, self.report = plan, report
        self._code, self._pool = program, pool
        self._arena, arena = _aligned(plan.arena_bytes)
        self._workspace, workspace = _aligned(max((kernel.workspace_bytes for kernel in plan.kernels), default=0))
        self._constants = [_aligned(len(content), content) for content in plan.constants]
        self._table = LaunchTable(plan, pool.cell_address, workspace)
        self._table.set_base("arena", 0, arena)
        for index, (_, address) in enumerate(self._constants):
            self._table.set_base("const", index, address)
        self._callback_symbols = host.callback_symbols(plan)
        self._callbacks: dict[str, object] = {}
        self._free_outputs = set(range(len(plan.outputs)))  # outputs that point at no memory of a caller
        self._scratch: dict[int, tuple[np.ndarray, int]] = {}
        self._results: list[np.ndarray] = []
        self._is_ready = False
        self._flags: list[np.ndarray] | None = None  # of the value checks; they stand in the arena, which stays
        self._program = _PROGRAM_TYPE(program.addresses["nova_program"])
        self._step = _STEP_TYPE(program.addresses["nova_step"])

    @property
    def bindings(self) -> Bindings:
        """How often each grade of binding inputs was taken."""
        return self._table.bindings

    def bind(self, index: int, address: int) -> None:
        """Points input `index` at `address`, aligned to its element; the caller keeps the memory alive."""
        self._table.bind(index, address)

    def bind_output(self, index: int, address: int) -> None:
        """Points output `index` at memory of the caller, for this and all later launches."""
        self._table.set_base("output", index, address)
        self._free_outputs.discard(index)

    @staticmethod
    def address(array: np.ndarray) -> int:
        """The address of an array."""
        return array.__array_interface__["data"][0]

    def scalar_block(self, inputs: Sequence[int], formats: str) -> Callable[..., None]:
        """Puts 0-d inputs into 8-byte cells of one block; what it returns writes them, one argument each: a float where
        `formats` has a "d", an integer where it has a "q".
        """
        self._scalars = np.zeros(8 * len(inputs), np.uint8)
        for cell, index in enumerate(inputs):
            self.bind(index, self.address(self._scalars) + 8 * cell)
        return functools.partial(struct.Struct(f"={formats}").pack_into, self._scalars.data, 0)

    def result_block(self, outputs: Sequence[int]) -> None:
        """Gives small outputs a place of their own; `take_results` returns them."""
        self._results = [np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in map(self._output, outputs)]
        for index, array in zip(outputs, self._results, strict=True):
            self.bind_output(index, self.address(array))

    def take_results(self) -> list[np.ndarray]:
        """Fresh arrays of the outputs given to `result_block`, from the last launch."""
        return [array.copy() for array in self._results]

    def new_output(self, index: int) -> np.ndarray:
        """A fresh array that the next launch writes output `index` to."""
        spec = self._output(index)
        array = np.empty(spec.shape, numpy_dtype(spec.dtype))
        self.bind_output(index, self.address(array))
        return array

    def _output(self, index: int) -> OutputSpec:
        return self.plan.outputs[index]

    def failed_check(self) -> CheckFailure | None:
        """The first value check that failed in the last launch."""
        if self._flags is None:
            self._flags = [self._in_arena(check.flag, np.int32) for check in self.plan.checks]
        for number, flag in enumerate(self._flags):
            if flag:
                return CheckFailure(number, int(flag[0]))
        return None

    def _in_arena(self, ref: BufferRef, dtype: type) -> np.ndarray:
        """One element of the arena; unlike `view`, the array holds the memory alone and makes no cycle with its owner."""
        start = self._table.base("arena", 0) - int(self._arena.ctypes.data) + ref.offset
        return self._arena[start : start + np.dtype(dtype).itemsize].view(dtype)

    def wait(self) -> CheckFailure | None:
        """As `failed_check`: launches are done when they return."""
        return self.failed_check()

    def set_callback(self, symbol: str, function: Callable[[int], None] | int) -> None:
        """The function behind a `Callback`, called with its argument: a C function's address, or a Python function."""
        if symbol not in self._callback_symbols:
            raise ValueError(f"set_callback: this program has no callback {symbol!r}")
        self._callbacks[symbol] = thunk = function if isinstance(function, int) else _CALLBACK_TYPE(function)
        address = thunk if isinstance(thunk, int) else ctypes.cast(thunk, ctypes.c_void_p).value
        self._table.set_callback(self._callback_symbols.index(symbol), address or 0)

    def run(self, input_addresses: Sequence[int], wanted: Sequence[int] | None = None) -> list[np.ndarray | None]:
        """Binds, launches, returns fresh arrays of the outputs (`wanted`: only these, None for the others)."""
        self._table.bind_all(input_addresses)
        chosen = range(len(self.plan.outputs)) if wanted is None else wanted
        outputs: list[np.ndarray | None] = [None] * len(self.plan.outputs)
        for index in chosen:
            outputs[index] = self.new_output(index)
        self.launch()
        # The arrays belong to the caller: a later launch that does not bind others must not write to them.
        self._free_outputs.update(chosen)
        self._is_ready = False
        return outputs

    def launch(self, context: object = None) -> None:
        """Runs the program on what is bound, with the GIL released. Raises NovaError where an input is not bound.

        context: only of use where a check is told of late (`gpu/executable.py`).
        """
        if not (self._is_ready and self._pool.is_running):
            self._prepare()
        self._step(self._table.address)

    def run_launch(self, index: int) -> None:
        """Runs one launch alone, for NOVA_CHECK and debugging."""
        if not 0 <= index < len(self.plan.launches):
            raise IndexError(f"run_launch: launch {index} of {len(self.plan.launches)}")
        self._prepare()
        self._program(self._table.address, index, index + 1, None)

    def profile(self) -> list[float]:
        """Runs the program once and returns the microseconds of each launch."""
        self._prepare()
        count = len(self.plan.launches)
        stamps = np.zeros(count + 1, np.int64)
        self._program(self._table.address, 0, count, stamps.ctypes.data)
        return (np.diff(stamps) / 1e3).tolist()

    def _prepare(self) -> None:
        """Refuses holes in the table, gives outputs that nobody wants a place, starts the pool in a forked child."""
        if self._table.unbound:
            raise NovaError(f"inputs {sorted(self._table.unbound)} are not bound", stage="launch")
        unset = [symbol for symbol in self._callback_symbols if symbol not in self._callbacks]
        if unset:
            raise NovaError(f"callbacks without a function: {', '.join(unset)}", stage="launch")
        for index in sorted(self._free_outputs):
            if index not in self._scratch:
                self._scratch[index] = _aligned(self.plan.sizes("output")[index])
            self.bind_output(index, self._scratch[index][1])
        self._pool.ensure_running()
        self._is_ready = True

    def view(self, ref: BufferRef, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """The memory of a reference as an array, no copy: of the arena, a constant, or what is bound now.

        Arena and constants live as long as the array. Raises ValueError outside the buffer.
        """
        element, count = numpy_dtype(dtype), math.prod(shape)
        size = self.plan.sizes(ref.space)[ref.index]
        if ref.offset + count * element.itemsize > size:
            raise ValueError(f"view: {dtype}{list(shape)} at {ref} lies outside its buffer of {size} bytes")
        address = self._table.base(ref.space, ref.index)
        if not address:
            raise NovaError(f"{ref} is not bound", stage="view")
        if count == 0:
            return np.empty(shape, element)
        memory = _Memory(address + ref.offset, count * element.itemsize, self)
        return np.asarray(memory).view(element).reshape(shape)


class _Memory:
    """Bytes at an address for NumPy, which keeps this object, and with it their owner, as long as the array."""

    def __init__(self, address: int, num_bytes: int, owner: Executable):
        self.owner = owner
        self.__array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an MLIR element type; i1 is bool."""
    if name == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    codes = {"f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1", "i1": "?"}
    codes |= {"ui8": "u1", "ui16": "u2"}
    return np.dtype(codes[name])


def _aligned(num_bytes: int, content: bytes = b"") -> tuple[np.ndarray, int]:
    """Fresh memory and its aligned address; never null, also for no bytes."""
    memory = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -int(memory.ctypes.data) % ALIGNMENT_BYTES
    memory[start : start + len(content)] = np.frombuffer(content, np.uint8)
    return memory, int(memory.ctypes.data) + start
