"""row kernels: layer norm, softmax, cross-entropy, forward and backward, and whatever else sweeps rows.

A row belongs to a group of threads: a part of a warp, a warp, or a block. In the form "resident" a thread's elements
stay in registers from the first sweep over the row to the last; in the form "swept" every sweep is a loop that reads
them again, from the L2 as a rule. Reductions along the row meet by shuffles, and between warps in shared memory.
Sums over the rows (a norm's weight gradient) are kept by every thread for its own columns over all rows of the block;
then the block's warps join theirs, and row_combine.py adds up the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blutrain.nova.cpu.emit import Number, result_pointer
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.cpu.row_plan import Pass, RowPlan, plan_rows
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.configure_common import operand_accesses, power_of_two, predicted_us, width_for
from blutrain.nova.gpu.emit import (
    BLOCK,
    MAX_STATIC_SHARED,
    THREAD,
    Shared,
    SimtEvaluator,
    barrier,
    module_text,
    phase_text,
)
from blutrain.nova.gpu.emit_block import WARP, BlockReducer, Fold
from blutrain.nova.gpu.emit_region import check_region
from blutrain.nova.gpu.emit_strip import Strip
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.gpu.row_combine import COMBINE_THREADS, Partials, check_combined, emit_combine
from blutrain.nova.kernel import ITEM_BYTES, Gather, Generic, Kernel, Produced, Unsupported
from blutrain.nova.target_gpu import GpuFacts

RESIDENT = 32  # elements of a row that a thread keeps at most
BLOCK_RESIDENT = 16  # aimed at where a block has a row for itself
WIDEST_RESIDENT_BLOCK = 512
SWEPT_THREADS = 512
SWEPT_UNROLL = 4  # strips under way in a swept row
ACCUMULATORS = 4  # independent ones of a thread for one reduction


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    try:
        _plan(kernel)
    except Unsupported as reason:
        return str(reason)
    return None


def _plan(kernel: Kernel) -> RowPlan:
    plan = plan_rows(kernel)
    for placed in plan.domain.ops:
        if isinstance(placed.op, Generic):
            check_region(placed.op.block)
    for reduction in (r for pass_ in plan.passes for r in pass_.reductions):
        Fold(reduction)
    check_combined([Fold(r) for r in plan.sums])
    return plan


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int | str]:
    """`threads` for a row, `block` threads in all, strips of `width` elements; `blocks`: 0, or as many share all rows."""
    plan = _plan(kernel)
    rows, columns = _sizes(plan)
    if not plan.column_dims or not columns:
        return _with_blocks(plan, facts, {"form": "resident", "threads": 1, "block": 128, "width": 1})
    width = width_for(plan.domain, plan.column_dims[-1], plan.domain.extents[plan.column_dims[-1]])
    strips = columns // width
    few_rows = rows * WARP < facts.sms * 256 and strips > WARP
    if strips <= WARP * RESIDENT // width and not few_rows:
        threads = min(WARP, power_of_two(strips))
        form, block = "resident", 256 if plan.sums else 128
    else:
        aim = width if few_rows else BLOCK_RESIDENT
        threads = min(WIDEST_RESIDENT_BLOCK, _warps(math.ceil(strips * width / aim)))
        form = "resident" if math.ceil(strips / threads) * width <= RESIDENT else "swept"
        threads = threads if form == "resident" else SWEPT_THREADS
        block = threads
    return _with_blocks(plan, facts, {"form": form, "threads": threads, "block": block, "width": width})


def _warps(threads: int) -> int:
    return math.ceil(threads / WARP) * WARP


def _with_blocks(plan: RowPlan, facts: GpuFacts, config: dict) -> dict:
    """Sums over the rows: as many blocks as run at once, so that each has few partial results to write."""
    rows, _ = _sizes(plan)
    groups = math.ceil(rows / (config["block"] // config["threads"]))
    resident = max(1, 512 // config["block"])
    return {**config, "blocks": max(1, min(groups, facts.sms * resident)) if plan.sums else 0}


def _sizes(plan: RowPlan) -> tuple[int, int]:
    extents = plan.domain.extents
    return math.prod(extents[d] for d in plan.row_dims), math.prod(extents[d] for d in plan.column_dims)


def generate(kernel: Kernel, facts: GpuFacts, config: dict) -> GpuKernel:
    body = _RowBody(kernel, _plan(kernel), config)
    blocks = body.emit()
    symbols = [f"{kernel.symbol}_0", f"{kernel.symbol}_1"]
    texts = [phase_text(kernel, symbols[0], body.out, config["block"], body.shared)]
    phases = [GpuPhase(symbols[0], (blocks, 1, 1), config["block"])]
    if body.plan.sums:
        out = Emitter()
        shared = Shared(symbols[1], out)
        combining = emit_combine(kernel, body.partials, body.plan.post_stores, out, shared)
        texts.append(phase_text(kernel, symbols[1], out, COMBINE_THREADS, shared))
        phases.append(GpuPhase(symbols[1], (combining, 1, 1), COMBINE_THREADS))
    return GpuKernel(
        text=module_text(texts),
        target=facts.arch,
        phases=tuple(phases),
        workspace_bytes=body.partials.bytes,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, len(phases), 2 * body.partials.bytes),
        schedule=f"row, {config['form']}, {config['threads']} threads a row, {config['width']} elements at once, "
        f"{blocks} blocks of {config['block']}",
    )


class _Chunk:
    """A strip of this thread in a row, and where it lies: `inside` is None where it cannot lie past the row's end."""

    def __init__(self, number: int, strip: Strip, inside: str | None, place: Number):
        self.number, self.strip, self.inside, self.place = number, strip, inside, place


