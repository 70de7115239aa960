"""A plan's memory, checked without what made the plan: who wrote each byte, launch by launch.

    check_plan(module, plan)        # `module`: the step behind all passes (compile.lower gives both)

Every kernel must find in its operands' places just the values that the step says, whatever was written since; results
must not lie over one another, nor over an operand that is not declared as their alias; state, outputs and flags must
hold at the end what the step assigns, returns and checks. Tensor maps (TMA) must lie inside of their operands.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import NamedTuple

from mlir import ir

from blutrain.nova.dialect.graph import Graph, attributes
from blutrain.nova.gpu.kernel import TENSOR_MAP_TYPES, WORKSPACE, GpuKernel
from blutrain.nova.kernel import ITEM_BYTES
from blutrain.nova.plan import BufferRef, Launch, ProgramPlan


class PlanFault(AssertionError):
    """A plan that computes something else than its step."""


class Run(NamedTuple):
    """`length` bytes from byte `offset` of the value that `root` numbers."""

    root: int
    offset: int
    length: int


class _Memory:
    """Who wrote each byte of one buffer: runs that do not touch, by their start."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.runs: list[Run] = []

    def write(self, at: int, runs: list[Run]) -> None:
        end = at + sum(run.length for run in runs)
        low = bisect.bisect_left(self.starts, at)
        if low and self.starts[low - 1] + self.runs[low - 1].length > at:
            low -= 1
        high = bisect.bisect_left(self.starts, end, low)
        kept = []
        for start, run in zip(self.starts[low:high], self.runs[low:high], strict=True):
            if start < at:
                kept.append((start, run._replace(length=at - start)))
            if start + run.length > end:
                cut = end - start
                kept.append((end, Run(run.root, run.offset + cut, run.length - cut)))
        place = at
        for run in runs:
            kept.append((place, run))
            place += run.length
        kept.sort()
        self.starts[low:high], self.runs[low:high] = [s for s, _ in kept], [r for _, r in kept]

    def read(self, at: int, length: int) -> list[Run]:
        """What lies there; bytes that nobody wrote have the root -1."""
        found, place = [], at
        first = max(0, bisect.bisect_right(self.starts, at) - 1)
        for start, run in zip(self.starts[first:], self.runs[first:], strict=True):
            if start >= at + length:
                break
            if start + run.length <= place:
                continue
            if start > place:
                found.append(Run(-1, 0, start - place))
                place = start
            taken = min(start + run.length, at + length) - place
            found.append(Run(run.root, run.offset + place - start, taken))
            place += taken
        return merged([*found, Run(-1, 0, at + length - place)])


def merged(runs: list[Run]) -> list[Run]:
    """Neighbours that continue each other as one; none that is empty."""
    found: list[Run] = []
    for run in runs:
        if not run.length:
            continue
        if found and found[-1].root == run.root and (run.root < 0 or found[-1].offset + found[-1].length == run.offset):
            found[-1] = found[-1]._replace(length=found[-1].length + run.length)
        else:
            found.append(run)
    return found


def check_plan(module: ir.Module, plan: ProgramPlan) -> None:
    """See above. Errors: PlanFault. For steps without collectives."""
    _Checker(module, plan).run()


