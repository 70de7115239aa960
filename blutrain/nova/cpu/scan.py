"""scan kernels: running sums along the middle of three dimensions, narrow floats carried in f32.

Where there are too few lines for all cores, lines are cut into pieces. A first phase then leaves the total of every
piece in the workspace, and in the second each piece starts from the totals before it, added in order. Lanes are
neighbouring columns; where the line itself is contiguous a vector of it is summed in log2(lanes) shifted additions.
"""

from __future__ import annotations

import math

from blutrain.nova.clone import NARROW, convert_float
from blutrain.nova.cpu.configure_common import LAUNCH_US, lanes_of, num_tasks, round_up, time_us
from blutrain.nova.cpu.emit import (
    TASK,
    WORKSPACE,
    Integers,
    Memory,
    Number,
    module_text,
    operand_pointer,
    phase_text,
    result_pointer,
)
from blutrain.nova.cpu.emit_loops import strip_loop
from blutrain.nova.emitter import Emitter, lane_type
from blutrain.nova.kernel import (
    ALIGNMENT_BYTES,
    ITEM_BYTES,
    GeneratedKernel,
    Kernel,
    Operand,
    Phase,
    Produced,
    Scan,
    Unsupported,
)
from blutrain.nova.target import CpuFacts

MIN_PIECE = 4096  # elements: a shorter piece costs more to sum twice than a core gains


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        scan_of(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def scan_of(kernel: Kernel) -> Scan:
    """The one operation of a scan kernel. Raises Unsupported for any other kernel."""
    op = kernel.ops[0] if len(kernel.ops) == 1 else None
    if not isinstance(op, Scan) or not isinstance(op.operand, Operand) or kernel.yields != (Produced(0, 0),):
        raise Unsupported("a scan kernel with more than its scan")
    if op.type.dtype[0] == "i" and op.type.dtype != "i64":
        raise Unsupported(f"a scan of {op.type.dtype}")
    return op


def sum_dtype(op: Scan) -> str:
    return "f32" if op.type.dtype in NARROW else op.type.dtype


def neutral(dtype: str) -> str:
    """-0.0 changes no number, 0.0 would change -0.0."""
    return "0" if dtype[0] == "i" else "-0.0"


def configure(kernel: Kernel, facts: CpuFacts) -> dict[str, int]:
    """Lines in `pieces` of `length` elements; `tasks` ranges of pieces times `splits` ranges of columns."""
    lines, extent, columns = scan_of(kernel).type.shape
    lanes = lanes_of(facts)
    wanted = num_tasks(kernel, facts)
    splits = min(max(1, wanted // max(lines, 1)), max(1, columns // lanes))
    pieces = min(max(1, facts.threads // max(lines * splits, 1)), max(1, extent // MIN_PIECE))
    length = round_up(math.ceil(extent / pieces), lanes) if pieces > 1 else extent
    tasks = max(1, min(wanted, lines * math.ceil(extent / length))) if lines * extent else 1
    return {"lanes": lanes, "length": length, "splits": splits, "tasks": tasks}


def generate(kernel: Kernel, facts: CpuFacts, config: dict[str, int]) -> GeneratedKernel:
    op = scan_of(kernel)
    lines, extent, columns = op.type.shape
    pieces = math.ceil(extent / config["length"]) if extent else 1
    totals, second = Emitter(), Emitter()
    phases = []
    if pieces > 1 and lines * columns:
        phases.append((totals, _ScanPhase(kernel, op, totals, config, pieces, is_total=True).emit()))
    phases.append((second, _ScanPhase(kernel, op, second, config, pieces, is_total=False).emit()))
    symbols = [f"{kernel.symbol}_{i}" for i in range(len(phases))]
    passes = len(phases)
    flops = op.type.size * passes
    return GeneratedKernel(
        text=module_text([phase_text(kernel, s, out) for s, (out, _) in zip(symbols, phases, strict=True)], {}),
        phases=tuple(Phase(s, tasks) for s, (_, tasks) in zip(symbols, phases, strict=True)),
        workspace_bytes=round_up(lines * pieces * columns * ITEM_BYTES[sum_dtype(op)], ALIGNMENT_BYTES),
        bytes=kernel.bytes + (passes - 1) * op.type.bytes,
        flops=flops,
        predicted_us=passes * LAUNCH_US + time_us(kernel.bytes, flops, facts, min(phases[-1][1], facts.threads)),
    )


class _ScanPhase:
    """One phase: the totals of pieces, or their running sums."""

    def __init__(self, kernel: Kernel, op: Scan, out: Emitter, config: dict[str, int], pieces: int, is_total: bool):
        self.kernel, self.op, self.out, self.config = kernel, op, out, config
        self.memory, self.ints = Memory(out), Integers(out)
        self.lines, self.extent, self.columns = op.type.shape
        self.pieces, self.is_total = pieces, is_total
        self.dtype, self.lanes = sum_dtype(op), config["lanes"]

    def emit(self) -> int:
        """Write the body; returns the number of tasks."""
        if not self.op.type.size:
            return 1
        ints, splits = self.ints, self.config["splits"]
        work = self.lines * self.pieces
        per_task = math.ceil(work / self.config["tasks"])
        ranges = math.ceil(work / per_task)
        width = round_up(math.ceil(self.columns / splits), self.lanes) if splits > 1 else self.columns
        splits = math.ceil(self.columns / width)
        first = ints.mul(ints.div(TASK, splits), per_task) if ranges * splits > 1 else 0
        last = ints.minimum(ints.add(first, per_task), work)
        lower = ints.mul(ints.rem(TASK, splits), width) if splits > 1 else 0
        upper = ints.minimum(ints.add(lower, width), self.columns) if splits > 1 else self.columns

        def piece(number: str, _: list[str]) -> list[str]:
            self._piece(number, lower, upper)
            return []

        self.out.loop(ints.name(first), ints.name(last), ints.name(1), piece)
        return ranges * splits

    def _piece(self, number: str, lower: Number, upper: Number) -> None:
        ints, length = self.ints, self.config["length"]
        line = ints.div(number, self.pieces)
        begin = ints.mul(ints.rem(number, self.pieces), length)
        end = ints.minimum(ints.add(begin, length), self.extent) if self.pieces > 1 else self.extent
        if self.columns == 1:
            self._contiguous(line, number, begin, end)
            return

        def strip(starts: list[Number], lanes: int, mask: str | None, _: list[str]) -> list[str]:
            self._columns(line, number, begin, end, starts[0], mask)
            return []

        strip_loop(self.out, lower, upper, self.columns, self.lanes, 1, strip)

    def _columns(self, line: Number, number: str, begin: Number, end: Number, column: Number, mask: str | None) -> None:
        """A vector of columns, element after element."""
        ints = self.ints
        base = ints.add(ints.mul(line, self.extent * self.columns), column)

        def step(index: str, carried: list[str]) -> list[str]:
            place = ints.name(ints.add(base, ints.mul(index, self.columns)))
            total = self._add(carried[0], self._load(place, mask), self.lanes)
            if not self.is_total:
                self._store(total, place, mask)
            return [total]

        carried = [(self._before(number, column, self.lanes, mask), lane_type(self.dtype, self.lanes))]
        (total,) = self.out.loop(ints.name(begin), ints.name(end), ints.name(1), step, carried)
        if self.is_total:
            self._store_total(total, number, column, self.lanes, mask)

    def _contiguous(self, line: Number, number: str, begin: Number, end: Number) -> None:
        """A line of neighbours, a vector after the other."""
        ints, lanes, type_ = self.ints, self.lanes, lane_type(self.dtype, self.lanes)
        base = ints.mul(line, self.extent)

        def strip(starts: list[Number], _: int, mask: str | None, carried: list[str]) -> list[str]:
            place = ints.name(ints.add(base, starts[0]))
            x = self._load(place, mask)
            if mask is not None:  # what was not loaded is 0; it must be neutral
                filler = self.out.constant(neutral(self.dtype), type_)
                x = self.out.value(f"arith.select {mask}, {x}, {filler} : {lane_type('i1', lanes)}, {type_}")
            sums = self._running(x)
            if not self.is_total:
                before = self.out.value(f"vector.broadcast {carried[0]} : {self.dtype} to {type_}")
                self._store(self._add(before, sums, lanes), place, mask)
            total = self.out.value(f"vector.extract {sums}[{lanes - 1}] : {self.dtype} from {type_}")
            return [self._add(carried[0], total, 0)]

        length = self.extent if isinstance(begin, int) else self.extent % lanes + lanes
        start, nothing = self._before(number, 0, 0, None), self.out.constant(neutral(self.dtype), self.dtype)
        (total,) = strip_loop(self.out, begin, end, length, lanes, 1, strip, [(start, nothing, self.dtype)])
        if self.is_total:
            self._store_total(total, number, 0, 0, None)

    def _running(self, x: str) -> str:
        """The running sums of a vector's lanes."""
        lanes, type_ = self.lanes, lane_type(self.dtype, self.lanes)
        nothing, distance = self.out.constant(neutral(self.dtype), type_), 1
        while distance < lanes:
            places = ", ".join(str(lane - distance + lanes if lane >= distance else lane) for lane in range(lanes))
            moved = self.out.value(f"vector.shuffle {nothing}, {x} [{places}] : {type_}, {type_}")
            x = self._add(moved, x, lanes)
            distance *= 2
        return x

    # --- sums of the pieces before

    def _before(self, number: str, column: Number, lanes: int, mask: str | None) -> str:
        """The sum of the totals of the pieces before, or nothing."""
        initial = self.out.constant(neutral(self.dtype), lane_type(self.dtype, lanes))
        if self.is_total or self.pieces == 1:
            return initial
        ints = self.ints
        first = ints.mul(ints.div(number, self.pieces), self.pieces)

        def add(index: str, carried: list[str]) -> list[str]:
            place = ints.name(ints.add(ints.mul(index, self.columns), column))
            return [self._add(carried[0], self.memory.load(WORKSPACE, place, self.dtype, lanes, mask), lanes)]

        carried = [(initial, lane_type(self.dtype, lanes))]
        return self.out.loop(ints.name(first), number, ints.name(1), add, carried)[0]

    def _store_total(self, total: str, number: str, column: Number, lanes: int, mask: str | None) -> None:
        place = self.ints.name(self.ints.add(self.ints.mul(number, self.columns), column))
        self.memory.store(total, WORKSPACE, place, self.dtype, lanes, mask)

    # --- elements

    def _load(self, place: str, mask: str | None) -> str:
        source = self.op.type.dtype
        value = self.memory.load(operand_pointer(self.op.operand), place, source, self.lanes, mask)
        return value if source[0] == "i" else convert_float(self.out, value, source, self.dtype, self.lanes)

    def _store(self, value: str, place: str, mask: str | None) -> None:
        target = self.op.type.dtype
        narrow = value if target[0] == "i" else convert_float(self.out, value, self.dtype, target, self.lanes)
        self.memory.store(narrow, result_pointer(self.kernel, 0), place, target, self.lanes, mask)

    def _add(self, a: str, b: str, lanes: int) -> str:
        op = "addi" if self.dtype[0] == "i" else "addf"
        return self.out.value(f"arith.{op} {a}, {b} : {lane_type(self.dtype, lanes)}")
