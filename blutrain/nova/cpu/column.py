"""column kernels: reductions over dimensions that are not the last: bias gradients, batch norm's statistics.

Lanes lie along the last dimension of the results. In the form "strips" (one phase) a strip of results keeps its
accumulators in registers and runs through everything that it sums, once for each level of reductions; lanes never
mix, so any region may be folded. It is taken where few elements are summed for each result, or results are many,
or sums depend on sums. In the form "rows" tasks take ranges of the summed rows: several rows at a time are added
to the task's partial sums, which stay in the first-level cache, and a second phase adds the tasks' sums in order.
"""

from __future__ import annotations

import math

from blutrain.nova.clone import check_block
from blutrain.nova.cpu.configure_common import lanes_of, num_tasks, predicted_us, round_up, unroll_of
from blutrain.nova.cpu.emit import TASK, Integers, Number, module_text, phase_text, result_pointer
from blutrain.nova.cpu.emit_domain import Store, build_domain
from blutrain.nova.cpu.emit_loops import cut_tiles, for_each_row, strip_loop, unflatten
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.cpu.emit_reduce import Reduction, as_reduction
from blutrain.nova.cpu.row_combine import PartialSums, emit_combine
from blutrain.nova.emitter import Emitter, lane_type
from blutrain.nova.kernel import GeneratedKernel, Generic, Kernel, Phase, Produced, Unsupported, region_flops
from blutrain.nova.target import CpuFacts

STRIP_ROWS = 32  # up to so many summed elements a result: strips
ROW_GROUP = 8  # rows added at once: streams that the prefetcher follows, one load and store of the sums for all


