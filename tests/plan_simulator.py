"""A whole plan for sm_80 run on the CPU: products by the simulator, everything else by the emulator, launch by launch.

Each operand and result of a launch lies in memory of its own between pages that nobody may touch: an access outside of
it kills the process (of the emulator; the simulator raises). Results begin as NaN; operands must stay as they are.
"""

from __future__ import annotations

import ctypes
import math
import mmap

import numpy as np
from gpu_emulator import Emulated
from gpu_simulator import simulate
from mlir import ir

from blutrain.nova.dialect.graph import Graph
from blutrain.nova.gpu.kernel import GpuKernel
from blutrain.nova.kernel_reader import tensor_type
from blutrain.nova.plan import BufferRef, Launch, ProgramPlan
from blutrain.nova.reference import DTYPES

PAGE = mmap.PAGESIZE
ALIGNMENT = 16
POISON = 0xFF
_LIBC = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """`num_bytes` that end (but for ALIGNMENT) where a forbidden page begins, and begin behind another."""

    def __init__(self, num_bytes: int):
        size = -(-max(num_bytes, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, size + 2 * PAGE)
        whole = np.frombuffer(self.map, np.uint8)
        self.start = whole.ctypes.data + PAGE + size - -(-num_bytes // ALIGNMENT) * ALIGNMENT
        self.bytes = whole[self.start - whole.ctypes.data :][:num_bytes]
        self.bytes[...] = POISON
        for place in (whole.ctypes.data, whole.ctypes.data + PAGE + size):
            if _LIBC.mprotect(ctypes.c_void_p(place), PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")


Typed = tuple[tuple[int, ...], str]
Key = tuple[BufferRef, int]  # a place, and how many bytes of it


class SimulatedPlan:
    """Kernels are compiled for the CPU once."""

    def __init__(self, module: ir.Module, plan: ProgramPlan):
        self.plan = plan
        self.emulated: dict[int, Emulated] = {}
        self.memory: dict[tuple[str, int], np.ndarray] = {}
        typed = lambda values: [(t.shape, t.dtype) for t in (tensor_type(v.type) for v in values)]
        kernels = [op for op in Graph(module).operations() if op.name == "nova.kernel"]
        self.types = [(typed(op.operands), typed(op.results)) for op in kernels]

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """The outputs; state among the inputs is updated in place."""
        for space in ("arena", "output"):
            for index, size in enumerate(self.plan.sizes(space)):
                self.memory[space, index] = np.full(size, POISON, np.uint8)
        for index, array in enumerate(inputs):
            self.memory["input", index] = array.reshape(-1).view(np.uint8)
        for launch, types in zip(self.plan.launches, self.types, strict=True):
            assert isinstance(launch, Launch)
            if launch.predicate is None or not self._at(launch.predicate, 4).view(np.int32)[0]:
                self._launch(launch, *types)
        specs = enumerate(self.plan.outputs)
        return [self.memory["output", i].view(DTYPES[s.dtype]).reshape(s.shape) for i, s in specs]

    def _at(self, place: BufferRef, num_bytes: int) -> np.ndarray:
        return self.memory[place.space, place.index][place.offset : place.offset + num_bytes]

    def _launch(self, launch: Launch, operands: list[Typed], results: list[Typed]) -> None:
        kernel, first = self.plan.kernels[launch.kernel], len(operands)
        sizes = [math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize for shape, dtype in (*operands, *results)]
        keys = list(zip(launch.operands, sizes, strict=True))  # a whole and its first part lie at one place
        contents = {key: self._at(*key).copy() for key in keys}
        for key in set(keys[first:]) - set(keys[:first]):
            contents[key][...] = POISON
        before = {key: content.copy() for key, content in contents.items()}
        if "mma.sync" in kernel.text:
            _simulate(kernel, contents, keys, [*operands, *results], first)
        else:
            self._emulate(launch.kernel, contents, keys)
        for key in set(keys[first:]):
            self._at(*key)[...] = contents[key]
        for key in set(keys[:first]) - set(keys[first:]):
            assert (contents[key] == before[key]).all(), f"{launch.label} writes an operand"

    def _emulate(self, number: int, contents: dict[Key, np.ndarray], keys: list[Key]) -> None:
        kernel = self.plan.kernels[number]
        if number not in self.emulated:
            self.emulated[number] = Emulated(kernel)
        buffers = {key: Guarded(content.nbytes) for key, content in contents.items()}
        for key, content in contents.items():
            buffers[key].bytes[...] = content
        workspace = Guarded(kernel.workspace_bytes)
        self.emulated[number].run([buffers[key].start for key in keys], workspace.start)
        for key, content in contents.items():
            content[...] = buffers[key].bytes


def _simulate(
    kernel: GpuKernel, contents: dict[Key, np.ndarray], keys: list[Key], types: list[Typed], first: int
) -> None:
    arrays = {key: contents[key].view(DTYPES[t]).reshape(shape) for key, (shape, t) in zip(keys, types, strict=True)}
    listed = [arrays[key] for key in keys]
    simulate(kernel, listed[:first], listed[first:])