class _Checker:
    def __init__(self, module: ir.Module, plan: ProgramPlan):
        self.graph, self.plan = Graph(module), plan
        self.memory: dict[tuple[str, int], _Memory] = {}
        self.holds: dict[ir.Value, list[Run]] = {}
        self.count = 0

    def run(self) -> None:
        for number, argument in enumerate(self.graph.arguments):
            self._write(BufferRef("input", number), self._new(argument))
        launches = iter(self.plan.launches)
        for op in self.graph.operations():
            match op.name:
                case "nova.kernel":
                    launch = next(launches)
                    assert isinstance(launch, Launch)
                    self._launch(op, launch)
                case "nova.reshape" | "nova.bits":
                    self.holds[op.results[0]] = self.holds[op.operands[0]]
                case "nova.slice":
                    self.holds[op.results[0]] = self._window(op)
                case "nova.concat":
                    self.holds[op.results[0]] = merged([run for v in op.operands for run in self.holds[v]])
                case "nova.assign" | "nova.check" | "func.return":
                    pass
                case name:
                    raise PlanFault(f"{name} is left between kernels")
        if next(launches, None) is not None:
            raise PlanFault("more launches than kernels in the step")
        self._check_end()

    def _new(self, value: ir.Value) -> list[Run]:
        self.count += 1
        self.holds[value] = [Run(self.count, 0, num_bytes(value))]
        return self.holds[value]

    def _window(self, op: ir.Operation) -> list[Run]:
        """The part of the operand from the slice's first element on."""
        attrs, source = attributes(op), ir.RankedTensorType(op.operands[0].type)
        strides = [math.prod(source.shape[d + 1 :]) for d in range(len(source.shape))]
        skip = sum(a * b for a, b in zip(attrs["starts"], strides, strict=True)) * ITEM_BYTES[str(source.element_type)]
        left, found = num_bytes(op.results[0]), []
        for run in self.holds[op.operands[0]]:
            cut = min(skip, run.length)
            skip -= cut
            taken = min(left, run.length - cut)
            left -= taken
            found.append(Run(run.root, run.offset + cut, taken))
        return merged(found)

    def _of(self, place: BufferRef) -> _Memory:
        return self.memory.setdefault((place.space, place.index), _Memory())

    def _write(self, place: BufferRef, runs: list[Run]) -> None:
        length, size = sum(run.length for run in runs), self.plan.sizes(place.space)[place.index]
        if place.offset + length > size:
            raise PlanFault(f"{length} bytes at {place} of {size}")
        self._of(place).write(place.offset, merged(runs))

    def _expect(self, what: str, place: BufferRef, value: ir.Value) -> None:
        wanted = merged(self.holds[value])
        got = self._of(place).read(place.offset, sum(run.length for run in wanted))
        if got != wanted:
            raise PlanFault(f"{what} at {place} should hold {wanted[:3]}, holds {got[:3]}")

    def _launch(self, op: ir.Operation, launch: Launch) -> None:
        operands, results = list(op.operands), list(op.results)
        places = launch.operands
        if len(places) != len(operands) + len(results):
            raise PlanFault(f"{launch.label}: {len(places)} places")
        name = f"{launch.label} {launch.locations[:1]}"
        for number, (value, place) in enumerate(zip(operands, places, strict=False)):
            self._expect(f"{name} operand {number}", place, value)
        if launch.predicate is not None and not self._of(launch.predicate).read(launch.predicate.offset, 4)[0].root > 0:
            raise PlanFault(f"{name}: nobody wrote its predicate")
        aliases = list(ir.DenseI64ArrayAttr(op.attributes["aliases"]))
        taken = [(p, num_bytes(v), i) for i, (p, v) in enumerate(zip(places, [*operands, *results], strict=True))]
        for number, result in enumerate(results):
            at, mine = len(operands) + number, num_bytes(result)
            for place, size, other in taken[:at]:
                is_declared = (aliases[number], place, size) == (other, places[at], mine)
                if overlap(places[at], mine, place, size) and not is_declared:
                    raise PlanFault(
                        f"{name}: result {number} lies over {other} of its places, declared: {aliases[number]}"
                    )
            if "nova.keep" in op.attributes and launch.predicate is not None and launch.predicate != self.plan.guard:
                kept = ir.DenseI64ArrayAttr(op.attributes["nova.keep"])[number]
                if places[kept] != places[at]:
                    raise PlanFault(f"{name}: result {number} is not where it has to stay if the launch is skipped")
        for number, result in enumerate(results):
            self._write(places[len(operands) + number], self._new(result))
        kernel = self.plan.kernels[launch.kernel]
        if isinstance(kernel, GpuKernel):
            for fault in map_faults(kernel, places, [size for _, size, _ in taken]):
                raise PlanFault(f"{name}: {fault}")

    def _check_end(self) -> None:
        flags = iter(self.plan.checks)
        for op in self.graph.operations():
            if op.name == "nova.assign":
                number = ir.BlockArgument(op.operands[0]).arg_number
                self._expect("new state", BufferRef("input", number), op.operands[1])
            elif op.name == "func.return":
                for number, value in enumerate(op.operands):
                    self._expect("a result", BufferRef("output", number), value)
        for check in flags:
            if self._of(check.flag).read(check.flag.offset, 4)[0].root <= 0:
                raise PlanFault(f"nobody wrote the flag of {check.message!r}")


def num_bytes(value: ir.Value) -> int:
    type_ = ir.RankedTensorType(value.type)
    return math.prod(type_.shape) * ITEM_BYTES[str(type_.element_type)]


def overlap(a: BufferRef, a_bytes: int, b: BufferRef, b_bytes: int) -> bool:
    if (a.space, a.index) != (b.space, b.index) or not a_bytes or not b_bytes:
        return False
    return a.offset < b.offset + b_bytes and b.offset < a.offset + a_bytes


def map_faults(kernel: GpuKernel, places: tuple[BufferRef, ...], sizes: list[int]) -> Iterator[str]:
    """Tensor maps that leave their operand, or that the driver would refuse."""
    for phase in kernel.phases:
        for spec in phase.tensor_maps:
            size = kernel.workspace_bytes if spec.operand == WORKSPACE else sizes[spec.operand]
            item = TENSOR_MAP_TYPES[spec.dtype]
            steps = zip(spec.extents[1:], spec.strides_bytes, strict=True)
            end = spec.offset + spec.extents[0] * item + sum((extent - 1) * step for extent, step in steps)
            if spec.problem():
                yield spec.problem()
            if spec.offset < 0 or end > size:
                yield f"{spec} ends at byte {end} of {size}"
            if spec.operand != WORKSPACE and places[spec.operand].offset % 16:
                yield f"{spec} of an operand at {places[spec.operand]}"
