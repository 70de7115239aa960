"""What the passes after lower_to_linalg share: the step as a list of launches over buffers.

A *buffer* is an argument, or a result of a kernel; `nova.reshape` and `nova.bits` are the same buffer under another shape
or type, `nova.slice` a part of one (form_kernels_memory), `nova.concat` one that holds its operands. Buffers are numbered:
arguments first, then the others in the order of the operations. `nova.bucket_ready` and `nova.bucket_wait` are launches
without a kernel.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from mlir import ir

from ..dialect.graph import Graph, attributes
from ..kernel import ITEM_BYTES
from .form_kernels_emit import GUARD
from .form_kernels_memory import window_offset

VIEWS = (
    "nova.reshape",
    "nova.bits",
    "nova.slice",
    "nova.concat",
)  # operations between kernels that are memory, not computation


@dataclass
class Buffer:
    """`writer`: number of its launch, None for an argument; `readers`: launches that read it; `outputs`: results of
    the step that it is; `state`: the argument that it becomes the new value of; `is_flag`: a check reads it after the
    run; `within`: the buffer that it is a part of, and at which byte; `parts`: of a buffer that kernels write in parts.
    Who reads a part also reads the whole."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    writer: int | None = None
    readers: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    state: int | None = None
    is_flag: bool = False
    within: tuple[int, int] | None = None
    parts: list[int] = field(default_factory=list)

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        total = self.item
        for extent in self.shape:
            total *= extent
        return total


@dataclass
class Launch:
    """One kernel of the step: buffers that it reads and writes, in order of its operands and results; or the start or
    the end of a collective (`bucket`: its number) on the vector `operands[0]`, behind the launches `after`."""

    op: ir.Operation
    operands: list[int]
    results: list[int]
    bucket: int | None = None
    after: tuple[int, ...] = ()

    @property
    def is_start(self) -> bool:
        return self.op.name == "nova.bucket_ready"

    @property
    def is_wait(self) -> bool:
        return self.op.name == "nova.bucket_wait"


@dataclass
class CheckedFlag:
    """A `nova.check`: the buffer of its flag, its message and op."""

    buffer: int
    message: str
    op: ir.Operation


class StepLaunches:
    """The step function of `module` in launches. Errors: ValueError where something is left that is no launch."""

    def __init__(self, module: ir.Module):
        self.graph = Graph(module)
        self.roles = self.graph.roles
        self.buffers: list[Buffer] = []
        self.launches: list[Launch] = []
        self.checks: list[CheckedFlag] = []
        self.guard: int | None = None
        self._of: dict[ir.Value, int] = {}
        for argument in self.graph.arguments:
            self._add(argument, None)
        self.num_arguments = len(self.buffers)
        for op in self.graph.operations():
            self._read(op)

    def _add(self, value: ir.Value, writer: int | None) -> int:
        type_ = value.type
        buffer = Buffer(len(self.buffers), tuple(type_.shape), str(type_.element_type), writer)
        self.buffers.append(buffer)
        self._of[value] = buffer.number
        return buffer.number

    def _read(self, op: ir.Operation) -> None:
        operands = [self._of[v] for v in op.operands]
        match op.name:
            case "nova.kernel":
                number = len(self.launches)
                for buffer in dict.fromkeys(itertools.chain(*map(self.holders, operands))):
                    self.buffers[buffer].readers.append(number)
                self.launches.append(Launch(op, operands, [self._add(r, number) for r in op.results]))
            case "nova.reshape" | "nova.bits":
                self._of[op.results[0]] = operands[0]
            case "nova.slice":
                start = window_offset(attributes(op), tuple(op.operands[0].type.shape), self.buffers[operands[0]].item)
                self.buffers[self._add(op.results[0], None)].within = operands[0], start
            case "nova.concat":
                self._join(self._add(op.results[0], None), operands)
            case "nova.bucket_ready":
                self._start(op, operands)
            case "nova.bucket_wait":
                self._wait(op, operands[0])
            case "nova.assign":
                self.buffers[operands[1]].state = operands[0]
            case "nova.check":
                self._read_check(op, operands[0])
            case "func.return":
                for position, buffer in enumerate(operands):
                    self.buffers[buffer].outputs.append(position)
            case name:
                raise ValueError(f"{name} is left between kernels")

    def _join(self, whole: int, parts: list[int], starts: list[int] | None = None) -> None:
        self.buffers[whole].parts = parts
        sizes = [self.buffers[part].bytes for part in parts]
        for part, start in zip(parts, starts or itertools.accumulate([0, *sizes[:-1]]), strict=True):
            self.buffers[part].within = whole, start

    def _start(self, op: ir.Operation, parts: list[int]) -> None:
        """A bucket's vector is whole: the collective starts, behind those that started before."""
        vector = self._add(op.results[0], None)
        self._join(vector, parts, [self.buffers[vector].item * n for n in attributes(op)["offsets"]])
        number, starts = len(self.launches), [n for n, launch in enumerate(self.launches) if launch.is_start]
        for part in parts:
            self.buffers[part].readers.append(number)
        self.buffers[vector].readers.append(number)
        self.launches.append(Launch(op, [vector], [], len(starts), tuple(starts[-1:])))

    def _wait(self, op: ir.Operation, vector: int) -> None:
        """The result is the same memory, made by this launch."""
        number = len(self.launches)
        start = next(n for n in reversed(range(number)) if self.launches[n].operands == [vector])
        self.buffers[vector].readers.append(number)
        self.launches.append(Launch(op, [vector], [], self.launches[start].bucket, (start,)))
        self.buffers[self._add(op.results[0], number)].within = vector, 0

    def holders(self, number: int) -> list[int]:
        """The buffer and those that it is a part of, the largest last."""
        found = [number]
        while (within := self.buffers[found[-1]].within) is not None:
            found.append(within[0])
        return found

    def whole(self, number: int) -> int:
        """The buffer that has memory of its own, where `number` is it or a part of it."""
        return self.holders(number)[-1]

    def writers(self, number: int) -> list[int]:
        """The launches that make the content of a buffer; none for arguments and parts of them."""
        buffer = self.buffers[number]
        if buffer.writer is not None:
            return [buffer.writer]
        if buffer.parts:
            return [writer for part in buffer.parts for writer in self.writers(part)]
        return self.writers(buffer.within[0]) if buffer.within is not None else []

    def _read_check(self, op: ir.Operation, buffer: int) -> None:
        message = ir.StringAttr(op.attributes["message"]).value
        self.buffers[buffer].is_flag = True
        if message == GUARD or self.guard is None:  # a single check is its own guard
            self.guard = buffer
        if message != GUARD:
            self.checks.append(CheckedFlag(buffer, message, op))

    def writes_state(self, launch: Launch) -> list[int]:
        """Arguments whose new values this launch computes."""
        return [state for r in launch.results if (state := self.buffers[r].state) is not None]
