"""full kernels: reductions of everything to one value (norms, means, flags), and results that use them.

Every level of reductions is a phase: tasks sweep their share of the nest with vector accumulators and leave one
partial value each; tasks of the next phase begin by adding those up, in task order, each for itself. A last phase
writes what depends on the last level.
"""

from __future__ import annotations

from blutrain.nova.clone import check_block
from blutrain.nova.cpu.configure_common import lanes_of, num_tasks, predicted_us, unroll_of
from blutrain.nova.cpu.emit import TASK, Integers, Number, module_text, phase_text, result_pointer
from blutrain.nova.cpu.emit_domain import Store, build_domain
from blutrain.nova.cpu.emit_loops import Tiles, cut_tiles, for_each_row, strip_loop
from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.cpu.emit_reduce import Reduction, as_reduction
from blutrain.nova.cpu.row_combine import PartialSums
from blutrain.nova.emitter import Emitter
from blutrain.nova.kernel import GeneratedKernel, Generic, Kernel, Phase, Produced, Unsupported, region_flops
from blutrain.nova.target import CpuFacts


class _Plan:
    """Levels of a full kernel: `reductions[l]` and `stores[l]` belong to phase l, `scalars` to the end."""

    def __init__(self, kernel: Kernel):
        self.domain = build_domain(kernel)
        self.everything = frozenset(range(len(self.domain.extents)))
        self.levels: dict[int, int] = {}
        found = [self._place(index) for index in range(len(kernel.ops))]
        depth = max((self.levels[r.index] for r in found if r), default=0)
        self.reductions = [[r for r in found if r and self.levels[r.index] == level + 1] for level in range(depth)]
        self.stores: list[list[Store]] = [[] for _ in range(depth + 1)]
        self.scalars: list[Store] = []
        for store in self.domain.stores:
            if not store.dims:
                self.scalars.append(store)
            elif store.dims != self.everything:
                raise Unsupported("a result over some of the dimensions of a full reduction")
            else:
                in_place = kernel.aliases[store.result] >= 0
                self.stores[depth if in_place else self.levels[store.producer]].append(store)

    def _place(self, index: int) -> Reduction | None:
        placed = self.domain.ops[index]
        if not isinstance(placed.op, Generic):
            raise Unsupported("an op that is no generic in a full reduction")
        check_block(placed.op.block, has_extract=True)
        sources = [a.source for a in (*placed.inputs, *placed.outputs)]
        level = max((self.levels[s.op] for s in sources if isinstance(s, Produced)), default=0)
        self.levels[index] = level
        if not placed.reduced:
            return None
        if placed.reduced != self.everything:
            raise Unsupported("a reduction over some of the dimensions")
        self.levels[index] = level + 1
        return as_reduction(index, placed)

    @property
    def all_reductions(self) -> list[Reduction]:
        return [r for level in self.reductions for r in level]


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        _Plan(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def configure(kernel: Kernel, facts: CpuFacts) -> dict[str, int]:
    """`tasks` shares of the nest, `lanes` wide, `unroll` accumulators."""
    ops = sum(region_flops(op.block_ops) for op in kernel.generics)
    return {"lanes": lanes_of(facts), "unroll": max(2, unroll_of(ops)), "tasks": num_tasks(kernel, facts)}


def generate(kernel: Kernel, facts: CpuFacts, config: dict[str, int]) -> GeneratedKernel:
    plan = _Plan(kernel)
    lanes, unroll = config["lanes"], config["unroll"]
    extents, lane_dim = plan.domain.extents, len(plan.domain.extents) - 1
    tiles = cut_tiles(extents, lane_dim, range(lane_dim), config["tasks"], lanes * unroll) if extents else None
    partials = PartialSums(plan.domain, plan.all_reductions, tiles.tasks if tiles else 1, start=0)
    phases, functions, declarations = [], [], {}
    depth = len(plan.reductions)
    for level in range(depth + 1):
        if level == depth and not plan.stores[level] and not plan.scalars and depth:
            break
        body = _Phase(kernel, plan, partials, tiles, level, lanes, unroll)
        phases.append(Phase(f"{kernel.symbol}_{level}", body.emit()))
        functions.append(phase_text(kernel, phases[-1].symbol, body.out))
        declarations |= body.out.declarations
    return GeneratedKernel(
        text=module_text(functions, declarations),
        phases=tuple(phases),
        workspace_bytes=partials.bytes,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, partials.tasks, len(phases)),
    )


