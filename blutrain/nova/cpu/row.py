"""row kernels: layer norm, softmax, cross-entropy, forward and backward, and whatever else sweeps rows.

Tasks are ranges of rows. A row is swept in the passes of row_plan.py, each one loop over strips of lanes with
vector accumulators; values that are one a row stay scalars in registers. The workspace holds, for every worker,
the row buffers (values kept between passes), and, for every task, its partial sums over the rows; row_combine.py
adds those up.
"""

from __future__ import annotations

import math

from blutrain.nova.cpu.configure_common import lanes_of, num_tasks, predicted_us, round_up, unroll_of
from blutrain.nova.cpu.emit import (
    POINTER,
    WORKER,
    WORKSPACE,
    Integers,
    Number,
    module_text,
    phase_text,
    result_pointer,
)
from blutrain.nova.cpu.emit_loops import cut_tiles, for_each_row, strip_loop
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.cpu.emit_reduce import Reduction
from blutrain.nova.cpu.row_combine import PartialSums, emit_combine
from blutrain.nova.cpu.row_plan import Pass, RowPlan, plan_rows
from blutrain.nova.emitter import Emitter
from blutrain.nova.kernel import (
    ALIGNMENT_BYTES,
    ITEM_BYTES,
    GeneratedKernel,
    Kernel,
    Phase,
    Produced,
    Unsupported,
    row_major_strides,
)
from blutrain.nova.target import CpuFacts

