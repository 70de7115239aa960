"""The memory of a program, and places of fixed address for what is small: copies bring it in and take it out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import NovaError
from ..kernel import ITEM_BYTES
from ..plan import InputSpec, OutputSpec, ProgramPlan
from .launch import ArgumentTable
from .memory import DeviceMemory

SLOT_BYTES = 1 << 20  # inputs up to this size are copied to a slot; larger ones are read where they are
ALIGNMENT = 256
_STOCK, _STOCK_BYTES = 64, 1 << 16  # steps whose results are allocated at once, and bytes of them at most


def num_bytes(spec: InputSpec | OutputSpec) -> int:
    """Bytes of an argument or result."""
    return math.prod(spec.shape) * ITEM_BYTES[spec.dtype]


def pack(sizes: Iterable[int]) -> tuple[list[int], int]:
    """The aligned offset of each size in one block, and the block's size."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end


class InputSlots:
    """A place for each small input of role "input": its contents are copied there at the start of every step.

    number: which of them an input is, by its index; sources: where their contents are, by number; places: (address,
    bytes) of each.
    """

    def __init__(self, plan: ProgramPlan, memory: DeviceMemory):
        sizes = {
            index: size
            for index, spec in enumerate(plan.inputs)
            if spec.role == "input" and (size := num_bytes(spec)) <= SLOT_BYTES
        }
        offsets, total = pack(sizes.values())
        self._block, base = memory.allocate(total)
        self.number = {index: number for number, index in enumerate(sizes)}
        self.sources = [0] * len(sizes)
        self.places = [(base + offset, size) for offset, size in zip(offsets, sizes.values(), strict=True)]


class ResultBlock:
    """One block for several small outputs, and memory in stock that it is copied to at the end of each step, so that a
    result is its receiver's: to make an array costs several microseconds.
    """

    def __init__(self, specs: Sequence[OutputSpec], memory: DeviceMemory):
        self._specs, self._memory = specs, memory
        self._offsets, self.bytes = pack(map(num_bytes, specs))
        self._block, self.address = memory.allocate(self.bytes)
        self.addresses = [self.address + offset for offset in self._offsets]
        self._stock: list[tuple[list[Any], int]] = []
        self._stream: Any = None

    def take(self, stream: int) -> tuple[list[Any], int]:
        """Arrays for the results of the coming launch, in their order, and the address that the block is copied to."""
        if not self._specs:
            return [], 0
        if not self._stock or stream != self._stream:  # memory belongs to the stream that it was allocated in
            self._stream, self._stock = stream, self._restock()
        return self._stock.pop()

    def _restock(self) -> list[tuple[list[Any], int]]:
        memory, count = self._memory, max(1, min(_STOCK, _STOCK_BYTES // max(1, self.bytes)))
        block = memory.empty((count * self.bytes,), "i8")
        parts = list(zip(self._offsets, self._specs, strict=True))
        start = memory.address(block)
        return [
            ([memory.part(block, at + offset, spec.shape, spec.dtype) for offset, spec in parts], start + at)
            for at in (number * self.bytes for number in range(count))
        ]


class ProgramMemory:
    """The memory of a program: arena, workspace, constants, slots; their addresses go into its argument table.

    Errors: NovaError with the largest buffers where the device has not enough memory.
    """

    def __init__(self, plan: ProgramPlan, memory: DeviceMemory, table: ArgumentTable):
        try:
            self._arena, arena = memory.allocate(plan.arena_bytes)
            self._workspace, workspace = memory.allocate(_workspace_bytes(plan))
            self.slots = InputSlots(plan, memory)
        except MemoryError as fault:
            raise out_of_memory(plan, fault) from fault
        self._constants = [memory.upload(content) for content in plan.constants]
        table.set_base("arena", 0, arena)
        table.set_base("workspace", 0, workspace)
        for index, (_, address) in enumerate(self._constants):
            table.set_base("const", index, address)
        for index, number in self.slots.number.items():
            table.set_base("input", index, self.slots.places[number][0])


def _workspace_bytes(plan: ProgramPlan) -> int:
    return max((kernel.workspace_bytes for kernel in plan.kernels), default=0)


def out_of_memory(plan: ProgramPlan, fault: Exception) -> NovaError:
    """What a program says that wants memory before its launch: the step ran not at all, and what it needs the most."""
    sizes = {"arena": plan.arena_bytes, "workspace": _workspace_bytes(plan)}
    sizes.update({f"output {index}": size for index, size in enumerate(plan.sizes("output"))})
    largest = sorted(((size, name) for name, size in sizes.items() if size), reverse=True)[:5]
    listed = ", ".join(f"{name} {size / 2**20:.1f} MiB" for size, name in largest)
    help = "nothing was updated: free memory and repeat the step, or take a smaller batch (with gradient accumulation)"
    rule = f"out of device memory: {fault}\n  the program's largest buffers: {listed}\n  help: {help}"
    return NovaError(rule, stage="memory")
