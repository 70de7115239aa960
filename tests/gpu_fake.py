"""A GPU in host memory, for tests of the runtime: a driver that keeps its books and runs kernels written in Python.

Work put into a stream is done at once, unless `driver.is_held`: then it waits, as on a device that lags behind, until
something waits for it. A captured graph keeps copies of its kernels' arguments, as CUDA's graphs do.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from blutrain.nova.cpu.executable import numpy_dtype
from blutrain.nova.gpu.assemble import AssembledKernel
from blutrain.nova.gpu.driver import DriverError
from blutrain.nova.gpu.executable import Executable
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase, TensorMap
from blutrain.nova.gpu.launch_ring import SLOTS
from blutrain.nova.plan import ProgramPlan
from blutrain.tensor.device import Device


class Arguments(NamedTuple):
    """What a kernel got: decoded tensor maps as (address, number of the spec), then its pointers."""

    maps: tuple[tuple[int, int], ...]
    pointers: tuple[int, ...]


@dataclass(frozen=True)
class FakeKernel:
    """A kernel function: `run(pointers)` where its predicate allows; `num_pointers` counts workspace and predicate."""

    run: Callable[[Arguments], None]
    num_maps: int
    num_pointers: int


def bring_in(ring: int, table: int) -> None:
    """What nova_bring_in of gpu/launch_courier.py does."""
    slot_bytes, counter, cells, num_scalars, num_inputs, *_ = words_at(table, 8)
    slot = ring + words_at(counter, 1)[0] % SLOTS * slot_bytes
    _, _, *sources = words_at(slot, 2 + num_inputs)
    ctypes.memmove(cells, slot + 8 * (2 + num_inputs), 8 * num_scalars)
    places = words_at(table + 64, 2 * num_inputs)
    for source, place, size in zip(sources, places[::2], places[1::2], strict=True):
        ctypes.memmove(place, source, size)


def hand_out(ring: int, table: int) -> None:
    """What nova_hand_out does."""
    slot_bytes, counter, _, _, num_inputs, num_flags, results, words = words_at(table, 8)
    (count,) = words_at(counter, 1)
    slot = ring + count % SLOTS * slot_bytes
    if target := words_at(slot, 2)[1]:
        ctypes.memmove(target, results, 8 * words)
    flags = [ctypes.c_uint32.from_address(place).value for place in words_at(table + 64 + 16 * num_inputs, num_flags)]
    ctypes.c_uint64.from_address(slot).value = next((i + 1 << 32 | flag for i, flag in enumerate(flags) if flag), 0)
    ctypes.c_uint64.from_address(counter).value = count + 1


def words_at(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address)) if count else []


COURIER = {"nova_bring_in": bring_in, "nova_hand_out": hand_out}


@dataclass
class Node:
    function: int
    grid: tuple[int, ...]
    arguments: Arguments


@dataclass
class FakeDriver:
    """`calls` counts methods by name; `fail` names a symbol whose launches fail, `fault` one that fails when it runs."""

    kernels: dict[str, FakeKernel]
    calls: dict[str, int] = field(default_factory=dict)
    is_held: bool = False
    fail: str = ""
    fault: str = ""

    def __post_init__(self):
        self._handles: list[Any] = [None]
        self._queue: list[Callable[[], None]] = []
        self._captures: dict[int, list] = {}
        self._broken = False
        self.specs: list[TensorMap] = []
        self.launched: list[str] = []
        self.waits: list[tuple[int, int]] = []
        self.clock = 0.0

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def _handle(self, thing: Any) -> int:
        self._handles.append(thing)
        return len(self._handles) - 1

    def _do(self, stream: int, work: Callable[[], None]) -> None:
        if stream in self._captures:
            self._captures[stream].append(work)
        elif self.is_held:
            self._queue.append(work)
        else:
            work()

    def drain(self) -> None:
        """The device catches up."""
        queue, self._queue = self._queue, []
        for work in queue:
            work()
        if self._broken:
            raise DriverError("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")

    def load_module(self, image: bytes) -> int:
        self._count("load_module")
        return self._handle(image)

    def unload_module(self, module: int) -> None:
        self._count("unload_module")

    def function(self, module: int, symbol: str, shared_bytes: int, cluster: int) -> int:
        if symbol not in self.kernels and symbol not in COURIER:
            raise DriverError("cuModuleGetFunction", "CUDA_ERROR_NOT_FOUND")
        return self._handle(symbol)

    def _read(self, function: int, params: int) -> Arguments:
        kernel = self.kernels[self._handles[function]]
        count = kernel.num_maps + kernel.num_pointers
        places = (ctypes.c_uint64 * count).from_address(params)
        assert all(place % 64 == 0 for place in places[: kernel.num_maps])
        maps = [struct.unpack("<QQ", ctypes.string_at(place, 16)) for place in places[: kernel.num_maps]]
        pointers = [ctypes.c_uint64.from_address(place).value for place in places[kernel.num_maps :]]
        return Arguments(tuple(maps), tuple(pointers))

    def launch(self, function, grid, block, cluster, shared_bytes, stream, params) -> None:
        if carry := COURIER.get(self._handles[function]):
            pointers = (ctypes.c_uint64 * 2).from_address(params)
            ring, table = (ctypes.c_uint64.from_address(pointer).value for pointer in pointers)
            self._do(stream, lambda: carry(ring, table))
            return
        self._count("launch")
        if self._handles[function] == self.fail:
            raise DriverError("cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
        node = Node(function, tuple(grid), self._read(function, params))
        if stream in self._captures:
            self._captures[stream].append(node)
        else:
            self._do(stream, lambda: self._run(node))

    def _run(self, node: Node) -> None:
        symbol = self._handles[node.function]
        self.launched.append(symbol)
        self._broken |= symbol == self.fault
        predicate = node.arguments.pointers[-1]
        if not (predicate and ctypes.c_int32.from_address(predicate).value):
            self.kernels[symbol].run(node.arguments)

    def encode_tensor_map(self, spec: TensorMap, address: int, out: int) -> None:
        self._count("encode_tensor_map")
        if address % 16:
            raise DriverError("cuTensorMapEncodeTiled", "CUDA_ERROR_INVALID_VALUE")
        self.specs.append(spec)
        ctypes.memmove(out, struct.pack("<QQ", address, len(self.specs) - 1), 16)

    def allocate_pinned(self, num_bytes: int) -> int:
        memory = np.zeros(num_bytes, np.uint8)
        self._handle(memory)
        return memory.ctypes.data

    def free_pinned(self, address: int) -> None:
        self._count("free_pinned")

    def create_stream(self) -> int:
        return self._handle("stream")

    def destroy_stream(self, stream: int) -> None:
        self._count("destroy_stream")

    def synchronize(self, stream: int) -> None:
        self._count("synchronize")
        self.drain()

    def create_event(self, *, is_timed: bool = False) -> int:
        return self._handle({})

    def destroy_event(self, event: int) -> None:
        self._count("destroy_event")

    def _stamp(self, event: int) -> None:
        self.clock += 1.0
        self._handles[event]["time"] = self.clock

    def record(self, event: int, stream: int) -> None:
        self._do(stream, lambda: self._stamp(event))

    record_in_graph = record

    def wait(self, stream: int, event: int) -> None:
        self.waits.append((stream, event))

    def wait_for_event(self, event: int) -> None:
        self._count("wait_for_event")
        self.drain()

    def milliseconds(self, start: int, end: int) -> float:
        return self._handles[end]["time"] - self._handles[start]["time"]

    def begin_capture(self, stream: int) -> None:
        assert stream and stream not in self._captures
        self._captures[stream] = []

    def last_captured(self, stream: int) -> int:
        return len(self._captures[stream]) - 1

    def end_capture(self, stream: int) -> int:
        return self._handle(self._captures.pop(stream))

    def instantiate(self, graph: int) -> int:
        self._count("instantiate")
        return self._handle([Node(**vars(x)) if isinstance(x, Node) else x for x in self._handles[graph]])

    def update_node(self, executable, node, function, grid, block, shared_bytes, params) -> None:
        self._count("update_node")
        target = self._handles[executable][node]
        assert target.function == function and target.grid == tuple(grid)
        self._handles[executable][node] = Node(function, tuple(grid), self._read(function, params))

    def launch_graph(self, executable: int, stream: int) -> None:
        self._count("launch_graph")
        for entry in list(self._handles[executable]):  # a later change of a node does not reach this launch
            self._do(stream, (lambda node: lambda: self._run(node))(entry) if isinstance(entry, Node) else entry)
        if self._broken:
            raise DriverError("cuGraphLaunch", "CUDA_ERROR_ILLEGAL_ADDRESS")

    def destroy_graph(self, graph: int) -> None:
        self._count("destroy_graph")

    def destroy_graph_executable(self, executable: int) -> None:
        self._count("destroy_graph_executable")


class Stream(NamedTuple):
    ptr: int


class FakeMemory:
    """Host memory in the place of a GPU's; `limit` bytes of it."""

    def __init__(self, limit: int = 1 << 30):
        self.device = Device("cuda")
        self.limit = limit
        self.stream = Stream(0)
        self.is_active = True
        self.current: list[int] = []

    def activate(self):
        return contextlib.nullcontext()

    def allocate(self, num_bytes: int):
        if num_bytes > self.limit:
            raise MemoryError(f"no {num_bytes} bytes")
        memory = np.full(num_bytes + 512, 0xA5, np.uint8)
        return memory, memory.ctypes.data + -memory.ctypes.data % 256

    def empty(self, shape, dtype):
        self.allocate(int(np.prod(shape)) * np.dtype(numpy_dtype(dtype)).itemsize)
        return np.full(shape, 77, numpy_dtype(dtype))

    @staticmethod
    def address(array) -> int:
        return array.__array_interface__["data"][0]

    def part(self, array, offset, shape, dtype):
        return np.frombuffer(array.data, numpy_dtype(dtype), int(np.prod(shape)), offset).reshape(shape)

    def view(self, address, num_bytes, owner, shape, dtype):
        memory = (ctypes.c_uint8 * num_bytes).from_address(address)
        return np.frombuffer(memory, numpy_dtype(dtype)).reshape(shape)

    def upload(self, content: bytes):
        memory, address = self.allocate(len(content))
        ctypes.memmove(address, content, len(content))
        return memory, address

    def current_stream(self):
        return self.stream

    @contextlib.contextmanager
    def on_stream(self, handle: int):
        self.current.append(handle)
        yield
        self.current.pop()


def array_at(address: int, count: int, dtype=np.float32) -> np.ndarray:
    """Memory that a kernel was given, as an array."""
    item = np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * (count * item)).from_address(address), dtype)


def gpu_kernel(*phases: GpuPhase, workspace_bytes: int = 0, text: str = "text") -> GpuKernel:
    return GpuKernel(f"{text} {phases}", "sm_90a", phases, workspace_bytes, 0, 0, 1.0, "fake")


def phase(symbol: str, *maps: TensorMap, grid=(1, 1, 1)) -> GpuPhase:
    return GpuPhase(symbol, grid, 128, tensor_maps=maps)


NO_CODE = AssembledKernel("", b"", "", {})


def build(plan: ProgramPlan, driver: FakeDriver, memory: FakeMemory | None = None) -> Executable:
    """The executable of a plan on the fake device, without assembling its texts."""
    plan.check()
    assembled = [AssembledKernel(kernel.text, b"", "", {}) for kernel in plan.kernels]
    return Executable(plan, assembled, driver, memory or FakeMemory(), NO_CODE)  # type: ignore[arg-type]
