"""Sums over the rows of a row kernel: what a thread carries from row to row, and how a block's sums meet.

A thread keeps the sums of its own columns in registers, or, where a row is too long for that, in the workspace: the
same thread always works on the same columns. At the end the groups of a block add theirs one after the other, in
shared memory, and the block writes its partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.cpu.row_plan import RowPlan
from blutrain.nova.gpu.emit import BLOCK, MAX_STATIC_SHARED, THREAD, Shared, SimtEvaluator, barrier
from blutrain.nova.gpu.emit_block import BlockReducer, Fold
from blutrain.nova.gpu.row_combine import Partials
from blutrain.nova.gpu.row_share import Chunk, Share
from blutrain.nova.kernel import ITEM_BYTES, Unsupported

Slot = tuple[int, tuple[int, int] | None]  # (op of the sum, (chunk, element of its strip); None: the only one)


class RowSums:
    """The sums of a kernel; `values` holds those in registers as the code at hand knows them."""

    def __init__(
        self, plan: RowPlan, evaluator: SimtEvaluator, share: Share, shared: Shared, is_resident: bool, blocks: int
    ):
        self.evaluator, self.out, self.ints, self.share, self.shared = (
            evaluator,
            evaluator.out,
            share.ints,
            share,
            shared,
        )
        self.folds = {r.index: Fold(r) for r in plan.sums}
        self.row_sums = {r.index for r in plan.row_sums}
        self.partials = Partials(plan.domain, list(self.folds.values()), blocks)
        self.by_column = [f for f in self.folds.values() if f.reduction.placed.result_dims]
        self.totals = [f for f in self.folds.values() if not f.reduction.placed.result_dims]
        self.is_resident = is_resident
        self.values: dict[Slot, list[str]] = {}

    # --- carried from row to row

    def slots(self) -> list[tuple[Fold, Slot]]:
        places = [(k, i) for k in range(self.share.chunks) for i in range(self.share.width)] if self.is_resident else []
        found: list[tuple[Fold, Slot]] = [(f, (f.reduction.index, None)) for f in self.totals]
        return found + [(f, (f.reduction.index, place)) for f in self.by_column for place in places]

    def carried(self) -> list[tuple[str, str]]:
        return [c for fold, _ in self.slots() for c in fold.carried(self.out)]

    def unpack(self, names: Sequence[str]) -> None:
        left = iter(names)
        self.values = {slot: [next(left) for _ in fold.dtypes] for fold, slot in self.slots()}

    def pack(self) -> list[str]:
        return [name for _, slot in self.slots() for name in self.values[slot]]

    def add(self, fold: Fold, point: Point, place: tuple[int, int] | None, inside: str | None) -> None:
        """Add the element at `point` to a sum in registers."""
        slot = (fold.reduction.index, place)
        self.values[slot] = fold.accumulate(self.evaluator, point, self.values[slot], inside)

    # --- sums of columns in the workspace

    def clear(self) -> None:
        """This thread's columns of the block's sums become neutral."""

        def body(chunks: list[Chunk], values: list[str]) -> list[str]:
            for chunk in chunks:
                self.out.when(chunk.inside, lambda chunk=chunk: self._clear(chunk))
            return values

        if not self.is_resident and self.by_column and self.share.strips:
            self.share.rounds(Point({}, 0), body, 1)

    def _clear(self, chunk: Chunk) -> None:
        for fold in self.by_column:
            for i in range(self.share.width):
                self.partials.store(self.evaluator, fold, fold.neutral(self.out), self.ints.add(chunk.place, i))

    def add_in_workspace(self, fold: Fold, chunk: Chunk, row_inside: str | None) -> None:
        places = [self.ints.add(chunk.place, i) for i in range(self.share.width)]
        old = [self.partials.load(self.evaluator, fold, BLOCK, place) for place in places]
        points = zip(chunk.strip.points, old, strict=True)
        new = [fold.accumulate(self.evaluator, point, values, row_inside) for point, values in points]

        def write() -> None:
            for place, values in zip(places, new, strict=True):
                self.partials.store(self.evaluator, fold, values, place)

        self.out.when(chunk.inside, write)

    # --- the block's partial sums

    def publish(self) -> None:
        if self.totals:
            self._publish_totals()
        if self.is_resident and self.share.strips:
            for fold in self.by_column:
                self._publish_columns(fold)

    def _publish_totals(self) -> None:
        """Every thread has its part; of values that are one a row, one thread of the group."""
        first, mine = self.ints.equal(self.share.member, 0), []
        for fold in self.totals:
            values = self.values[fold.reduction.index, None]
            if fold.reduction.index in self.row_sums and self.share.threads > 1:
                triples = zip(values, fold.neutral(self.out), fold.dtypes, strict=True)
                values = [self.out.value(f"arith.select {first}, {v}, {n} : {d}") for v, n, d in triples]
            mine.append(values)
        reducer = BlockReducer(self.out, self.ints, self.shared, self.share.block, self.share.block)
        done = reducer.reduce(self.totals, mine, is_last=True)

        def write() -> None:
            for fold, values in zip(self.totals, done, strict=True):
                self.partials.store(self.evaluator, fold, values, 0)

        self.out.when(self.ints.equal(THREAD, 0), write)

    def _publish_columns(self, fold: Fold) -> None:
        """The groups add theirs one after the other, in shared memory; the last one writes."""
        share, chunks = self.share, self.share.all_chunks(Point({}, 0))
        sizes = [share.columns * ITEM_BYTES[d] for d in fold.dtypes]
        places = [self.shared.allocate(size) for size in sizes] if share.per_block > 1 else [0] * len(sizes)
        if self.shared.size > MAX_STATIC_SHARED:
            raise Unsupported(f"sums over the rows of {share.columns} columns in a block of several rows")
        for group in range(share.per_block):
            is_mine = self.ints.equal(share.group, group) if share.per_block > 1 else None
            self.out.when(is_mine, lambda group=group: self._publish_group(fold, group, chunks, places))
            if group + 1 < share.per_block:
                barrier(self.out)

    def _publish_group(self, fold: Fold, group: int, chunks: list[Chunk], places: list[int]) -> None:
        for chunk in chunks:
            self.out.when(chunk.inside, lambda chunk=chunk: self._publish_chunk(fold, group, chunk, places))

    def _publish_chunk(self, fold: Fold, group: int, chunk: Chunk, places: list[int]) -> None:
        for i in range(self.share.width):
            index = self.ints.name(self.ints.add(chunk.place, i))
            values = self.values[fold.reduction.index, (chunk.number, i)]
            if group:
                before = [self.shared.load(p, index, d) for p, d in zip(places, fold.dtypes, strict=True)]
                values = fold.merge(self.out, before, values)
            if group + 1 == self.share.per_block:
                self.partials.store(self.evaluator, fold, values, index)
            else:
                for value, place, dtype in zip(values, places, fold.dtypes, strict=True):
                    self.shared.store(value, place, index, dtype)
