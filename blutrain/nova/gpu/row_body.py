"""The first phase of a row kernel: rows one after the other, each in the passes of row_plan.py.

Resident: the strips of a row are points that live through all passes, so what was loaded or is costly to compute stays
in registers. Swept: every pass is a loop over rounds of strips; staged operands come from shared memory from their
second pass on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blutrain.nova.cpu.emit import Number, result_pointer
from blutrain.nova.cpu.emit_loops import unflatten
from blutrain.nova.cpu.emit_nest import Point
from blutrain.nova.cpu.row_plan import Pass, RowPlan
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.emit import BLOCK, Shared, SimtEvaluator
from blutrain.nova.gpu.emit_block import BlockReducer, Fold
from blutrain.nova.gpu.row_ahead import ROWS, Ahead, copied_operands
from blutrain.nova.gpu.row_share import Chunk, Share
from blutrain.nova.gpu.row_stage import Stage, loads_of, ops_behind, stageable
from blutrain.nova.gpu.row_sums import RowSums
from blutrain.nova.kernel import Gather, Kernel, Produced

ACCUMULATORS = 4  # independent ones of a thread for one reduction


class RowBody:
    def __init__(self, kernel: Kernel, plan: RowPlan, config: dict):
        self.kernel, self.plan = kernel, plan
        self.symbol, self.out = f"{kernel.symbol}_0", Emitter()
        self.shared = Shared(self.symbol, self.out)
        self.evaluator = SimtEvaluator(kernel, plan.domain, self.out)
        self.evaluator.fast_exp = config["form"] != "resident"  # long rows wait for arithmetic, not for memory
        self.ints, self.top = self.evaluator.integers, Point({}, 0)
        self.share = Share(plan, self.evaluator, config)
        self.is_resident, self.unroll = config["form"] == "resident", config["unroll"]
        self.blocks, self.is_loop = config["blocks"] or self.share.groups, config["blocks"] > 0
        self.sums = RowSums(plan, self.evaluator, self.share, self.shared, self.is_resident, self.blocks)
        self.folds = {r.index: Fold(r) for p in plan.passes for r in p.reductions}
        staged = stageable(plan) if config["form"] == "staged" else []
        elements = self.share.chunks * self.share.threads * self.share.width
        self.stage = Stage(self.evaluator, staged, elements, self.symbol)
        is_ahead = config["ahead"] and self.is_resident and self.is_loop
        copied = copied_operands(plan, self.share.chunks, self.share.width) if is_ahead else []
        self.ahead = Ahead(self.evaluator, copied, self.share.block, self.symbol)

    def emit(self) -> int:
        """Write the body; returns the number of blocks."""
        if not self.is_loop:
            if self.share.rows:
                self._row(BLOCK)
            return self.share.groups
        self.sums.clear()
        carried = self.sums.carried()
        totals = [name for name, _ in carried]
        rounds = math.ceil(self.share.groups / self.blocks)

        def one(index: str, values: list[str]) -> list[str]:
            self.sums.unpack(values)
            if self.ahead.bytes:
                following = self.ints.add(index, 1)
                self.out.when(self.ints.less(following, rounds), lambda: self._copy(following))
                self.ahead.commit()
            self._row(self._group(index), self.ints.rem(index, ROWS))
            return self.sums.pack()

        if self.share.rows:
            if self.ahead.bytes:
                self._copy(0)
                self.ahead.commit()
            totals = self.out.loop(self.ints.name(0), self.ints.name(rounds), self.ints.name(1), one, carried)
        self.sums.unpack(totals)
        self.sums.publish()
        return self.blocks

    # --- one row

    def _group(self, round_: Number) -> Number:
        """The rows of a block's round."""
        return self.ints.add(self.ints.mul(round_, self.blocks), BLOCK)

    def _at(self, group: Number) -> tuple[Point, str | None]:
        """This thread's row of a group of rows, and whether there is one (None: certainly; else it is the last row)."""
        ints, share = self.ints, self.share
        row = ints.add(ints.mul(group, share.per_block), share.group)
        is_whole = share.rows % (share.per_block * (self.blocks if self.is_loop else 1)) == 0
        inside = None if is_whole else ints.less(row, share.rows)
        here = row if is_whole else ints.minimum(row, share.rows - 1)
        places = unflatten(ints, self.plan.domain.extents, self.plan.row_dims, here)
        return Point(places, self.out.innermost, self.top), inside

    def _copy(self, round_: Number) -> None:
        at, _ = self._at(self._group(round_))
        self.ahead.copy(at, self.share.all_chunks(at), self.ints.rem(round_, ROWS))

    def _row(self, group: Number, turn: Number = 0) -> None:
        at, self.row_inside = self._at(group)
        self.stage.forget()
        chunks = self.share.all_chunks(at) if self.is_resident else []
        if self.ahead.bytes:
            self.ahead.serve(at, chunks, turn)
        for pass_ in self.plan.passes:
            if pass_.reductions or pass_.sums or pass_.stores:
                self._pass(pass_, at, chunks)
        self._store_row(at)
        for reduction in self.plan.row_sums:
            self.sums.add(self.sums.folds[reduction.index], at, None, self.row_inside)

    def _store_row(self, at: Point) -> None:
        """Results that are one element a row, by the group's first thread."""
        stores = self.plan.row_stores
        values = [self.evaluator.source(s.source, s.access, at) for s in stores]

        def write() -> None:
            for store, value in zip(stores, values, strict=True):
                self.evaluator.store(value, store.access, result_pointer(self.kernel, store.result), at)

        if stores:
            first = self.ints.equal(self.share.member, 0) if self.share.threads > 1 else None
            self.out.when(self.ints.both(first, self.row_inside), write)

    # --- one pass over a row

    def _pass(self, pass_: Pass, at: Point, chunks: list[Chunk]) -> None:
        folds = [self.folds[r.index] for r in pass_.reductions]
        if not self.share.strips:
            values = [[f.neutral(self.out)] for f in folds]
        elif self.is_resident:
            values = self._resident(pass_, folds, chunks)
        else:
            values = self._swept(pass_, folds, at)
        mine = [f.merge_all(self.out, v) for f, v in zip(folds, values, strict=True)]
        # In a loop over rows the next barrier is another pass's, or has to be added.
        is_last = not self.is_loop or sum(bool(p.reductions) for p in self.plan.passes) > 1
        reducer = BlockReducer(self.out, self.ints, self.shared, self.share.threads, self.share.block)
        for fold, done in zip(folds, reducer.reduce(folds, mine, is_last), strict=True):
            home = at.home(fold.reduction.placed.result_dims)
            finished = fold.finish(self.evaluator, done, at)
            home.memo.update(zip(fold.reduction.results, finished, strict=True))

    def _resident(self, pass_: Pass, folds: list[Fold], chunks: list[Chunk]) -> list[list[list[str]]]:
        count = min(ACCUMULATORS, self.share.width * len(chunks))
        values = [[f.neutral(self.out)] * count for f in folds]
        self._sweep(pass_, folds, values, chunks)
        self._forget(chunks)
        return values

    def _swept(self, pass_: Pass, folds: list[Fold], at: Point) -> list[list[list[str]]]:
        """The same as a loop over rounds of strips, a few at a time; totals over the rows are carried through it."""
        count, width = min(ACCUMULATORS, self.unroll * self.share.width), len(self.sums.slots())
        carried = list(zip(self.sums.pack(), (t for _, t in self.sums.carried()), strict=True)) if width else []
        behind = len(carried)
        carried = [*carried, *(c for f in folds for _ in range(count) for c in f.carried(self.out))]
        loads = loads_of(self.plan, pass_)

        def unpack(names: Sequence[str]) -> list[list[list[str]]]:
            if behind:
                self.sums.unpack(names[:behind])
            left = iter(names[behind:])
            return [[[next(left) for _ in f.dtypes] for _ in range(count)] for f in folds]

        def body(chunks: list[Chunk], names: list[str]) -> list[str]:
            values = unpack(names)
            self._sweep(pass_, folds, values, chunks)
            for chunk in chunks:
                self.stage.keep(chunk, loads)
            return [*(self.sums.pack() if behind else []), *(n for slots in values for slot in slots for n in slot)]

        values = unpack(self.share.rounds(at, body, self.unroll, carried))
        self.stage.serve(loads)
        return values

    def _sweep(self, pass_: Pass, folds: list[Fold], values: list[list[list[str]]], chunks: list[Chunk]) -> None:
        """Loads of some strips, then their part in every reduction (in place), then results at them."""
        self._load(pass_, chunks)
        sums = [self.sums.folds[r.index] for r in pass_.sums]
        for chunk in chunks:
            for i, point in enumerate(chunk.strip.points):
                for fold, slots in zip(folds, values, strict=True):
                    slot = (chunk.number * self.share.width + i) % len(slots)
                    slots[slot] = fold.accumulate(self.evaluator, point, slots[slot], chunk.inside)
                for fold in sums:
                    if not fold.reduction.placed.result_dims:
                        self.sums.add(fold, point, None, self.ints.both(chunk.inside, self.row_inside))
                    elif self.is_resident:  # past the row's end too, to sums that nobody reads
                        self.sums.add(fold, point, (chunk.number, i), self.row_inside)
            for fold in sums:
                if fold.reduction.placed.result_dims and not self.is_resident:
                    self.sums.add_in_workspace(fold, chunk, self.row_inside)
        self._store(pass_, chunks)

    def _load(self, pass_: Pass, chunks: list[Chunk]) -> None:
        """Loads come before everything else, so that they are under way together."""
        loads = loads_of(self.plan, pass_)
        gathers = [i for i in sorted(ops_behind(self.plan, pass_)) if isinstance(self.plan.domain.ops[i].op, Gather)]
        for chunk in chunks:
            for point in chunk.strip.points:
                for access in loads:
                    self.evaluator.read(access, point)
            for index in gathers:
                self.evaluator.source(Produced(index, 0), None, chunk.strip.points[0])

    def _store(self, pass_: Pass, chunks: list[Chunk]) -> None:
        """Every value before any store: a result may stand in an operand's memory."""
        if not pass_.stores:
            return
        values = [
            [[self.evaluator.source(s.source, s.access, p) for p in chunk.strip.points] for s in pass_.stores]
            for chunk in chunks
        ]
        for chunk, of_chunk in zip(chunks, values, strict=True):

            def write(chunk=chunk, of_chunk=of_chunk) -> None:
                for store, of_store in zip(pass_.stores, of_chunk, strict=True):
                    chunk.strip.store(of_store, store.access, result_pointer(self.kernel, store.result))

            self.out.when(self.ints.both(chunk.inside, self.row_inside), write)

    def _forget(self, chunks: list[Chunk]) -> None:
        """Loads and costly values stay in registers, cheap ones are computed again."""
        kept = set(self.plan.kept)
        for chunk in chunks:
            for point in chunk.strip.points:
                for key in [k for k in point.memo if isinstance(k, Produced) and k not in kept]:
                    if not isinstance(self.plan.domain.ops[key.op].op, Gather):
                        del point.memo[key]