class _Plan:
    """What belongs to which sweep over the summed rows: `levels[l]` reductions, `stores[l]` results of all loops."""

    def __init__(self, kernel: Kernel):
        self.domain = build_domain(kernel)
        everything = frozenset(range(len(self.domain.extents)))
        level_of: dict[int, int] = {}
        reductions: list[Reduction] = []
        for index, placed in enumerate(self.domain.ops):
            if not isinstance(placed.op, Generic):
                raise Unsupported("an op that is no generic in a column kernel")
            check_block(placed.op.block, has_extract=True)
            sources = [a.source for a in (*placed.inputs, *placed.outputs)]
            level_of[index] = max((level_of[s.op] for s in sources if isinstance(s, Produced)), default=0)
            if placed.reduced:
                if placed.nest_dims != everything:
                    raise Unsupported("a reduction over a part of the kernel's loops")
                level_of[index] += 1
                reductions.append(as_reduction(index, placed))
        self.summed, self.kept_dims = self._split_dims(reductions, everything)
        depth = max(level_of[r.index] for r in reductions)
        self.levels = [[r for r in reductions if level_of[r.index] == level + 1] for level in range(depth)]
        self.stores: list[list[Store]] = [[] for _ in range(depth + 1)]
        self.post_stores: list[Store] = []
        over_all = [s for s in self.domain.stores if s.dims == everything]
        last = max([depth - 1, *(level_of[s.producer] for s in over_all)])
        for store in self.domain.stores:
            if store.dims == frozenset(self.kept_dims):
                self.post_stores.append(store)
            elif store.dims == everything:
                # In an operand's own memory: not before the last sweep has read the operand.
                in_place = kernel.aliases[store.result] >= 0
                self.stores[last if in_place else level_of[store.producer]].append(store)
            else:
                raise Unsupported("results over different loops")

    def _split_dims(self, reductions: list[Reduction], everything: frozenset[int]) -> tuple[tuple, tuple]:
        sets = {r.placed.reduced for r in reductions}
        if len(sets) != 1:
            raise Unsupported("no reduction, or reductions over different dimensions")
        (summed,) = sets
        if summed == everything:
            raise Unsupported("a full reduction in a column kernel")
        return tuple(sorted(summed)), tuple(sorted(everything - summed))

    @property
    def needs_strips(self) -> bool:
        """Sums that need sums, or that cannot be split into partial ones."""
        return len(self.levels) > 1 or bool(self.stores[-1]) or any(r.is_ordered for r in self.levels[0])

    @property
    def num_summed(self) -> int:
        return math.prod(self.domain.extents[d] for d in self.summed)

    @property
    def num_kept(self) -> int:
        return math.prod(self.domain.extents[d] for d in self.kept_dims)


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        _Plan(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: CpuFacts) -> dict[str, int | str]:
    """`form` strips or rows; `tasks` shares of the results (strips) or of the summed rows (rows)."""
    plan, tasks = _Plan(kernel), num_tasks(kernel, facts)
    ops = sum(region_flops(op.block_ops) for op in kernel.generics)
    few = plan.num_summed <= STRIP_ROWS or plan.num_kept > 8 * plan.num_summed * tasks
    form = "strips" if few or plan.needs_strips else "rows"
    if form == "rows":
        tasks = max(1, min(tasks, plan.num_summed // (4 * ROW_GROUP)))
    group = ROW_GROUP if ops <= 4 else ROW_GROUP // 2 if ops <= 12 else 1
    return {"form": form, "lanes": lanes_of(facts), "unroll": unroll_of(ops), "tasks": tasks, "group": group}


def generate(kernel: Kernel, facts: CpuFacts, config: dict[str, int | str]) -> GeneratedKernel:
    plan = _Plan(kernel)
    body = _Body(kernel, plan, config)
    if config["form"] == "strips":
        functions, tasks, workspace = body.strips()
    else:
        functions, tasks, workspace = body.rows()
    symbols = [f"{kernel.symbol}_{i}" for i in range(len(functions))]
    declarations = {k: v for out in functions for k, v in out.declarations.items()}
    texts = [phase_text(kernel, s, out) for s, out in zip(symbols, functions, strict=True)]
    return GeneratedKernel(
        text=module_text(texts, declarations),
        phases=tuple(Phase(s, t) for s, t in zip(symbols, tasks, strict=True)),
        workspace_bytes=workspace,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, tasks[0], len(tasks)),
    )


class _Body:
    def __init__(self, kernel: Kernel, plan: _Plan, config: dict):
        self.kernel, self.plan, self.config, self.lanes = kernel, plan, config, config["lanes"]
        self.out = Emitter()
        self.ints, self.evaluator = Integers(self.out), Evaluator(kernel, plan.domain, self.out)
        self.extents, self.lane_dim = plan.domain.extents, plan.kept_dims[-1]

    def _write(self, point: Point, stores: list[Store]) -> None:
        values = [self.evaluator.source(s.source, s.access, point) for s in stores]
        for store, value in zip(stores, values, strict=True):
            self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), point)

    # --- strips: accumulators in registers

    def strips(self) -> tuple[list[Emitter], list[int], int]:
        step = self.lanes * self.config["unroll"]
        tiles = cut_tiles(self.extents, self.lane_dim, self.plan.kept_dims[:-1], self.config["tasks"], step)

        def row(at: Point, lower: Number, upper: Number, _: list[str]) -> list[str]:
            strip = lambda starts, lanes, mask, _: self._strip(at, starts, mask)
            return strip_loop(self.out, lower, upper, tiles.columns, self.lanes, self.config["unroll"], strip)

        for_each_row(self.out, tiles, Point({}, 0), row)
        return [self.out], [tiles.tasks], 0

    def _strip(self, at: Point, starts: list[Number], mask: str | None) -> list[str]:
        """A few vectors of results: one loop over the summed rows for each level."""
        points = [Point({self.lane_dim: s}, self.out.innermost, at, self.lane_dim, self.lanes, mask) for s in starts]
        for level, stores in enumerate(self.plan.stores):
            reductions = self.plan.levels[level] if level < len(self.plan.levels) else []
            if not reductions and not stores:
                continue
            totals = iter(self._sum_rows(points, reductions, stores))
            for point in points:
                for r in reductions:
                    mine = [next(totals) for _ in r.dtypes]
                    done = mine if r.is_ordered else r.finish(self.evaluator, mine, point)
                    point.memo.update(zip(r.results, done, strict=True))
        for point in points:
            self._write(point, self.plan.post_stores)
        return []

    def _sum_rows(self, points: list[Point], reductions: list[Reduction], stores: list[Store]) -> list[str]:
        """One loop over the summed rows; returns the accumulators of every point and reduction."""

        def add(index: str, values: list[str]) -> list[str]:
            left, results = iter(values), []
            for point in points:
                row = unflatten(self.ints, self.extents, self.plan.summed, index)
                here = Point(row, self.out.innermost, point, self.lane_dim, self.lanes, point.mask)
                for r in reductions:
                    results += r.accumulate(self.evaluator, here, [next(left) for _ in r.dtypes])
                self._write(here, stores)
            return results

        carried = [c for point in points for r in reductions for c in self._initial(r, point)]
        count = self.ints.name(self.plan.num_summed)
        return self.out.loop(self.ints.name(0), count, self.ints.name(1), add, carried)

    def _initial(self, reduction: Reduction, point: Point) -> list[tuple[str, str]]:
        if not reduction.is_ordered:
            return reduction.carried(self.out, self.lanes)
        accesses = reduction.placed.outputs
        return [(self.evaluator.read(a, point), lane_type(a.dtype, self.lanes)) for a in accesses]

    # --- rows: partial sums in the cache

    def rows(self) -> tuple[list[Emitter], list[int], int]:
        per_task = round_up(math.ceil(self.plan.num_summed / self.config["tasks"]), self.config["group"])
        tasks = max(1, math.ceil(self.plan.num_summed / per_task))
        partials = PartialSums(self.plan.domain, self.plan.levels[0], tasks, start=0)
        partials.clear(self.out, self.lanes)
        top = Point({}, 0)
        first = self.ints.mul(TASK, per_task) if tasks > 1 else 0
        last = self.ints.minimum(self.ints.add(first, per_task), self.plan.num_summed)
        outer = cut_tiles(self.extents, None, self.plan.kept_dims[:-1], 1)
        for_each_row(self.out, outer, top, lambda at, *_: self._range(partials, at, first, last))
        second = Emitter()
        combine_tasks = emit_combine(
            self.kernel, partials, self.plan.post_stores, second, self.lanes, self.config["tasks"]
        )
        return [self.out, second], [tasks, combine_tasks], partials.bytes

    def _range(self, partials: PartialSums, at: Point, first: Number, last: Number) -> list[str]:
        """Rows [first, last) in groups, then singly."""
        group, ints = self.config["group"], self.ints
        count = ints.sub(last, first)
        middle = ints.add(first, ints.mul(ints.div(count, group), group))
        for lower, upper, size in ((first, middle, group), (middle, last, 1)):
            if isinstance(lower, int) and lower == upper:
                continue
            body = lambda index, _, size=size: self._group(partials, at, index, size)
            self.out.loop(ints.name(lower), ints.name(upper), ints.name(size), body)
            if group == 1:
                break
        return []

    def _group(self, partials: PartialSums, at: Point, index: str, size: int) -> list[str]:
        """`size` rows from `index`, all columns."""
        depth, lane, length = self.out.innermost, self.lane_dim, self.extents[self.lane_dim]
        rows = [
            Point(unflatten(self.ints, self.extents, self.plan.summed, self.ints.add(index, i)), depth, at)
            for i in range(size)
        ]

        def strip(starts: list[Number], lanes: int, mask: str | None, _: list[str]) -> list[str]:
            points = [Point({lane: starts[0]}, self.out.innermost, r, lane, lanes, mask) for r in rows]
            for reduction in self.plan.levels[0]:
                partials.accumulate(self.evaluator, reduction, *points)
            for point in points:
                self._write(point, self.plan.stores[0])
            return []

        return strip_loop(self.out, 0, length, length, self.lanes, 1, strip)