class _Phase:
    def __init__(
        self,
        kernel: Kernel,
        plan: _Plan,
        partials: PartialSums,
        tiles: Tiles | None,
        level: int,
        lanes: int,
        unroll: int,
    ):
        self.kernel, self.plan, self.partials, self.tiles, self.level = kernel, plan, partials, tiles, level
        self.lanes, self.unroll, self.out = lanes, unroll, Emitter()
        self.ints, self.evaluator = Integers(self.out), Evaluator(kernel, plan.domain, self.out)

    def emit(self) -> int:
        """Write the phase; returns its number of tasks."""
        top = Point({}, 0)
        for reductions in self.plan.reductions[: self.level]:
            for reduction in reductions:
                self.partials.provide(self.evaluator, reduction, top)
        is_last = self.level == len(self.plan.reductions)
        reductions = [] if is_last else self.plan.reductions[self.level]
        stores = self.plan.stores[self.level]
        if is_last:
            self._only_first_task(lambda: self._write(top, self.plan.scalars))
        if self.tiles is None or not (reductions or stores):
            return 1
        carrying = [r for r in reductions if not r.is_ordered]
        self._sweep(top, carrying, stores)
        ordered = [r for r in reductions if r.is_ordered]
        if ordered:
            self._only_first_task(lambda: [self._fold(r) for r in ordered])
        return self.tiles.tasks

    def _only_first_task(self, body) -> None:
        is_first = self.out.value(f"arith.cmpi eq, {TASK}, {self.out.integer(0)} : i64")
        self.out.when(is_first, body)

    def _sweep(self, top: Point, reductions: list[Reduction], stores: list[Store]) -> None:
        """The running task's share of the nest."""
        tiles = self.tiles
        assert tiles is not None and tiles.lane_dim is not None
        lane_dim = tiles.lane_dim
        carried = [c for r in reductions for c in r.carried(self.out, self.lanes)]

        def row(at: Point, lower: Number, upper: Number, values: list[str]) -> list[str]:
            def strip(starts: list[Number], lanes: int, mask: str | None, values: list[str]) -> list[str]:
                results, depth = [], self.out.innermost
                for u, start in enumerate(starts):
                    point = Point({lane_dim: start}, depth, at, lane_dim, lanes, mask)
                    mine = iter(values[u * len(carried) : (u + 1) * len(carried)])
                    for reduction in reductions:
                        old = [next(mine) for _ in reduction.dtypes]
                        results += reduction.accumulate(self.evaluator, point, old)
                    self._write(point, stores)
                return results

            triples = [(v, n, t) for v, (n, t) in zip(values, carried, strict=True)]
            merge = lambda a, b: self._merge(reductions, a, b)
            return strip_loop(self.out, lower, upper, tiles.columns, self.lanes, self.unroll, strip, triples, merge)

        values = iter(for_each_row(self.out, tiles, top, row, carried))
        for reduction in reductions:
            vectors = [next(values) for _ in reduction.dtypes]
            scalars = reduction.horizontal(self.out, vectors, self.lanes)
            self.partials.put(self.evaluator, reduction, scalars, top)

    def _merge(self, reductions: list[Reduction], a: list[str], b: list[str]) -> list[str]:
        results: list[str] = []
        for reduction in reductions:
            mine = slice(len(results), len(results) + len(reduction.dtypes))
            results += reduction.merge(self.out, a[mine], b[mine], self.lanes)
        return results

    def _fold(self, reduction: Reduction) -> None:
        """A reduction without a known combiner: all elements in index order, by one task."""
        extents = self.plan.domain.extents
        start = Point({}, self.out.innermost)
        initial = [self.evaluator.read(a, start) for a in reduction.placed.outputs]

        def nest(at: Point, dim: int, values: list[str]) -> list[str]:
            if dim == len(extents):
                return reduction.accumulate(self.evaluator, at, values)
            inner = lambda index, v: nest(Point({dim: index}, self.out.innermost, at), dim + 1, v)
            carried = list(zip(values, reduction.dtypes, strict=True))
            return self.out.loop(self.ints.name(0), self.ints.name(extents[dim]), self.ints.name(1), inner, carried)

        for value, dtype, total in zip(reduction.results, reduction.dtypes, nest(start, 0, initial), strict=True):
            pointer = self.partials.pointer(self.out, value, 0)
            self.evaluator.memory.store(total, pointer, self.out.integer(0), dtype, 0)

    def _write(self, point: Point, stores: list[Store]) -> None:
        values = [self.evaluator.source(s.source, s.access, point) for s in stores]
        for store, value in zip(stores, values, strict=True):
            self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), point)