class _RowBody:
    """Emits the first phase."""

    def __init__(self, kernel: Kernel, plan: RowPlan, config: dict):
        self.kernel, self.plan, self.config = kernel, plan, config
        self.symbol, self.out = f"{kernel.symbol}_0", Emitter()
        self.evaluator = SimtEvaluator(kernel, plan.domain, self.out)
        self.ints, self.shared = self.evaluator.integers, Shared(f"{kernel.symbol}_0", self.out)
        self.rows, self.columns = _sizes(plan)
        self.width, self.threads, self.block = config["width"], config["threads"], config["block"]
        self.strips = self.columns // self.width if plan.column_dims else 0
        self.per_block = self.block // self.threads
        self.groups = math.ceil(self.rows / self.per_block)
        self.blocks = config["blocks"] or self.groups
        self.top = Point({}, 0)
        self.folds = {r.index: Fold(r) for p in plan.passes for r in (*p.reductions, *p.sums)}
        self.folds |= {r.index: Fold(r) for r in plan.row_sums}
        self.sums = [self.folds[r.index] for r in plan.sums]
        self.partials = Partials(plan.domain, self.sums, self.blocks)
        self.is_resident = config["form"] == "resident"
        self.chunks = math.ceil(self.strips / self.threads)

    def emit(self) -> int:
        """Write the body; returns the number of blocks."""
        self.member = self.ints.rem(THREAD, self.threads) if self.per_block > 1 else THREAD
        self.group: Number = self.ints.div(THREAD, self.threads) if self.per_block > 1 else 0
        if not self.plan.sums:
            if self.rows:
                self._row(BLOCK, [])
            return self.groups
        carried = [(v, d) for fold, _ in self._slots() for v, d in fold.carried(self.out)]
        self._clear_columns()
        rounds = math.ceil(self.groups / self.blocks)

        def one(index: str, values: list[str]) -> list[str]:
            return self._row(self.ints.add(self.ints.mul(index, self.blocks), BLOCK), values)

        totals = [v for v, _ in carried]
        if self.rows:
            totals = self.out.loop(self.ints.name(0), self.ints.name(rounds), self.ints.name(1), one, carried)
        self._publish(totals)
        return self.blocks

    # --- sums over the rows in registers

    def _slots(self) -> list[tuple[Fold, object]]:
        """What is carried from row to row: (sum, which element of this thread's columns; None for the only one)."""
        slots: list[tuple[Fold, object]] = []
        for fold in self.sums:
            if not fold.reduction.placed.result_dims:
                slots.append((fold, None))
            elif self.is_resident:
                slots += [(fold, (k, i)) for k in range(self.chunks) for i in range(self.width)]
        return slots

    def _split(self, values: Sequence[str]) -> dict[tuple[int, object], list[str]]:
        found, left = {}, iter(values)
        for fold, slot in self._slots():
            found[fold.reduction.index, slot] = [next(left) for _ in fold.dtypes]
        return found

    def _clear_columns(self) -> None:
        """Swept rows: the block's sums of columns stand in the workspace; every thread clears its own."""
        for fold in self._swept_sums():
            clear = lambda chunk, fold=fold: [
                self.partials.store(self.evaluator, fold, fold.neutral(self.out), self.ints.add(chunk.place, i))
                for i in range(self.width)
            ]
            self._sweep(self.top, clear, 1)

    def _swept_sums(self) -> list[Fold]:
        return [] if self.is_resident else [f for f in self.sums if f.reduction.placed.result_dims]

    # --- one row

    def _row(self, group: Number, carried: list[str]) -> list[str]:
        ints = self.ints
        row = ints.add(ints.mul(group, self.per_block), self.group)
        is_whole = self.rows % (self.per_block * (self.blocks if self.plan.sums else 1)) == 0
        self.row_inside = None if is_whole else ints.less(row, self.rows)
        here = row if is_whole else ints.min(row, self.rows - 1)
        at = Point(unflatten(ints, self.plan.domain.extents, self.plan.row_dims, here), self.out.innermost, self.top)
        self.totals = self._split(carried)
        chunks = [self._chunk(at, k, k) for k in range(self.chunks)] if self.is_resident else []
        for number, pass_ in enumerate(self.plan.passes):
            self._pass(pass_, number, at, chunks)
        self._row_stores(at)
        for reduction in self.plan.row_sums:
            fold, key = self.folds[reduction.index], (reduction.index, None)
            self.totals[key] = fold.accumulate(self.evaluator, at, self.totals[key], self.row_inside)
        return [v for fold, slot in self._slots() for v in self.totals[fold.reduction.index, slot]]

    def _chunk(self, at: Point, number: int, round_: Number, is_bounded: bool | None = None) -> _Chunk:
        """This thread's strip of the round: strip number `round * threads + member` of the row."""
        ints, extents, dims = self.ints, self.plan.domain.extents, self.plan.column_dims
        if is_bounded is None:
            is_bounded = (number + 1) * self.threads > self.strips
        index = ints.add(ints.mul(round_, self.threads), self.member)
        inside = ints.less(index, self.strips) if is_bounded else None
        index = ints.min(index, self.strips - 1) if is_bounded else index
        lane = dims[-1]
        counts = tuple(e // self.width if d == lane else e for d, e in enumerate(extents))
        places = unflatten(ints, counts, dims, index)
        start = ints.mul(places.pop(lane), self.width)
        outer = Point(places, self.out.innermost, at) if places else at
        strip = Strip(self.evaluator, outer, lane, start, self.width)
        return _Chunk(number, strip, inside, ints.mul(index, self.width))

    def _row_stores(self, at: Point) -> None:
        stores = self.plan.row_stores
        if not stores:
            return
        values = [self.evaluator.source(s.source, s.access, at) for s in stores]

        def write() -> None:
            for store, value in zip(stores, values, strict=True):
                self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), at)

        first = self.ints.equal(self.member, 0) if self.threads > 1 else None
        self._when(self.ints.both(first, self.row_inside), write)

    def _when(self, condition: str | None, body) -> None:
        self.out.when(condition, body) if condition else body()

    # --- one pass over a row

    def _pass(self, pass_: Pass, number: int, at: Point, chunks: list[_Chunk]) -> None:
        folds = [self.folds[r.index] for r in pass_.reductions]
        totals = [self.folds[r.index] for r in pass_.sums if not r.placed.result_dims]
        if not (folds or pass_.sums or pass_.stores):
            return
        values = [[f.neutral(self.out)] for f in folds]
        if self.is_resident and chunks:
            values = self._resident(pass_, folds, totals, chunks)
        elif self.strips:
            values = self._swept(pass_, folds, totals, at)
        mine = [self._merged(f, v) for f, v in zip(folds, values, strict=True)]
        reducing = sum(bool(p.reductions) for p in self.plan.passes)
        is_last = not self.plan.sums or reducing > 1
        reducer = BlockReducer(self.out, self.ints, self.shared, self.threads, self.block)
        for fold, done in zip(folds, reducer.reduce(folds, mine, is_last), strict=True):
            home = at.home(fold.reduction.placed.result_dims)
            finished = fold.finish(self.evaluator, done, at)
            home.memo.update(zip(fold.reduction.results, finished, strict=True))

    def _merged(self, fold: Fold, values: list[list[str]]) -> list[str]:
        """A thread's accumulators of one reduction, pairwise."""
        while len(values) > 1:
            pairs = [fold.merge(self.out, a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = pairs + ([values[-1]] if len(values) % 2 else [])
        return values[0]

    def _resident(
        self, pass_: Pass, folds: list[Fold], totals: list[Fold], chunks: list[_Chunk]
    ) -> list[list[list[str]]]:
        self._load(pass_, chunks)
        values = [[f.neutral(self.out)] * min(ACCUMULATORS, self.width * len(chunks)) for f in folds]
        for chunk in chunks:
            self._accumulate(chunk, folds, values, totals)
        for reduction in pass_.sums:
            if reduction.placed.result_dims:
                self._add_columns(self.folds[reduction.index], chunks)
        self._store(pass_, chunks)
        self._forget(chunks)
        return values

    def _load(self, pass_: Pass, chunks: list[_Chunk]) -> None:
        """Loads of a pass come before everything else in it."""
        sources = [s.source for s in pass_.stores]
        for reduction in (*pass_.reductions, *pass_.sums):
            sources += [a.source for a in (*reduction.placed.inputs, *reduction.placed.outputs)]
        ops = self._behind(sources)
        ops |= {r.index for r in (*pass_.reductions, *pass_.sums)}
        wanted = [
            a
            for index in sorted(ops)
            for a in self.plan.domain.ops[index].inputs
            if a in self._operands() and a.strides[self.plan.column_dims[-1]]
        ]
        for chunk in chunks:
            for access in dict.fromkeys(wanted):
                for point in chunk.strip.points:
                    self.evaluator.read(access, point)
            for index in sorted(ops):
                if isinstance(self.plan.domain.ops[index].op, Gather):
                    self.evaluator.source(Produced(index, 0), None, chunk.strip.points[0])

    def _operands(self) -> set:
        return set(operand_accesses(self.plan.domain))

    def _behind(self, sources: list) -> set[int]:
        """Ops over the columns that these values are computed from, as far as no reduction stands between."""
        found: set[int] = set()
        stack = list(sources)
        while stack:
            source = stack.pop()
            if not isinstance(source, Produced) or source.op in found:
                continue
            placed = self.plan.domain.ops[source.op]
            if placed.reduced:
                continue
            found.add(source.op)
            stack += [a.source for a in placed.inputs]
        return found

    def _accumulate(self, chunk: _Chunk, folds: list[Fold], values: list[list[list[str]]], totals: list[Fold]) -> None:
        """Add a chunk's elements to the thread's accumulators, in place."""
        for i, point in enumerate(chunk.strip.points):
            for fold, slots in zip(folds, values, strict=True):
                slot = (chunk.number * self.width + i) % len(slots)
                slots[slot] = fold.accumulate(self.evaluator, point, slots[slot], chunk.inside)
            for fold in totals:
                key = (fold.reduction.index, None)
                inside = self.ints.both(chunk.inside, self.row_inside)
                self.totals[key] = fold.accumulate(self.evaluator, point, self.totals[key], inside)

    def _add_columns(self, fold: Fold, chunks: list[_Chunk]) -> None:
        """Elements past the end are added too, to sums that nobody reads."""
        for chunk in chunks:
            for i, point in enumerate(chunk.strip.points):
                key = (fold.reduction.index, (chunk.number, i))
                self.totals[key] = fold.accumulate(self.evaluator, point, self.totals[key], self.row_inside)

    def _store(self, pass_: Pass, chunks: list[_Chunk]) -> None:
        """Every value before any store: a result may stand in an operand's memory."""
        values = [
            [[self.evaluator.source(s.source, s.access, p) for p in chunk.strip.points] for s in pass_.stores]
            for chunk in chunks
        ]
        for chunk, of_chunk in zip(chunks, values, strict=True):

            def write(chunk=chunk, of_chunk=of_chunk) -> None:
                for store, of_store in zip(pass_.stores, of_chunk, strict=True):
                    chunk.strip.store(of_store, store.access, result_pointer(self.kernel, store.result))

            if pass_.stores:
                self._when(self.ints.both(chunk.inside, self.row_inside), write)

    def _forget(self, chunks: list[_Chunk]) -> None:
        """Keep loads and costly values in registers, compute cheap ones again."""
        kept = set(self.plan.kept)
        for chunk in chunks:
            for point in chunk.strip.points:
                for key in [k for k in point.memo if isinstance(k, Produced) and k not in kept]:
                    if not isinstance(self.plan.domain.ops[key.op].op, Gather):
                        del point.memo[key]

    def _swept(self, pass_: Pass, folds: list[Fold], totals: list[Fold], at: Point) -> list[list[list[str]]]:
        """The same as a loop over rounds of strips, a few at a time."""
        slots = min(ACCUMULATORS, SWEPT_UNROLL * self.width)
        shapes = [(f, slots) for f in folds] + [(f, 1) for f in totals]
        carried = [c for f, count in shapes for _ in range(count) for c in f.carried(self.out)]

        def unpack(names: Sequence[str]) -> list[list[list[str]]]:
            left = iter(names)
            return [[[next(left) for _ in f.dtypes] for _ in range(count)] for f, count in shapes]

        def body(chunks: list[_Chunk], names: list[str]) -> list[str]:
            values = unpack(names)
            for fold, (total,) in zip(totals, values[len(folds) :], strict=True):
                self.totals[fold.reduction.index, None] = total
            self._load(pass_, chunks)
            for chunk in chunks:
                self._accumulate(chunk, folds, values[: len(folds)], totals)
                for reduction in pass_.sums:
                    if reduction.placed.result_dims:
                        self._add_to_workspace(self.folds[reduction.index], chunk)
            self._store(pass_, chunks)
            ends = [[self.totals[f.reduction.index, None]] for f in totals]
            return [n for of_fold in [*values[: len(folds)], *ends] for slot in of_fold for n in slot]

        starts = [n for n, _ in carried]
        before = [v for f in totals for v in self.totals[f.reduction.index, None]]
        starts[len(starts) - len(before) :] = before
        types = [t for _, t in carried]
        names = self._rounds(at, body, SWEPT_UNROLL, list(zip(starts, types, strict=True)))
        values = unpack(names)
        for fold, (total,) in zip(totals, values[len(folds) :], strict=True):
            self.totals[fold.reduction.index, None] = total
        return values[: len(folds)]

    def _rounds(self, at: Point, body, unroll: int, carried: list[tuple[str, str]]) -> list[str]:
        """`body(chunks, values)` over all strips of a row: whole rounds in a loop, the rest behind it."""
        whole = self.strips // self.threads // unroll * unroll
        names = [n for n, _ in carried]
        ints = self.ints
        if whole:
            step = lambda index, values: body(
                [self._chunk(at, u, ints.add(index, u), False) for u in range(unroll)], values
            )
            names = self.out.loop(ints.name(0), ints.name(whole), ints.name(unroll), step, carried)
        for k in range(whole, self.chunks):
            names = body([self._chunk(at, k, k)], names)
        return names

    def _sweep(self, at: Point, body, unroll: int) -> None:
        """`body(chunk)` over all strips, those past the end left out."""

        def each(chunks: list[_Chunk], values: list[str]) -> list[str]:
            for chunk in chunks:
                self._when(chunk.inside, lambda chunk=chunk: body(chunk))
            return []

        if self.strips:
            self._rounds(at, each, unroll, [])

    def _add_to_workspace(self, fold: Fold, chunk: _Chunk) -> None:
        """Sums of columns of a row too long for registers: the block's own in the workspace, by the same thread always."""
        old = [
            self.partials.load(self.evaluator, fold, BLOCK, self.ints.add(chunk.place, i)) for i in range(self.width)
        ]
        inside = self.ints.both(chunk.inside, self.row_inside)
        new = [fold.accumulate(self.evaluator, p, o, inside) for p, o in zip(chunk.strip.points, old, strict=True)]

        def write() -> None:
            for i, values in enumerate(new):
                self.partials.store(self.evaluator, fold, values, self.ints.add(chunk.place, i))

        self._when(chunk.inside, write)

    # --- the block's partial sums

    def _publish(self, totals: Sequence[str]) -> None:
        self.totals = self._split(totals)
        self._publish_scalars([f for f in self.sums if not f.reduction.placed.result_dims])
        if self.is_resident and self.strips:
            for fold in self.sums:
                if fold.reduction.placed.result_dims:
                    self._publish_columns(fold)

    def _publish_scalars(self, folds: list[Fold]) -> None:
        """Every thread has its share; values that were one a row count once for each group."""
        if not folds:
            return
        row_sums = {r.index for r in self.plan.row_sums}
        first = self.ints.equal(self.member, 0)
        mine = []
        for fold in folds:
            values = self.totals[fold.reduction.index, None]
            if fold.reduction.index in row_sums and self.threads > 1:
                triples = zip(values, fold.neutral(self.out), fold.dtypes, strict=True)
                values = [self.out.value(f"arith.select {first}, {v}, {n} : {d}") for v, n, d in triples]
            mine.append(values)
        done = BlockReducer(self.out, self.ints, self.shared, self.block, self.block).reduce(folds, mine, is_last=True)

        def write() -> None:
            for fold, values in zip(folds, done, strict=True):
                self.partials.store(self.evaluator, fold, values, 0)

        self.out.when(self.ints.equal(THREAD, 0), write)

    def _publish_columns(self, fold: Fold) -> None:
        """The groups of the block add theirs one after the other, in shared memory; the last one writes."""
        chunks = [self._chunk(self.top, k, k) for k in range(self.chunks)]
        places = [self.shared.allocate(self.columns * ITEM_BYTES[d]) if self.per_block > 1 else 0 for d in fold.dtypes]
        if self.shared.size > MAX_STATIC_SHARED:
            raise Unsupported(f"sums over the rows of {self.columns} columns in one block of several rows")
        for group in range(self.per_block):
            is_mine = self.ints.equal(self.group, group) if self.per_block > 1 else None
            self._when(is_mine, lambda group=group: self._publish_group(fold, group, chunks, places))
            if group + 1 < self.per_block:
                barrier(self.out)

    def _publish_group(self, fold: Fold, group: int, chunks: list[_Chunk], places: list[int]) -> None:
        for chunk in chunks:
            self._when(chunk.inside, lambda chunk=chunk: self._publish_chunk(fold, group, chunk, places))

    def _publish_chunk(self, fold: Fold, group: int, chunk: _Chunk, places: list[int]) -> None:
        for i in range(self.width):
            index = self.ints.name(self.ints.add(chunk.place, i))
            values = self.totals[fold.reduction.index, (chunk.number, i)]
            if group:
                before = [self.shared.load(p, index, d) for p, d in zip(places, fold.dtypes, strict=True)]
                values = fold.merge(self.out, before, values)
            if group + 1 == self.per_block:
                self.partials.store(self.evaluator, fold, values, index)
            else:
                for value, place, dtype in zip(values, places, fold.dtypes, strict=True):
                    self.shared.store(value, place, index, dtype)
