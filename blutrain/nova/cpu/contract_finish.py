"""The end of a contract kernel: epilogues and stores of finished tiles, and the reductions over rows.

`emit_finish` writes the function that takes one tile of sums to the results. A reduction over rows (a bias gradient)
leaves one row of partial values for every task in the workspace; `emit_columns` is the phase that combines those rows
in task order and stores the outcome.
"""

from __future__ import annotations

from blutrain.nova.contract.combine import Combiner
from blutrain.nova.contract.form import loads
from blutrain.nova.cpu.contract_builder import Builder, Integer, Module
from blutrain.nova.cpu.contract_layout import Layout
from blutrain.nova.cpu.contract_value import Evaluator, Position
from blutrain.nova.emitter import lane_type
from blutrain.nova.kernel import ITEM_BYTES

ARGUMENTS = (
    ("%operands", "!llvm.ptr"),
    ("%tile", "!llvm.ptr"),
    ("%partials", "!llvm.ptr"),
    ("%batch", "i64"),
    ("%m0", "i64"),
    ("%n0", "i64"),
)
COLUMN_VECTORS_PER_TASK = 256


def emit_finish(module: Module, name: str, layout: Layout) -> None:
    """A function that applies the epilogue to the tile whose first element is (batch, m0, n0) and stores what lies
    inside the results.

    `partials` is this task's row of partial values: for each reduction in turn, one value for each column of the
    packed width.
    """
    finisher = _Finisher(module.builder(), layout)
    finisher.emit()
    module.add(name, ARGUMENTS, finisher.out)


class _Finisher:
    def __init__(self, out: Builder, layout: Layout):
        self.out, self.layout = out, layout
        self.contract, self.schedule = layout.contract, layout.schedule
        self.type = lane_type(layout.dtype, self.schedule.lanes)
        self.bytes = self.schedule.lanes * layout.item
        self.combiners = [Combiner(r) for r in self.contract.reductions]

    def emit(self) -> None:
        out, schedule = self.out, self.schedule
        rows = (
            schedule.mr if self.layout.m % schedule.mr == 0 else out.minimum(out.sub(self.layout.m, "%m0"), schedule.mr)
        )
        full = self.layout.n % schedule.nr == 0 or out.less_equal(out.add("%n0", schedule.nr), self.layout.n)
        out.if_(full, lambda: self._tile(rows, masked=False))
        out.if_(out.not_(full), lambda: self._tile(rows, masked=True))

    def _tile(self, rows: Integer, masked: bool) -> None:
        out, schedule, lanes = self.out, self.schedule, self.schedule.lanes
        columns = [out.add("%n0", v * lanes) for v in range(schedule.nv)]
        masks = [out.first_lanes(out.sub(self.layout.n, c), lanes) if masked else None for c in columns]

        outer = [
            self._load_column_values(Position({"batch": "%batch", "n": column}, "n", lanes, mask))
            for column, mask in zip(columns, masks, strict=True)
        ]

        def row(i: Integer, partial: list[str]) -> list[str]:
            for v in range(schedule.nv):
                at = Position({"batch": "%batch", "m": out.add("%m0", i), "n": columns[v]}, "n", lanes, masks[v])
                partial = self._vector(i, v, at, partial, outer[v])
            return partial

        types = [lane_type(c.dtype, lanes) for c in self.combiners for _ in range(schedule.nv)]
        initial = [out.constant(c.neutral, lane_type(c.dtype, lanes)) for c in self.combiners for _ in columns]
        sums = out.loop(out.i64(0), out.i64(rows), out.i64(1), row, list(zip(initial, types, strict=True)))
        self._add_partials(sums)

    def _load_column_values(self, at: Position) -> Evaluator:
        """Load before the rows what is the same for all of them, as a bias; no result of this phase lies there."""
        evaluator = Evaluator(self.out, self.contract)
        values = [store.value for store in self.contract.stores]
        values += [argument for reduction in self.contract.reductions for argument in reduction.arguments]
        for access in (access for value in values for access in loads(value)):
            if not any(access.strides[d] for d in self.contract.axes["m"]):
                evaluator.load(access, at)
        return evaluator

    def _vector(self, i: Integer, v: int, at: Position, partial: list[str], outer: Evaluator) -> list[str]:
        """One vector of the tile: every load before any store, because a result may lie in the memory of an operand."""
        out, schedule, contract = self.out, self.schedule, self.contract
        evaluator = Evaluator(out, contract, outer)
        place = out.add(out.mul(i, schedule.nr), v * schedule.lanes)
        sums = out.load(out.pointer("%tile", place, contract.dtype), self.type, self.bytes)
        if contract.init is not None:
            sums = out.value(f"arith.addf {evaluator.value(contract.init, at)}, {sums} : {self.type}")
        values = [evaluator.value(store.value, at, sums) for store in contract.stores]
        partial = list(partial)
        for r, (reduction, combiner) in enumerate(zip(contract.reductions, self.combiners, strict=True)):
            element = combiner.value(evaluator, reduction, at, sums)
            slot = r * schedule.nv + v
            partial[slot] = combiner.combine(out, partial[slot], element, at.lanes)
        for value, store in zip(values, contract.stores, strict=True):
            evaluator.store(value, store.access, at)
        return partial

    def _add_partials(self, sums: list[str]) -> None:
        out, schedule = self.out, self.schedule
        for number, value in enumerate(sums):
            reduction, v = divmod(number, schedule.nv)
            combiner = self.combiners[reduction]
            type_ = lane_type(combiner.dtype, schedule.lanes)
            row = out.pointer("%partials", reduction * self.layout.partial_width_bytes, "i8")
            place = out.pointer(row, out.add("%n0", v * schedule.lanes), combiner.dtype)
            before = out.load(place, type_, ITEM_BYTES[combiner.dtype])
            after = combiner.combine(out, before, value, schedule.lanes)
            out.store(after, place, type_, ITEM_BYTES[combiner.dtype])


