"""Partial results of blocks in the workspace, and the phase that combines them, in block order.

The order is fixed by the schedule alone, so results are the same bits in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blutrain.nova.cpu.emit import POINTER, Number, result_pointer
from blutrain.nova.cpu.emit_domain import Domain, Store
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.configure_common import power_of_two
from blutrain.nova.gpu.emit import (
    BLOCK,
    MAX_STATIC_SHARED,
    THREAD,
    WORKSPACE,
    Shared,
    SimtEvaluator,
    SimtIntegers,
    barrier,
)
from blutrain.nova.gpu.emit_block import WARP, BlockReducer, Fold
from blutrain.nova.kernel import ITEM_BYTES, Kernel, Produced, Unsupported
from blutrain.nova.target_gpu import GpuFacts

MOST_COMBINE_THREADS = 1024  # 32 columns times 32 shares of the blocks
UNROLL = 4  # partial results that a thread loads at once
ALIGNMENT = 256


def check_combined(folds: Sequence[Fold]) -> None:
    """Raise `Unsupported` for more results than a block of the combining phase has shared memory for."""
    item = sum(ITEM_BYTES[d] for fold in folds for d in fold.dtypes if fold.reduction.placed.result_dims)
    if item * MOST_COMBINE_THREADS > MAX_STATIC_SHARED:
        raise Unsupported(f"column sums of {item} bytes an element in one kernel")


def combine_threads(blocks: int, facts: GpuFacts) -> int:
    """Threads of a block of the combining phase for the partial results of `blocks` blocks."""
    return min(MOST_COMBINE_THREADS, facts.max_threads_per_block, WARP * power_of_two(blocks))


class Partials:
    """Where the partial results of `folds` stand: for each result one array [blocks, elements of the result]."""

    def __init__(self, domain: Domain, folds: Sequence[Fold], blocks: int):
        self.domain, self.folds, self.blocks = domain, tuple(folds), blocks
        self.starts: dict[Produced, int] = {}
        self.bytes = 0
        for fold in folds:
            for result, dtype in zip(fold.reduction.results, fold.dtypes, strict=True):
                self.starts[result] = self.bytes
                size = blocks * self.count(fold) * ITEM_BYTES[dtype]
                self.bytes += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def count(self, fold: Fold) -> int:
        return math.prod(self.domain.extents[d] for d in fold.reduction.placed.result_dims)

    def strides(self, fold: Fold) -> tuple[int, ...]:
        """Row-major over the dimensions of the result, as strides over the nest."""
        strides, step = [0] * len(self.domain.extents), 1
        for d in sorted(fold.reduction.placed.result_dims, reverse=True):
            strides[d] = step
            step *= self.domain.extents[d]
        return tuple(strides)

    def pointer(self, out: Emitter, result: Produced) -> str:
        start = out.integer(self.starts[result])
        return out.value(f"llvm.getelementptr inbounds {WORKSPACE}[{start}] : ({POINTER}, i64) -> {POINTER}, i8")

    def store(self, evaluator: SimtEvaluator, fold: Fold, values: Sequence[str], index: Number) -> None:
        """Write element `index` of this block's partial results."""
        place = self._place(evaluator.integers, fold, BLOCK, index)
        for result, dtype, value in zip(fold.reduction.results, fold.dtypes, values, strict=True):
            evaluator.memory.store(value, self.pointer(evaluator.out, result), place, dtype, 0)

    def load(self, evaluator: SimtEvaluator, fold: Fold, block: Number, index: Number) -> list[str]:
        place = self._place(evaluator.integers, fold, block, index)
        return [
            evaluator.memory.load(self.pointer(evaluator.out, result), place, dtype, 0)
            for result, dtype in zip(fold.reduction.results, fold.dtypes, strict=True)
        ]

    def _place(self, ints: SimtIntegers, fold: Fold, block: Number, index: Number) -> str:
        return ints.name(ints.add(ints.mul(block, self.count(fold)), index))

    def total(self, evaluator: SimtEvaluator, fold: Fold, first: Number, step: int, index: Number) -> list[str]:
        """Element `index` of the blocks first, first + step, ... merged by this thread; the first is below the step."""
        out, ints = evaluator.out, evaluator.integers
        rounds = math.ceil(self.blocks / step)

        def add(block: Number, values: list[str], is_bounded: bool) -> list[str]:
            here = ints.minimum(block, self.blocks - 1) if is_bounded else block
            merged = fold.merge(out, values, self.load(evaluator, fold, here, index))
            if not is_bounded:
                return merged
            inside = ints.less(block, self.blocks)
            triples = zip(merged, values, fold.dtypes, strict=True)
            return [out.value(f"arith.select {inside}, {m}, {v} : {d}") for m, v, d in triples]

        whole = self.blocks // step // UNROLL * UNROLL

        def several(index_: str, values: list[str]) -> list[str]:
            for u in range(UNROLL):
                values = add(ints.add(first, ints.mul(ints.add(index_, u), step)), values, False)
            return values

        values = fold.neutral(out)
        if whole:
            bounds = (ints.name(0), ints.name(whole), ints.name(UNROLL))
            values = out.loop(*bounds, several, list(zip(values, fold.dtypes, strict=True)))
        for i in range(whole, rounds):
            values = add(ints.add(first, i * step), values, (i + 1) * step > self.blocks)
        return values