ROWS_PER_PARTIAL = 8  # a task with sums over the rows has at least so many, or the partials cost more than the rows


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        plan_rows(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: CpuFacts) -> dict[str, int]:
    """`tasks` ranges of rows, swept by `lanes`, at most `unroll` vectors at a time."""
    plan = plan_rows(kernel)
    tasks = num_tasks(kernel, facts)
    rows = math.prod(plan.domain.extents[d] for d in plan.row_dims)
    if plan.sums:
        tasks = max(1, min(tasks, rows // ROWS_PER_PARTIAL))
    return {"lanes": lanes_of(facts), "unroll": 4, "tasks": tasks}


def generate(kernel: Kernel, facts: CpuFacts, config: dict[str, int]) -> GeneratedKernel:
    plan = plan_rows(kernel)
    body = _RowBody(kernel, plan, config, facts.threads)
    phases = [Phase(f"{kernel.symbol}_0", body.emit())]
    functions = [phase_text(kernel, phases[0].symbol, body.out)]
    declarations = dict(body.out.declarations)
    if plan.sums:
        out = Emitter()
        tasks = emit_combine(kernel, body.partials, plan.post_stores, out, config["lanes"], config["tasks"])
        phases.append(Phase(f"{kernel.symbol}_1", tasks))
        functions.append(phase_text(kernel, phases[1].symbol, out))
        declarations |= out.declarations
    return GeneratedKernel(
        text=module_text(functions, declarations),
        phases=tuple(phases),
        workspace_bytes=body.partials.start + body.partials.bytes,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, phases[0].tasks, len(phases)),
    )


class _RowBody:
    """Emits the first phase."""

    def __init__(self, kernel: Kernel, plan: RowPlan, config: dict[str, int], threads: int):
        self.kernel, self.plan, self.lanes, self.max_unroll = kernel, plan, config["lanes"], config["unroll"]
        self.out = Emitter()
        self.ints, self.evaluator = Integers(self.out), Evaluator(kernel, plan.domain, self.out)
        self.kept_offsets, self.kept_bytes = self._lay_out_kept()
        self.tiles = cut_tiles(plan.domain.extents, None, plan.row_dims, config["tasks"])
        self.partials = PartialSums(plan.domain, plan.sums, self.tiles.tasks, start=self.kept_bytes * threads)

    def _lay_out_kept(self) -> tuple[dict[Produced, int], int]:
        """Byte offsets of the row buffers in a worker's part of the workspace, and its size."""
        count = math.prod(self.plan.domain.extents[d] for d in self.plan.column_dims)
        offsets, size = {}, 0
        for value in self.plan.kept:
            offsets[value] = size
            size += round_up(count * ITEM_BYTES[self.evaluator.dtype(value)], ALIGNMENT_BYTES)
        return offsets, size

    def emit(self) -> int:
        """Write the body; returns the number of tasks."""
        self.top = Point({}, 0)
        self.partials.clear(self.out, self.lanes)
        for_each_row(self.out, self.tiles, self.top, lambda row, *_: self._row(row))
        return self.tiles.tasks

    def _row(self, row: Point) -> list[str]:
        for pass_ in self.plan.passes:
            self._sweep(pass_, row)
            for value in pass_.keeps:
                self.evaluator.providers[value] = lambda at, v=value: self._load_kept(v, at)
        for store in self.plan.row_stores:
            value = self.evaluator.source(store.source, store.access, row)
            self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), row)
        for reduction in self.plan.row_sums:
            self.partials.accumulate(self.evaluator, reduction, row)
        return []

    def _sweep(self, pass_: Pass, row: Point) -> None:
        """One pass over the columns of a row."""
        carrying = [r for r in pass_.reductions if not r.is_ordered]
        totals = [r for r in pass_.sums if not r.placed.result_dims]
        accumulators = self._vectors(pass_, carrying + totals, row)
        for reduction in carrying + totals:
            count = len(reduction.dtypes)
            scalars = reduction.horizontal(self.out, accumulators[:count], self.lanes)
            accumulators = accumulators[count:]
            if reduction in totals:
                self.partials.merge(self.evaluator, reduction, scalars, row)
            else:
                self._complete(reduction, reduction.finish(self.evaluator, scalars, row), row)
        for reduction in pass_.reductions:
            if reduction.is_ordered:
                self._complete(reduction, self._fold(reduction, row), row)

    def _complete(self, reduction: Reduction, values: list[str], row: Point) -> None:
        home = row.home(reduction.placed.result_dims)
        home.memo.update(zip(reduction.results, values, strict=True))

    def _vectors(self, pass_: Pass, carrying: list[Reduction], row: Point) -> list[str]:
        """The vector part of a sweep; returns the accumulators of `carrying`, one after the other."""
        column_sums = [r for r in pass_.sums if r.placed.result_dims]
        carried = [c for r in carrying for c in r.carried(self.out, self.lanes)]
        if not (carried or column_sums or pass_.keeps or pass_.stores):
            return []
        lane_dim = self.plan.column_dims[-1]

        def strip(at: Point, starts: list[Number], mask: str | None, values: list[str]) -> list[str]:
            depth, results = self.out.innermost, []
            points = [Point({lane_dim: s}, depth, at, lane_dim, self.lanes, mask) for s in starts]
            for u, point in enumerate(points):
                mine = values[u * len(carried) : (u + 1) * len(carried)]
                results += self._accumulate(carrying, point, mine)
                for reduction in column_sums:
                    self.partials.accumulate(self.evaluator, reduction, point)
                for value in pass_.keeps:
                    self._store_kept(value, point)
                self._store_results(pass_, point)
            return results

        def columns(at: Point, dims: tuple[int, ...], values: list[str]) -> list[str]:
            if len(dims) > 1:
                inner = lambda index, v: columns(Point({dims[0]: index}, self.out.innermost, at), dims[1:], v)
                extent = self.ints.name(self.plan.domain.extents[dims[0]])
                types = [(v, t) for v, (_, t) in zip(values, carried, strict=True)]
                return self.out.loop(self.ints.name(0), extent, self.ints.name(1), inner, types)
            length = self.plan.domain.extents[lane_dim]
            triples = [(v, n, t) for v, (n, t) in zip(values, carried, strict=True)]
            body = lambda starts, lanes, mask, v: strip(at, starts, mask, v)
            merge = lambda a, b: self._merge(carrying, a, b)
            return strip_loop(
                self.out, 0, length, length, self.lanes, self._unroll(pass_, length), body, triples, merge
            )

        return columns(row, self.plan.column_dims, [n for n, _ in carried])

    def _unroll(self, pass_: Pass, length: int) -> int:
        unroll = min(self.max_unroll, unroll_of(pass_.flops))
        while unroll > 1 and length < 2 * unroll * self.lanes:
            unroll //= 2
        return unroll

    def _accumulate(self, reductions: list[Reduction], point: Point, values: list[str]) -> list[str]:
        results = []
        for reduction in reductions:
            count = len(reduction.dtypes)
            results += reduction.accumulate(self.evaluator, point, values[:count])
            values = values[count:]
        return results

    def _merge(self, reductions: list[Reduction], a: list[str], b: list[str]) -> list[str]:
        results = []
        for reduction in reductions:
            count = len(reduction.dtypes)
            results += reduction.merge(self.out, a[:count], b[:count], self.lanes)
            a, b = a[count:], b[count:]
        return results

    def _fold(self, reduction: Reduction, row: Point) -> list[str]:
        """A reduction without a known combiner: element by element, in index order."""
        initial = [self.evaluator.read(a, row) for a in reduction.placed.outputs]

        def nest(at: Point, dims: tuple[int, ...], values: list[str]) -> list[str]:
            if not dims:
                return reduction.accumulate(self.evaluator, at, values)
            inner = lambda index, v: nest(Point({dims[0]: index}, self.out.innermost, at), dims[1:], v)
            extent = self.ints.name(self.plan.domain.extents[dims[0]])
            carried = list(zip(values, reduction.dtypes, strict=True))
            return self.out.loop(self.ints.name(0), extent, self.ints.name(1), inner, carried)

        return nest(row, self.plan.column_dims, initial)

    def _store_results(self, pass_: Pass, point: Point) -> None:
        """Every value before any store: a result may stand in an operand's memory."""
        values = [self.evaluator.source(s.source, s.access, point) for s in pass_.stores]
        for store, value in zip(pass_.stores, values, strict=True):
            self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), point)

    # --- row buffers

    def _kept_pointer(self, value: Produced) -> str:
        key = ("kept", value)
        if key not in self.top.memo:
            with self.out.scope(self.top.depth):
                start = self.ints.add(self.ints.mul(WORKER, self.kept_bytes), self.kept_offsets[value])
                types = f"({POINTER}, i64) -> {POINTER}, i8"
                self.top.memo[key] = self.out.value(
                    f"llvm.getelementptr inbounds {WORKSPACE}[{self.ints.name(start)}] : {types}"
                )
        return self.top.memo[key]

    def _kept_offset(self, point: Point) -> str:
        extents = self.plan.domain.extents
        inner = row_major_strides(tuple(extents[d] for d in self.plan.column_dims))
        return self.evaluator.offset((0,) * len(self.plan.row_dims) + inner, 0, point)

    def _store_kept(self, value: Produced, point: Point) -> None:
        name = self.evaluator.source(value, None, point)
        dtype = self.evaluator.dtype(value)
        memory = self.evaluator.memory
        memory.store(name, self._kept_pointer(value), self._kept_offset(point), dtype, point.lanes, point.mask)

    def _load_kept(self, value: Produced, point: Point) -> str:
        dtype, memory = self.evaluator.dtype(value), self.evaluator.memory
        return memory.load(self._kept_pointer(value), self._kept_offset(point), dtype, point.lanes, point.mask)
