"""column kernels: reductions over dimensions that are not the last: bias gradients, batch norm's statistics.

A block has 32 strips of columns, one for each lane, and its warps share the summed rows: warp w takes rows w,
w + warps, ... and keeps its sums in registers; the warps join theirs in shared memory, in order. In the form "rows"
blocks split the summed rows as well, and row_combine.py adds up the blocks. In the form "strips" a block sums all
rows, once for each level of reductions: sums that need other sums, and results over all loops that do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from blutrain.nova.cpu.column import _Plan
from blutrain.nova.cpu.emit import Number, result_pointer
from blutrain.nova.cpu.emit_domain import Store
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.configure_common import predicted_us, width_for
from blutrain.nova.gpu.emit import (
    BLOCK,
    MAX_STATIC_SHARED,
    THREAD,
    Shared,
    SimtEvaluator,
    barrier,
    phase_text,
)
from blutrain.nova.gpu.emit_block import WARP, Fold
from blutrain.nova.gpu.emit_region import check_regions
from blutrain.nova.gpu.emit_strip import Strip
from blutrain.nova.gpu.function import module_text
from blutrain.nova.gpu.kernel import GpuKernel, GpuPhase
from blutrain.nova.gpu.map import write_all
from blutrain.nova.gpu.row_combine import Partials, check_combined, combine_threads, emit_combine
from blutrain.nova.kernel import ITEM_BYTES, Kernel, Unsupported, refusal
from blutrain.nova.target_gpu import GpuFacts

BLOCK_THREADS = 256
UNROLL = 4  # rows of a warp under way
ROWS_PER_WARP = 8  # a block that shares the rows with others has at least so many for each warp


def supports(kernel: Kernel) -> str | None:
    """None, or why this generator does not take the kernel."""
    return refusal(_plan, kernel)


def _plan(kernel: Kernel) -> _Plan:
    plan = _Plan(kernel)
    check_regions(kernel.ops)
    check_combined([Fold(reduction) for level in plan.levels for reduction in level])
    return plan


def configure(kernel: Kernel, facts: GpuFacts) -> dict[str, int | str]:
    """`form` strips or rows; `splits` blocks share the summed rows; `width` columns a thread, `block` threads."""
    plan = _plan(kernel)
    lane = plan.kept_dims[-1]
    width = width_for(plan.domain, lane, plan.domain.extents[lane])
    folds = sum(len(r.dtypes) for level in plan.levels for r in level)
    while width > 1 and (width * folds > 16 or WARP * width > 2 * plan.domain.extents[lane]):
        width //= 2
    most = facts.max_threads_per_block // WARP
    warps = max(1, min(BLOCK_THREADS // WARP, most, math.ceil(plan.num_summed / UNROLL)))
    across = math.ceil(plan.num_kept / (WARP * width))
    needs_one = len(plan.levels) > 1 or bool(plan.stores[-1])
    wanted = max(1, math.ceil(4 * facts.sms / max(across, 1)))
    splits = 1 if needs_one else max(1, min(wanted, plan.num_summed // (warps * ROWS_PER_WARP)))
    splits = _even(splits, plan.num_summed)
    form = "strips" if splits == 1 else "rows"
    if form == "strips" and across < facts.sms:  # few blocks: more warps in each
        warps = max(1, min(most, math.ceil(plan.num_summed / UNROLL), _most_warps(plan, width)))
    return {"form": form, "splits": splits, "width": width, "block": warps * WARP}


def _even(splits: int, rows: int) -> int:
    """A number of equal shares near `splits`, or `splits` where there is none."""
    return next((s for s in range(splits, splits // 2, -1) if rows % s == 0), splits)


def _most_warps(plan: _Plan, width: int) -> int:
    """As many as have room for their sums in shared memory."""
    item = sum(ITEM_BYTES[d] for level in plan.levels for r in level for d in r.dtypes)
    return max(1, MAX_STATIC_SHARED // (item * width * WARP))


def generate(kernel: Kernel, facts: GpuFacts, config: dict) -> GpuKernel:
    plan = _plan(kernel)
    body = _Body(kernel, plan, config)
    blocks = body.emit()
    symbols = [f"{kernel.symbol}_0", f"{kernel.symbol}_1"]
    texts = [phase_text(kernel, symbols[0], body.out, config["block"], body.shared)]
    phases = [GpuPhase(symbols[0], (blocks, 1, 1), config["block"])]
    if body.partials is not None:
        out, threads = Emitter(), combine_threads(config["splits"], facts)
        shared = Shared(symbols[1], out)
        combining = emit_combine(kernel, body.partials, plan.post_stores, out, shared, threads)
        texts.append(phase_text(kernel, symbols[1], out, threads, shared))
        phases.append(GpuPhase(symbols[1], (combining, 1, 1), threads))
    workspace = body.partials.bytes if body.partials is not None else 0
    return GpuKernel(
        text=module_text(texts),
        target=facts.arch,
        phases=tuple(phases),
        workspace_bytes=workspace,
        bytes=kernel.bytes,
        flops=kernel.flops,
        predicted_us=predicted_us(kernel, facts, len(phases), 2 * workspace),
        schedule=f"column, {config['form']}, {config['splits']} shares of the rows, {config['width']} columns a thread, "
        f"{blocks} blocks of {config['block']}",
    )


class _Body:
    def __init__(self, kernel: Kernel, plan: _Plan, config: dict):
        self.kernel, self.plan, self.config, self.width = kernel, plan, config, config["width"]
        self.symbol, self.out = f"{kernel.symbol}_0", Emitter()
        self.shared, self.evaluator = Shared(self.symbol, self.out), SimtEvaluator(kernel, plan.domain, self.out)
        self.ints, self.top, self.warps = self.evaluator.integers, Point({}, 0), config["block"] // WARP
        self.levels = [[Fold(r) for r in level] for level in plan.levels]
        self.partials = Partials(plan.domain, self.levels[0], config["splits"]) if config["form"] == "rows" else None

    def emit(self) -> int:
        """Write the first phase; returns its number of blocks."""
        ints, extents = self.ints, self.plan.domain.extents
        lane_dim, self.strips = self.plan.kept_dims[-1], self.plan.num_kept // self.width
        across = math.ceil(self.strips / WARP)
        if not across:
            return 0
        splits = self.config["splits"]
        self.warp, lane = ints.div(THREAD, WARP), ints.rem(THREAD, WARP)
        split, tile = (ints.div(BLOCK, across), ints.rem(BLOCK, across)) if splits > 1 else (0, BLOCK)
        index = ints.add(ints.mul(tile, WARP), lane)
        self.inside = None if self.strips % WARP == 0 else ints.less(index, self.strips)
        index = index if self.inside is None else ints.minimum(index, self.strips - 1)
        counts = tuple(e // self.width if d == lane_dim else e for d, e in enumerate(extents))
        places = unflatten(ints, counts, self.plan.kept_dims, index)
        start = ints.mul(places.pop(lane_dim), self.width)
        at = Point(places, 0, self.top)
        self.strip = Strip.along(self.evaluator, at, lane_dim, start, self.width)
        self.column = ints.mul(index, self.width)
        if splits > 1:
            self._share(split, splits)
        else:
            self._levels()
        return across * splits

    def _share(self, split: Number, splits: int) -> None:
        """This block's part of the summed rows; its sums go to the workspace."""
        per_block = math.ceil(self.plan.num_summed / splits)
        first = self.ints.mul(split, per_block)
        last = self.ints.minimum(self.ints.add(first, per_block), self.plan.num_summed)
        is_cut = per_block * splits != self.plan.num_summed
        totals = self._sum_rows(self.levels[0], self.plan.stores[0], first, last, per_block, is_cut)
        joined = self._join(self.levels[0], totals)

        def publish() -> None:
            assert self.partials is not None
            values = joined()
            for fold in self.levels[0]:
                for i in range(self.width):
                    place = self.ints.add(
                        self.ints.mul(split, self.partials.count(fold)), self.ints.add(self.column, i)
                    )
                    for result, dtype, value in zip(
                        fold.reduction.results, fold.dtypes, values[fold.reduction.index][i], strict=True
                    ):
                        pointer = self.partials.pointer(self.out, result)
                        self.evaluator.memory.store(value, pointer, self.ints.name(place), dtype, 0)

        self._by_first_warp(publish)

    def _levels(self) -> None:
        """All summed rows, level by level."""
        count = self.plan.num_summed
        for level, stores in enumerate(self.plan.stores):
            folds = self.levels[level] if level < len(self.levels) else []
            if not folds and not stores:
                continue
            totals = self._sum_rows(folds, stores, 0, count, count)
            if not folds:
                continue
            if level:
                barrier(self.out)  # the sums of the level before have been read
            values = self._join(folds, totals)()
            for fold in folds:
                for point, mine in zip(self.strip.points, values[fold.reduction.index], strict=True):
                    done = fold.finish(self.evaluator, mine, point)
                    point.memo.update(zip(fold.reduction.results, done, strict=True))
        self._finish(self.plan.post_stores)

    def _finish(self, stores: Sequence[Store]) -> None:
        if not stores:
            return
        points = self.strip.points
        values = [[self.evaluator.source(s.source, s.access, p) for p in points] for s in stores]

        def write() -> None:
            for store, of_store in zip(stores, values, strict=True):
                self.strip.store(of_store, store.access, result_pointer(self.kernel, store.result))

        self._by_first_warp(write)

    def _by_first_warp(self, body: Callable[[], None]) -> None:
        first = self.ints.equal(self.warp, 0) if self.warps > 1 else None
        condition = self.ints.both(first, self.inside)
        self.out.when(condition, body)

    # --- a thread's rows

    def _sum_rows(
        self, folds: list[Fold], stores: Sequence[Store], first: Number, last: Number, length: int, is_cut: bool = False
    ) -> dict[int, list[list[str]]]:
        """Rows first + warp, first + warp + warps, ... of `length` rows: sums by fold and column; writes results over all
        loops. is_cut: of some blocks not all rows are below `last`.
        """
        ints, step = self.ints, self.warps
        carried = [c for f in folds for _ in range(self.width) for c in f.carried(self.out)]
        names = [n for n, _ in carried]
        start = ints.add(first, self.warp) if self.warps > 1 else first

        def at(round_: Number, is_bounded: bool) -> tuple[Number, str | None]:
            row = ints.add(start, ints.mul(round_, step))
            return row, ints.less(row, last) if is_bounded else None

        def several(index: str, values: Sequence[str]) -> list[str]:
            return self._rows([at(ints.add(index, u), is_cut) for u in range(UNROLL)], folds, stores, values)

        rounds = math.ceil(length / step)
        together = math.ceil(rounds / UNROLL) * UNROLL if is_cut else length // (step * UNROLL) * UNROLL
        if together:
            names = self.out.loop(ints.name(0), ints.name(together), ints.name(UNROLL), several, carried)
        for round_ in range(together, rounds):
            names = self._rows([at(round_, (round_ + 1) * step > length)], folds, stores, names)
        left = iter(names)
        return {f.reduction.index: [[next(left) for _ in f.dtypes] for _ in range(self.width)] for f in folds}

    def _rows(
        self, rows: list[tuple[Number, str | None]], folds: list[Fold], stores: Sequence[Store], names: Sequence[str]
    ) -> list[str]:
        """Some rows at once: their loads first."""
        strips = [self._row_strip(row, inside) for row, inside in rows]
        left = iter(names)
        values = [[[next(left) for _ in f.dtypes] for _ in range(self.width)] for f in folds]
        for strip in strips:
            for fold in folds:
                for access in fold.reduction.placed.inputs:
                    self.evaluator.read(access, strip.points[0])
        for strip, (_, inside) in zip(strips, rows, strict=True):
            for i, point in enumerate(strip.points):
                for fold, of_fold in zip(folds, values, strict=True):
                    of_fold[i] = fold.accumulate(self.evaluator, point, of_fold[i], inside)
            if stores:
                condition = self.ints.both(inside, self.inside)
                write = lambda strip=strip: write_all(self.kernel, self.evaluator, [strip], stores)
                self.out.when(condition, write)
        return [n for of_fold in values for slot in of_fold for n in slot]

    def _row_strip(self, row: Number, inside: str | None) -> Strip:
        """This thread's columns of one summed row; a row past the end reads the last one."""
        ints = self.ints
        here = row if inside is None else ints.minimum(row, self.plan.num_summed - 1)
        indices = unflatten(ints, self.plan.domain.extents, self.plan.summed, here)
        return self.strip.at(indices)

    # --- the block's warps

    def _join(self, folds: list[Fold], totals: dict[int, list[list[str]]]) -> Callable[[], dict[int, list[list[str]]]]:
        """Put every warp's sums into shared memory; the answer merges them in warp order, where it is called."""
        if self.warps == 1:
            return lambda: totals
        places: dict[tuple[int, int], list[int]] = {}
        for fold in folds:
            for i in range(self.width):
                places[fold.reduction.index, i] = [
                    self.shared.allocate(self.config["block"] * ITEM_BYTES[d]) for d in fold.dtypes
                ]
                values = totals[fold.reduction.index][i]
                for value, place, dtype in zip(values, places[fold.reduction.index, i], fold.dtypes, strict=True):
                    self.shared.store(value, place, THREAD, dtype)
        if self.shared.size > MAX_STATIC_SHARED:
            raise Unsupported(f"{len(folds)} column sums of {self.width} columns a thread in shared memory")
        barrier(self.out)
        lane = self.ints.rem(THREAD, WARP)

        def merged() -> dict[int, list[list[str]]]:
            return {
                f.reduction.index: [self._merge_warps(f, places[f.reduction.index, i], lane) for i in range(self.width)]
                for f in folds
            }

        return merged

    def _merge_warps(self, fold: Fold, places: list[int], lane: Number) -> list[str]:
        values: list[str] = []
        for w in range(self.warps):
            index = self.ints.name(self.ints.add(lane, w * WARP))
            mine = [self.shared.load(p, index, d) for p, d in zip(places, fold.dtypes, strict=True)]
            values = fold.merge(self.out, values, mine) if w else mine
        return values
