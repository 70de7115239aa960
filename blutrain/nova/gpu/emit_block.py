"""Sums and other reductions over the threads of a group: butterfly shuffles inside a warp, shared memory between warps.

The order of every combination is fixed by the thread numbers, and all threads of a group get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from blutrain.nova.cpu.emit_nest import Evaluator, Point
from blutrain.nova.cpu.emit_reduce import Reduction
from blutrain.nova.emitter import Emitter
from blutrain.nova.gpu.emit import THREAD, Shared, SimtIntegers, barrier
from blutrain.nova.gpu.emit_region import SimtCloner
from blutrain.nova.kernel import ITEM_BYTES, Splat, Unsupported

WARP = 32


class Fold:
    """A reduction as the GPU does it: accumulators in any number, merged in any order.

    A region with a known combiner merges by it. Any other region has to be a choice (argmax: the new element and its
    index are taken where a condition on the two elements holds): two accumulators merge by the same choice, the one
    with the lower index standing for what came before.
    """

    def __init__(self, reduction: Reduction):
        self.reduction = reduction
        self.choice = None if not reduction.is_ordered else _Choice(reduction)

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.reduction.dtypes

    def neutral(self, out: Emitter) -> list[str]:
        if self.choice is None:
            return self.reduction.neutral(out, 0)
        return [out.constant(s.literal, s.dtype) for s in self.choice.initial]

    def carried(self, out: Emitter) -> list[tuple[str, str]]:
        return list(zip(self.neutral(out), self.dtypes, strict=True))

    def merge(self, out: Emitter, a: Sequence[str], b: Sequence[str]) -> list[str]:
        return self.reduction.merge(out, a, b, 0) if self.choice is None else self.choice.merge(out, a, b)

    def merge_all(self, out: Emitter, accumulators: list[list[str]]) -> list[str]:
        """Accumulators merged in pairs."""
        while len(accumulators) > 1:
            pairs = zip(accumulators[::2], accumulators[1::2], strict=False)
            rest = accumulators[-1:] if len(accumulators) % 2 else []
            accumulators = [self.merge(out, a, b) for a, b in pairs] + rest
        return accumulators[0]

    def accumulate(
        self, evaluator: Evaluator, point: Point, accumulators: Sequence[str], is_inside: str | None = None
    ) -> list[str]:
        """The accumulators after the element at `point`, or as they were where `is_inside` is false."""
        new = evaluator.region(self.reduction.placed, point, accumulators)
        if is_inside is None:
            return new
        return [
            evaluator.out.value(f"arith.select {is_inside}, {n}, {a} : {d}")
            for n, a, d in zip(new, accumulators, self.dtypes, strict=True)
        ]

    def finish(self, evaluator: Evaluator, totals: Sequence[str], point: Point) -> list[str]:
        """The complete result: the init combined with the totals."""
        return list(totals) if self.choice else self.reduction.finish(evaluator, totals, point)


class _Choice:
    """`yield select(c, x, best), select(c, i, place)` with c computed from x and best: argmax and its like."""

    def __init__(self, reduction: Reduction):
        block, count = reduction.op.block, len(reduction.op.inputs)
        selects = [_producer(v) for v in list(block.operations)[-1].operands]
        found = [tuple(s.operands) for s in selects if s is not None and s.name == "arith.select"]
        if len(selects) != 2 or len(found) != 2:
            raise Unsupported("a reduction that neither combines nor chooses")
        (self.condition, self.element, best), (condition, self.place, place) = found
        self.best = block.arguments[count]
        if self.condition != condition or best != self.best or place != block.arguments[count + 1]:
            raise Unsupported("a reduction that neither combines nor chooses")
        sources = [a.source for a in reduction.placed.outputs]
        self.initial = [s for s in sources if isinstance(s, Splat)]
        self.dtypes = reduction.dtypes
        if len(self.initial) != 2 or self.dtypes[1] not in ("i64", "i32"):
            raise Unsupported("a choice onto values that are no constants")
        self._take(Emitter(), "%a", "%b")  # raises where the condition needs more than the two elements

    def _take(self, out: Emitter, element: str, best: str) -> str:
        names = {self.element: element, self.best: best}

        def value(v: ir.Value) -> str:
            if v not in names:
                op = _producer(v)
                if op is None:
                    raise Unsupported("a choice that depends on more than the elements")
                names[v] = SimtCloner(out, 0).op(op, [value(o) for o in op.operands])[0]
            return names[v]

        return value(self.condition)

    def merge(self, out: Emitter, a: Sequence[str], b: Sequence[str]) -> list[str]:
        later = out.value(f"arith.cmpi slt, {b[1]}, {a[1]} : {self.dtypes[1]}")
        pick = lambda c, x, y, d: out.value(f"arith.select {c}, {x}, {y} : {d}")
        before = [pick(later, y, x, d) for x, y, d in zip(a, b, self.dtypes, strict=True)]
        after = [pick(later, x, y, d) for x, y, d in zip(a, b, self.dtypes, strict=True)]
        takes = self._take(out, after[0], before[0])
        return [pick(takes, y, x, d) for x, y, d in zip(before, after, self.dtypes, strict=True)]


def _producer(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else getattr(owner, "operation", owner)


def shuffle(out: Emitter, value: str, dtype: str, distance: int) -> str:
    """The value of the thread whose number in the warp differs in the bit `distance`."""
    if dtype in ("f32", "i32"):
        return _shuffle_word(out, value, dtype, distance)
    if dtype in ("f64", "i64"):
        bits = out.value(f"arith.bitcast {value} : f64 to i64") if dtype == "f64" else value
        low = out.value(f"arith.trunci {bits} : i64 to i32")
        high = out.value(f"arith.shrui {bits}, {out.integer(32)} : i64")
        halves = [_shuffle_word(out, low, "i32", distance)]
        halves.append(_shuffle_word(out, out.value(f"arith.trunci {high} : i64 to i32"), "i32", distance))
        low, high = (out.value(f"arith.extui {h} : i32 to i64") for h in halves)
        joined = out.value(f"arith.ori {low}, {out.value(f'arith.shli {high}, {out.integer(32)} : i64')} : i64")
        return out.value(f"arith.bitcast {joined} : i64 to f64") if dtype == "f64" else joined
    bits = value
    type_ = {"bf16": "i16", "f16": "i16"}.get(dtype, dtype)
    if type_ != dtype:
        bits = out.value(f"arith.bitcast {value} : {dtype} to {type_}")
    word = _shuffle_word(out, out.value(f"arith.extui {bits} : {type_} to i32"), "i32", distance)
    narrow = out.value(f"arith.trunci {word} : i32 to {type_}")
    return narrow if type_ == dtype else out.value(f"arith.bitcast {narrow} : {type_} to {dtype}")


def _shuffle_word(out: Emitter, value: str, dtype: str, distance: int) -> str:
    everyone, clamp = out.constant("-1", "i32"), out.constant("31", "i32")
    return out.value(
        f"nvvm.shfl.sync bfly {everyone}, {value}, {out.constant(str(distance), 'i32')}, {clamp} : {dtype} -> {dtype}"
    )


def butterfly(out: Emitter, fold: Fold, values: Sequence[str], threads: int) -> list[str]:
    """Every thread's accumulators merged over aligned runs of `threads` threads of a warp."""
    values, distance = list(values), 1
    while distance < threads:
        others = [shuffle(out, v, d, distance) for v, d in zip(values, fold.dtypes, strict=True)]
        values = fold.merge(out, values, others)
        distance *= 2
    return values


