"""Sums over the rows: partial sums of each task in the workspace, added up in task order by a second phase.

The order is fixed by the schedule alone, so results are the same bits in every run, whichever worker ran which task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blutrain.nova.cpu.configure_common import round_up
from blutrain.nova.cpu.emit import POINTER, TASK, WORKSPACE, Integers, Memory, Number, result_pointer
from blutrain.nova.cpu.emit_domain import Domain, Store
from blutrain.nova.cpu.emit_loops import cut_tiles, for_each_row, strip_loop
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.cpu.emit_reduce import Reduction
from blutrain.nova.emitter import Emitter
from blutrain.nova.kernel import ALIGNMENT_BYTES, ITEM_BYTES, Kernel, Produced

SPLIT_BYTES = 1 << 16  # partial sums beyond this are added up by several tasks


class PartialSums:
    """Where the partial sums of `sums` stand: one block per task, in it one array per reduction and result."""

    def __init__(self, domain: Domain, sums: Sequence[Reduction], tasks: int, start: int):
        self.domain, self.sums, self.tasks, self.start = domain, tuple(sums), tasks, start
        self.offsets: dict[Produced, int] = {}
        size = 0
        for reduction in sums:
            for result, dtype in zip(reduction.results, reduction.dtypes, strict=True):
                self.offsets[result] = size
                size += round_up(self.count(reduction) * ITEM_BYTES[dtype], ALIGNMENT_BYTES)
        self.block_bytes = size

    @property
    def bytes(self) -> int:
        return self.tasks * self.block_bytes

    def count(self, reduction: Reduction) -> int:
        return math.prod(self.domain.extents[d] for d in reduction.placed.result_dims)

    def strides(self, reduction: Reduction) -> tuple[int, ...]:
        """Row-major over the dimensions of the result, as strides over the nest."""
        strides, step = [0] * len(self.domain.extents), 1
        for d in sorted(reduction.placed.result_dims, reverse=True):
            strides[d] = step
            step *= self.domain.extents[d]
        return tuple(strides)

    def pointer(self, out: Emitter, value: Produced, task: Number) -> str:
        ints = Integers(out)
        offset = ints.add(ints.mul(task, self.block_bytes), self.start + self.offsets[value])
        return out.value(
            f"llvm.getelementptr inbounds {WORKSPACE}[{ints.name(offset)}] : ({POINTER}, i64) -> {POINTER}, i8"
        )

    # --- first phase

    def clear(self, out: Emitter, lanes: int) -> None:
        """The running task's partial sums become neutral."""
        for reduction in self.sums:
            self._clear(out, reduction, lanes)

    def _clear(self, out: Emitter, reduction: Reduction, lanes: int) -> None:
        memory, ints = Memory(out), Integers(out)
        pointers = [self.pointer(out, v, TASK) for v in reduction.results]

        def store(starts: list[Number], lanes: int, mask: str | None, _: list[str]) -> list[str]:
            for pointer, dtype, neutral in zip(pointers, reduction.dtypes, reduction.neutral(out, lanes), strict=True):
                memory.store(neutral, pointer, ints.name(starts[0]), dtype, lanes, mask)
            return []

        count = self.count(reduction)
        strip_loop(out, 0, count, count, lanes, 1, store)

    def accumulate(self, evaluator: Evaluator, reduction: Reduction, *points: Point) -> None:
        """Add the elements at points that share their place in the result to the running task's sums."""

        def add(values: list[str]) -> list[str]:
            for point in points:
                values = reduction.accumulate(evaluator, point, values)
            return values

        self._update(evaluator, reduction, points[0], add)

    def put(self, evaluator: Evaluator, reduction: Reduction, totals: Sequence[str], top: Point) -> None:
        """Write the running task's complete sums."""
        for value, dtype, total in zip(reduction.results, reduction.dtypes, totals, strict=True):
            pointer = self._task_pointer(evaluator.out, value, top)
            evaluator.memory.store(total, pointer, evaluator.out.integer(0), dtype, 0)

    def merge(self, evaluator: Evaluator, reduction: Reduction, totals: list[str], row: Point) -> None:
        """Add a row's complete sums to the running task's."""
        self._update(evaluator, reduction, row, lambda old: reduction.merge(evaluator.out, old, totals, 0))

    def _update(self, evaluator: Evaluator, reduction: Reduction, point: Point, change) -> None:
        memory, strides = evaluator.memory, self.strides(reduction)
        pointers = [self._task_pointer(evaluator.out, v, point) for v in reduction.results]
        offset = evaluator.offset(strides, 0, point)
        old = [
            memory.load(p, offset, d, point.lanes, point.mask) for p, d in zip(pointers, reduction.dtypes, strict=True)
        ]
        for pointer, dtype, new in zip(pointers, reduction.dtypes, change(old), strict=True):
            memory.store(new, pointer, offset, dtype, point.lanes, point.mask)

    def _task_pointer(self, out: Emitter, value: Produced, point: Point) -> str:
        top = point
        while top.outer is not None:
            top = top.outer
        key = ("partial", value)
        if key not in top.memo:
            with out.scope(top.depth):
                top.memo[key] = self.pointer(out, value, TASK)
        return top.memo[key]

    # --- second phase

    def provide(self, evaluator: Evaluator, reduction: Reduction, point: Point) -> None:
        """Put the complete results at `point` into its memo: init and the partial sums in task order."""
        out, memory, lanes = evaluator.out, evaluator.memory, point.lanes
        ints, offset = Integers(out), evaluator.offset(self.strides(reduction), 0, point)

        def add(task: str, totals: list[str]) -> list[str]:
            parts = [
                memory.load(self.pointer(out, v, task), offset, d, lanes, point.mask)
                for v, d in zip(reduction.results, reduction.dtypes, strict=True)
            ]
            return reduction.merge(out, totals, parts, lanes)

        if reduction.is_ordered:  # folded by task 0 alone, init included
            for value, dtype in zip(reduction.results, reduction.dtypes, strict=True):
                point.memo[value] = memory.load(self.pointer(out, value, 0), offset, dtype, lanes, point.mask)
            return
        carried = reduction.carried(out, lanes)
        totals = out.loop(ints.name(0), ints.name(self.tasks), ints.name(1), add, carried)
        for value, total in zip(reduction.results, reduction.finish(evaluator, totals, point), strict=True):
            point.memo[value] = total