def emit_clear_partials(out: Builder, layout: Layout, partials: str, panels: tuple[Integer, Integer]) -> None:
    """Set a task's partial values for the columns of a range of panels to the neutral value."""
    begin, end = (out.mul(p, layout.schedule.nr) for p in panels)
    lanes = layout.schedule.lanes
    for number, reduction in enumerate(layout.contract.reductions):
        combiner = Combiner(reduction)
        type_ = lane_type(combiner.dtype, lanes)
        row = out.pointer(partials, number * layout.partial_width_bytes, "i8")

        def clear(n: Integer, row: str = row, combiner: Combiner = combiner, type_: str = type_) -> None:
            place = out.pointer(row, n, combiner.dtype)
            out.store(out.constant(combiner.neutral, type_), place, type_, ITEM_BYTES[combiner.dtype])

        out.each(begin, end, clear, step=lanes)


def emit_columns_phase(module: Module, name: str, layout: Layout) -> int:
    """Each task combines the rows of partial values of some columns, in order, and stores the outputs.

    Returns their number.
    """
    out = module.builder()
    lanes = layout.schedule.lanes
    width = COLUMN_VECTORS_PER_TASK * lanes
    begin = out.mul("%task", width)
    end = out.minimum(out.add(begin, width), layout.n)

    def columns(first: Integer) -> None:
        mask = None if layout.n % lanes == 0 else out.first_lanes(out.sub(layout.n, first), lanes)
        at = Position({"n": first}, "n", lanes, mask)
        for number in range(len(layout.contract.reductions)):
            _combine_rows(out, layout, number, at)

    out.each(begin, end, columns, step=lanes)
    module.add_phase(name, out)
    return -(-layout.n // width)


def _combine_rows(out: Builder, layout: Layout, number: int, at: Position) -> None:
    reduction = layout.contract.reductions[number]
    combiner, evaluator = Combiner(reduction), Evaluator(out, layout.contract)
    type_ = lane_type(combiner.dtype, at.lanes)
    row = out.pointer("%workspace", layout.partials + number * layout.partial_width_bytes, "i8")
    column = out.pointer(row, at.index["n"], combiner.dtype)

    def add(task: str, carried: list[str]) -> list[str]:
        place = out.pointer(column, out.mul(task, layout.partial_row_bytes), "i8")
        partial = out.load(place, type_, ITEM_BYTES[combiner.dtype])
        return [combiner.combine(out, carried[0], partial, at.lanes)]

    initial = evaluator.value(reduction.init, at)
    (total,) = out.loop(out.i64(0), out.i64(layout.num_partial_rows), out.i64(1), add, [(initial, type_)])
    values = [evaluator.value(store.value, at, total) for store in reduction.outputs]
    for value, store in zip(values, reduction.outputs, strict=True):
        evaluator.store(value, store.access, at)
