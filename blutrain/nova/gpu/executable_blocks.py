"""The memory of a program, and places of fixed address for what is small: copies bring it in and take it out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import NovaError
from ..kernel import ITEM_BYTES
from ..plan import InputSpec, OutputSpec, ProgramPlan
from .driver import Driver
from .launch import ArgumentTable
from .memory import DeviceMemory

SLOT_BYTES = 1 << 20  # inputs up to this size are copied to a slot; larger ones are read where they are
ALIGNMENT = 256


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
    """A slot for each small input of role "input": its contents are copied there before every launch."""

    def __init__(self, plan: ProgramPlan, memory: DeviceMemory):
        sizes = {
            index: size
            for index, spec in enumerate(plan.inputs)
            if spec.role == "input" and (size := num_bytes(spec)) <= SLOT_BYTES
        }
        offsets, total = pack(sizes.values())
        self._block, base = memory.allocate(total)
        self.addresses = {index: base + offset for index, offset in zip(sizes, offsets, strict=True)}
        self._sizes = sizes
        self._sources: dict[int, int] = {}

    def __contains__(self, index: int) -> bool:
        return index in self.addresses

    def bind(self, index: int, address: int) -> None:
        """Copies come from `address` from now on."""
        self._sources[index] = address

    def source(self, index: int) -> int:
        return self._sources.get(index, 0)

    def fill(self, driver: Driver, stream: int) -> None:
        for index, source in self._sources.items():
            if self._sizes[index]:
                driver.copy_on_device(self.addresses[index], source, self._sizes[index], stream)


class ResultBlock:
    """One block for several small outputs; `take` copies it to fresh memory, so that a result is its receiver's."""

    def __init__(self, specs: Sequence[OutputSpec], memory: DeviceMemory):
        self._specs, self._memory = specs, memory
        self._offsets, self._bytes = pack(map(num_bytes, specs))
        self._block, base = memory.allocate(self._bytes)
        self.addresses = [base + offset for offset in self._offsets]

    def take(self, driver: Driver, stream: int) -> list[Any]:
        """Fresh arrays of all results of the last launch, in their order."""
        if not self._specs:
            return []
        memory = self._memory
        if len(self._specs) == 1:
            spec = self._specs[0]
            copied = memory.empty(spec.shape, spec.dtype)
            if size := num_bytes(spec):
                driver.copy_on_device(memory.address(copied), self.addresses[0], size, stream)
            return [copied]
        copied = memory.empty((self._bytes,), "i8")
        if self._bytes:
            driver.copy_on_device(memory.address(copied), self.addresses[0], self._bytes, stream)
        parts = zip(self._offsets, self._specs, strict=True)
        return [memory.part(copied, offset, spec.shape, spec.dtype) for offset, spec in parts]


class ProgramMemory:
    """The memory of a program: arena, workspace, constants, slots; their addresses go into its argument table.

    Errors: NovaError with the largest buffers where the device has not enough memory.
    """

    def __init__(self, plan: ProgramPlan, memory: DeviceMemory, table: ArgumentTable):
        workspace_bytes = max((kernel.workspace_bytes for kernel in plan.kernels), default=0)
        try:
            self._arena, arena = memory.allocate(plan.arena_bytes)
            self._workspace, workspace = memory.allocate(workspace_bytes)
            self.slots = InputSlots(plan, memory)
        except MemoryError as fault:
            raise NovaError(_out_of_memory(plan, workspace_bytes, fault), stage="memory") from fault
        self._constants = [memory.upload(content) for content in plan.constants]
        table.set_base("arena", 0, arena)
        table.set_base("workspace", 0, workspace)
        for index, (_, address) in enumerate(self._constants):
            table.set_base("const", index, address)
        for index, address in self.slots.addresses.items():
            table.set_base("input", index, address)


def _out_of_memory(plan: ProgramPlan, workspace_bytes: int, fault: Exception) -> str:
    """Nothing was launched, so parameters are as they were; the text says what the program wants memory for."""
    sizes = {"arena": plan.arena_bytes, "workspace": workspace_bytes}
    sizes.update({f"output {index}": size for index, size in enumerate(plan.sizes("output"))})
    largest = sorted(((size, name) for name, size in sizes.items() if size), reverse=True)[:5]
    listed = ", ".join(f"{name} {size / 2**20:.1f} MiB" for size, name in largest)
    return f"out of device memory: {fault}\n  the program's largest buffers: {listed}"