def provide_scalars(
    evaluator: SimtEvaluator, shared: Shared, partials: Partials, folds: Sequence[Fold], threads: int, top: Point
) -> None:
    """Put complete results that are one value into the memo of `top`: every block adds all partial ones up."""
    if not folds:
        return
    out, ints = evaluator.out, evaluator.integers
    mine = [partials.total(evaluator, fold, THREAD, threads, 0) for fold in folds]
    totals = BlockReducer(out, ints, shared, threads, threads).reduce(folds, mine, is_last=True)
    for fold, values in zip(folds, totals, strict=True):
        done = fold.finish(evaluator, values, top)
        top.memo.update(zip(fold.reduction.results, done, strict=True))


def emit_combine(
    kernel: Kernel, partials: Partials, stores: Sequence[Store], out: Emitter, shared: Shared, threads: int
) -> int:
    """The phase that adds the partial results up and computes what depends on them; returns its number of blocks.

    Threads of a block: 32 columns times shares of the partial results, which meet in shared memory.
    """
    domain, evaluator = partials.domain, SimtEvaluator(kernel, partials.domain, out)
    ints, top = evaluator.integers, Point({}, 0)
    scalars = [f for f in partials.folds if not f.reduction.placed.result_dims]
    wide = [f for f in partials.folds if f.reduction.placed.result_dims]
    provide_scalars(evaluator, shared, partials, scalars, threads, top)
    one = [s for s in stores if not s.dims]
    first_thread = ints.both(ints.equal(BLOCK, 0), ints.equal(THREAD, 0))
    if one:
        values = [evaluator.source(s.source, s.access, top) for s in one]
        out.when(first_thread, lambda: _write(kernel, evaluator, one, values, top))
    if not wide:
        return 1
    columns = sorted(set().union(*(f.reduction.placed.result_dims for f in wide)))
    count = math.prod(domain.extents[d] for d in columns)
    warp, lane = ints.div(THREAD, WARP), ints.rem(THREAD, WARP)
    column = ints.add(ints.mul(BLOCK, WARP), lane)
    here = ints.minimum(column, max(count - 1, 0))
    shares = threads // WARP
    partial = [(f, partials.total(evaluator, f, warp, shares, here)) for f in wide]
    starts = [[shared.allocate(threads * ITEM_BYTES[d]) for d in f.dtypes] for f in wide]
    for (fold, values), places in zip(partial, starts, strict=True):
        for value, place, dtype in zip(values, places, fold.dtypes, strict=True):
            shared.store(value, place, THREAD, dtype)
    barrier(out)

    def finish() -> None:
        point = Point(unflatten(ints, domain.extents, columns, column), out.innermost, top)
        for fold, places in zip(wide, starts, strict=True):
            values = fold.neutral(out)
            for w in range(min(shares, partials.blocks)):
                index = ints.name(ints.add(lane, w * WARP))
                share = [shared.load(p, index, d) for p, d in zip(places, fold.dtypes, strict=True)]
                values = share if w == 0 else fold.merge(out, values, share)
            done = fold.finish(evaluator, values, point)
            point.memo.update(zip(fold.reduction.results, done, strict=True))
        chosen = [s for s in stores if s.dims]
        values = [evaluator.source(s.source, s.access, point) for s in chosen]
        _write(kernel, evaluator, chosen, values, point)

    inside = ints.both(ints.equal(warp, 0), ints.less(column, count))
    out.when(inside, finish)
    return math.ceil(count / WARP)


def _write(kernel: Kernel, evaluator: SimtEvaluator, stores: Sequence[Store], values: Sequence[str], at: Point) -> None:
    for store, value in zip(stores, values, strict=True):
        evaluator.store(value, store.access, result_pointer(kernel, store.result), at)