def emit_combine(
    kernel: Kernel, partials: PartialSums, stores: Sequence[Store], out: Emitter, lanes: int, max_tasks: int
) -> int:
    """The second phase: adds the partial sums up and computes everything behind them. Returns its number of tasks."""
    domain, evaluator = partials.domain, Evaluator(kernel, partials.domain, out)
    top = Point({}, 0)
    scalars = [r for r in partials.sums if not r.placed.result_dims]
    for reduction in scalars:
        partials.provide(evaluator, reduction, top)
    columns = sorted(set().union(*(r.placed.result_dims for r in partials.sums)))

    def write(point: Point, chosen: list[Store]) -> None:
        values = [evaluator.source(s.source, s.access, point) for s in chosen]
        for store, value in zip(chosen, values, strict=True):
            evaluator.store(value, store.access, result_pointer(kernel, store.result), point)

    over_all = [s for s in stores if not s.dims]
    if not columns:
        write(top, over_all)
        return 1
    lane_dim, over_columns = columns[-1], [s for s in stores if s.dims]
    tasks = max_tasks if partials.bytes > SPLIT_BYTES else 1
    tiles = cut_tiles(domain.extents, lane_dim, columns[:-1], tasks, lanes)

    def row(at: Point, lower: Number, upper: Number, _: list[str]) -> list[str]:
        def strip(starts: list[Number], lanes: int, mask: str | None, _: list[str]) -> list[str]:
            point = Point({lane_dim: starts[0]}, out.innermost, at, lane_dim, lanes, mask)
            for reduction in partials.sums:
                if reduction.placed.result_dims:
                    partials.provide(evaluator, reduction, point)
            write(point, over_columns)
            return []

        return strip_loop(out, lower, upper, tiles.columns, lanes, 1, strip)

    is_first = out.value(f"arith.cmpi eq, {TASK}, {out.integer(0)} : i64")
    out.when(is_first, lambda: write(top, over_all))
    for_each_row(out, tiles, top, row)
    return tiles.tasks