class BlockReducer:
    """Reductions over each group of `threads` threads of a block of `block`: a part of a warp, a warp, several warps."""

    def __init__(self, out: Emitter, ints: SimtIntegers, shared: Shared, threads: int, block: int):
        self.out, self.ints, self.shared, self.threads, self.block = out, ints, shared, threads, block
        self.warps = threads // WARP

    def reduce(self, folds: Sequence[Fold], values: Sequence[Sequence[str]], is_last: bool) -> list[list[str]]:
        """Merge each fold's accumulators over the group; every thread gets every result.

        `is_last`: the shared memory used here is not written again before another barrier.
        """
        out = self.out
        within = [butterfly(out, f, v, min(self.threads, WARP)) for f, v in zip(folds, values, strict=True)]
        if self.warps <= 1 or not folds:
            return within
        warp, lane = self.ints.div(THREAD, WARP), self.ints.rem(THREAD, WARP)
        starts = [[self.shared.allocate(ITEM_BYTES[d] * (self.block // WARP)) for d in f.dtypes] for f in folds]

        def publish() -> None:
            for fold, values_, places in zip(folds, within, starts, strict=True):
                for value, dtype, place in zip(values_, fold.dtypes, places, strict=True):
                    self.shared.store(value, place, warp, dtype)

        out.when(self.ints.equal(lane, 0), publish)
        barrier(out)
        results = [self._collect(fold, places, lane) for fold, places in zip(folds, starts, strict=True)]
        if not is_last:
            barrier(out)
        return results

    def _collect(self, fold: Fold, places: list[int], lane: str | int) -> list[str]:
        """Every warp merges what its group's warps published: one value a thread, then a butterfly over as many."""
        count = 1 << (self.warps - 1).bit_length()
        index = self.ints.rem(lane, count) if count < WARP else lane
        mine = self.ints.minimum(index, self.warps - 1) if count != self.warps else index
        if self.block > self.threads:
            mine = self.ints.add(self.ints.mul(self.ints.div(THREAD, self.threads), self.warps), mine)
        values = [self.shared.load(p, self.ints.name(mine), d) for p, d in zip(places, fold.dtypes, strict=True)]
        if count != self.warps:
            is_there = self.ints.less(index, self.warps)
            values = [
                self.out.value(f"arith.select {is_there}, {v}, {n} : {d}")
                for v, n, d in zip(values, fold.neutral(self.out), fold.dtypes, strict=True)
            ]
        return butterfly(self.out, fold, values, count)
